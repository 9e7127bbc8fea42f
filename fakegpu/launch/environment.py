"""The environment of a command under fgpu: preloaded libraries, search paths, FAKEGPU_ variables.

Pure: takes settings and an environment, returns a new environment. Owns which library is preloaded in which mode.
It never overrides what the user set for other programs; it puts its own folders in front. Called by
fakegpu.launch.job and by `fgpu doctor`.
"""

import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from fakegpu.errors import FakeGPUError, SettingsError
from fakegpu.launch.pairs import real_libraries
from fakegpu.settings import BY_FIELD, Settings

PACKAGE = Path(__file__).resolve().parent.parent
RUNTIME = "libfakegpu_rt.so"
CUDA_LIBRARIES = ("libcudart.so.13", "libcuda.so.1", "libnvidia-ml.so.1")
NCCL_LIBRARY = "libnccl.so.2"
PROGRAMS = PACKAGE / "launch" / "programs"  # nvidia-smi
HOOK = PACKAGE / "torchhost" / "hook"
TORCH_TIMEOUT_MS = 600_000  # above torch's own time-outs for imports and rendezvous, so that those speak first


class MissingLibrary(FakeGPUError):
    """A native library is not where it belongs."""


def lib_dir(settings: Settings) -> Path:
    """Folder of the native libraries."""
    return Path(settings.lib_dir).resolve() if settings.lib_dir else PACKAGE / "lib"


def preload_names(settings: Settings) -> list[str]:
    """Libraries to preload: CUDA's only where the devices are fake, NCCL's unless communication is left alone."""
    names = list(CUDA_LIBRARIES) if settings.mode == "simulate" else []
    if settings.dist_mode in ("simulate", "proxy"):
        names.append(NCCL_LIBRARY)
    return names


def preload_paths(settings: Settings) -> list[Path]:
    """The libraries of preload_names as paths, or those that passthrough was given; names the first that is absent."""
    folder = lib_dir(settings)
    names = preload_names(settings)
    for name in [RUNTIME, *names] if names else []:
        if not (folder / name).exists():
            raise MissingLibrary(
                f"{name} is missing in {folder}",
                "build it (in a checkout: run ./fgpu, or `python3 setup.py build_ext --inplace`), or reinstall fakegpu",
            )
    if any(character in str(folder) for character in ": \t\n"):
        raise SettingsError(
            f"libraries lie in {str(folder)!r}: LD_PRELOAD cannot hold a path with a blank or a colon",
            "move the checkout or environment, or name a copy of the folder with --lib-dir",
        )
    return [folder / name for name in names] + real_libraries(settings)


def libpython() -> str:
    """Path of this interpreter's shared library, '' when it was built without one."""
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        return _system_libpython()
    name = sysconfig.get_config_var("INSTSONAME") or sysconfig.get_config_var("LDLIBRARY") or ""
    candidates = [Path(sysconfig.get_config_var(key) or "/nonexistent") / name for key in ("LIBDIR", "LIBPL")]
    return next((str(path) for path in candidates if path.is_file()), "")


def _system_libpython() -> str:
    """A distribution may ship the shared library beside a statically linked interpreter (Debian: libpython3.11)."""
    name = f"libpython{sys.version_info[0]}.{sys.version_info[1]}.so.1.0"
    folders = [sysconfig.get_config_var("LIBDIR"), "/usr/lib/" + str(sysconfig.get_config_var("MULTIARCH"))]
    return next((str(Path(folder) / name) for folder in folders if folder and (Path(folder) / name).is_file()), "")


def _prepend(environment: dict[str, str], name: str, entries: list[str]) -> None:
    """Put entries in front of a colon-separated variable; what is there already moves, it is not doubled."""
    rest = [entry for entry in environment.get(name, "").split(":") if entry and entry not in entries]
    if entries or rest:
        environment[name] = ":".join(entries + rest)


def _preload(environment: dict[str, str], paths: list[Path]) -> None:
    """LD_PRELOAD with our libraries first; the user's own entries stay, other names of ours go."""
    ours = {path.resolve() for path in paths}
    users = environment.get("LD_PRELOAD", "").replace(":", " ").split()
    kept = [entry for entry in users if not ("/" in entry and Path(entry).resolve() in ours)]
    if paths or kept:
        environment["LD_PRELOAD"] = ":".join([*map(str, paths), *kept])


def _installed() -> bool:
    """True if this interpreter finds fakegpu by itself, without the path that ./fgpu adds."""
    return any(
        next(Path(folder).glob("fakegpu-*.dist-info"), None) for folder in sys.path if folder.endswith("-packages")
    )


def _programs(path: str) -> list[str]:
    """This environment's bin folder, so that its torchrun is found; a system-wide one keeps its place on PATH."""
    folder = str(Path(sys.executable).parent)
    return [folder] if sys.prefix != sys.base_prefix or folder not in path.split(":") else []


def child_environment(settings: Settings, base: Mapping[str, str]) -> dict[str, str]:
    """The command's environment; `settings` must hold the coordinator's address where there is one."""
    environment = dict(base)
    paths = preload_paths(settings)
    environment.update(settings.to_env())
    for field, value in (("libpython", libpython()), ("python", sys.executable)):
        if value:
            environment.setdefault(BY_FIELD[field].env, value)
    _preload(environment, paths)
    if preload_names(settings):
        _prepend(environment, "LD_LIBRARY_PATH", [str(lib_dir(settings))])
    _prepend(environment, "PATH", _programs(environment.get("PATH", "")))
    if settings.mode == "simulate":
        _prepend(environment, "PATH", [str(PROGRAMS)])
    python_path = [] if _installed() else [str(PACKAGE.parent)]
    if settings.mode == "simulate":
        python_path.insert(0, str(HOOK))
        # Triton has no device to compile for: its kernels run in its own interpreter, slowly and right
        environment.setdefault("TRITON_INTERPRET", "1")
    _prepend(environment, "PYTHONPATH", python_path)
    return environment


def torch_without_cuda(program: str) -> str:
    """Version of a CPU-only torch in the environment that `program` belongs to, '' if there is none."""
    if Path(program).parent != Path(sys.executable).parent:
        return ""
    for folder in sys.path:
        version = Path(folder) / "torch" / "version.py"
        if version.is_file():
            values: dict = {}
            exec(compile(version.read_text(), str(version), "exec"), values)  # the module torch itself generates
            return "" if values.get("cuda") or values.get("hip") else str(values.get("__version__"))
    return ""


def torch_hint() -> str:
    """How to get the torch that works here."""
    return f"install the CUDA wheel: {sys.prefix}/bin/pip install torch==2.14.1"


def default_timeout(settings: Settings) -> Settings:
    """Settings with the long operation time-out, unless the user chose one."""
    return settings if "timeout_ms" in settings.given else settings.override(timeout_ms=TORCH_TIMEOUT_MS)
