"""Compiles the C libraries: one object per source, rebuilt when it or any header is newer.

Called by setup.py. FAKEGPU_SANITIZE=address|thread builds everything, _core included, with that sanitizer.
A library is a folder of interposer/; sources and exported names come from there and from data/api.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
INCLUDES = [ROOT / "fakegpu" / "_core" / "include", HERE / "runtime", HERE / "abi"]
WARNINGS = ["-Wall", "-Wextra", "-Wconversion"]

# name: (file, soname, folder, needs); the version script is <folder>/<folder>.map
LIBRARIES = {
    "rt": ("libfakegpu_rt.so", "libfakegpu_rt.so", "runtime", ()),
    "cuda": ("libcuda.so.1", "libcuda.so.1", "cuda", ("rt",)),
    "cudart": ("libcudart.so.13", "libcudart.so.13", "cudart", ("rt",)),
    "nvml": ("libnvidia-ml.so.1", "libnvidia-ml.so.1", "nvml", ("rt",)),
    "nccl": ("libnccl.so.2", "libnccl.so.2", "nccl", ("rt",)),
}


COORDINATOR_SCRIPT = """#!/bin/sh
# The coordinator of this checkout: the same as `./fgpu coordinator`.
exec "$(dirname -- "$(readlink -f -- "$0")")/../fgpu" coordinator "$@"
"""


def hold_build_lock() -> None:
    """Wait until no other process builds in this tree, and hold the tree until this process ends."""
    (ROOT / "build").mkdir(exist_ok=True)
    lock = os.open(ROOT / "build" / "native.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.flock(lock, fcntl.LOCK_EX)


def _sanitize() -> list[str]:
    kind = os.environ.get("FAKEGPU_SANITIZE", "")
    if kind in ("", "none"):
        return []
    if kind == "address":
        return ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g", "-fno-omit-frame-pointer"]
    if kind == "thread":
        return ["-fsanitize=thread", "-g", "-fno-omit-frame-pointer"]
    raise SystemExit(f"FAKEGPU_SANITIZE={kind}: expected address or thread")


def compile_flags(what: str) -> list[str]:
    warnings = ["-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-unused-function"] if what == "core" else WARNINGS
    return ["-O3", "-g1", "-fvisibility=hidden", *warnings, *_sanitize()]


def link_flags() -> list[str]:
    return _sanitize()


def _compiler() -> str:
    for name in (os.environ.get("CC", ""), "gcc", "cc", "clang"):
        if name and shutil.which(name.split()[0]):
            return name
    raise SystemExit("fakegpu: no C compiler found; install gcc (Debian: apt-get install gcc) or set CC")


def _generated(name: str, folder: Path, out: Path) -> list[Path]:
    """C files made from data/: profiles for rt, refusing stubs for the API libraries (see generate.py)."""
    script = HERE / "generate.py"
    if not script.exists():
        return []
    subprocess.run([sys.executable, str(script), name, str(out)], check=True)
    return sorted(out.glob("*.c"))


def _build_one(name: str, target: Path, work: Path) -> None:
    file, soname, folder, needs = LIBRARIES[name]
    source_dir = HERE / folder
    gen = work / name / "gen"
    gen.mkdir(parents=True, exist_ok=True)
    sources = sorted(source_dir.glob("*.c")) + _generated(name, source_dir, gen)
    if not any(source_dir.glob("*.c")):
        return
    headers = [h for d in [*INCLUDES, source_dir, gen] for h in d.glob("*.h")]
    newest = max((h.stat().st_mtime for h in headers), default=0.0)
    compiler = _compiler().split()
    jobs, objects = [], []
    for source in sources:
        obj = work / name / (source.stem + ".o")
        objects.append(obj)
        if obj.exists() and obj.stat().st_mtime > max(source.stat().st_mtime, newest):
            continue
        jobs.append([*compiler, "-std=gnu11", "-D_GNU_SOURCE", "-fPIC", "-pthread", *compile_flags(name),
                     *[f"-I{d}" for d in [*INCLUDES, source_dir, gen]], "-c", str(source), "-o", str(obj)])
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for done in pool.map(lambda job: subprocess.run(job, check=False), jobs):
            if done.returncode:
                raise SystemExit(f"fakegpu: compiling {Path(done.args[-3]).name} failed")
    lib = target / file
    script = source_dir / f"{folder}.map"
    if jobs or not lib.exists() or script.stat().st_mtime > lib.stat().st_mtime:
        link = [*compiler, "-shared", "-pthread", f"-Wl,-soname,{soname}", f"-Wl,--version-script={script}",
                "-Wl,-rpath,$ORIGIN", "-Wl,-z,now,-z,defs" if not _sanitize() else "-Wl,-z,now",
                *link_flags(), *map(str, objects), "-o", str(lib) + ".new", f"-L{target}",
                *[f"-l:{LIBRARIES[n][0]}" for n in needs], "-ldl", "-lrt", "-lm"]
        subprocess.run(link, check=True)
        os.replace(str(lib) + ".new", lib)


def build(target: Path, in_tree: bool, only: str | None = None) -> None:
    """Build all libraries (or `only` and what it needs) into target; in_tree also leaves links in build/."""
    target.mkdir(parents=True, exist_ok=True)
    kind = os.environ.get("FAKEGPU_SANITIZE", "") or "release"
    for name in LIBRARIES:
        if only in (None, name) or name in LIBRARIES[only][3]:
            _build_one(name, target, ROOT / "build" / "native" / kind)
    if in_tree:
        _leave_in_build(target)


def _leave_in_build(target: Path) -> None:
    """build/libnccl.so.2, build/fakegpu-coordinator and so on, as documents name them."""
    for file, *_ in LIBRARIES.values():
        link = ROOT / "build" / file
        if (target / file).exists() and not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(os.path.relpath(target / file, link.parent))
    coordinator = ROOT / "build" / "fakegpu-coordinator"
    if not coordinator.exists():
        coordinator.write_text(COORDINATOR_SCRIPT)
        coordinator.chmod(0o755)
