"""Builds the C++ kernels for one torch, once, into a cache; `python3 -m fakegpu.torchhost.build` does it beforehand.

Called by loader.py in user processes, so by several ranks at the same time: one builds under a file lock, the others
wait. The cache key covers everything that changes the result: torch, its C++ ABI, our sources and tables, compiler.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
KERNELS = HERE / "kernels"
ROOT = HERE.parent.parent
LIBRARY = "libfakegpu_torchhost.so"
FLAGS = ["-O2", "-std=c++20", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
TESTED = "2.14.1"
PARALLEL = 2  # each compiler takes about 700 MB


class BuildError(Exception):
    """One line for the user."""


def cache_dir() -> Path:
    if os.environ.get("FAKEGPU_CACHE_DIR"):
        return Path(os.environ["FAKEGPU_CACHE_DIR"]) / "torchhost"
    if (ROOT / "setup.py").exists() and os.access(ROOT, os.W_OK):
        return ROOT / "build" / "torchhost"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fakegpu" / "torchhost"


def find_compiler() -> str | None:
    for name in (os.environ.get("CXX", ""), "g++", "c++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    return None


def refusals_file() -> Path:
    """data/api/torch_ops.yaml of an installed package or of a source checkout."""
    packaged = HERE.parent / "data" / "api" / "torch_ops.yaml"
    return packaged if packaged.exists() else ROOT / "data" / "api" / "torch_ops.yaml"


def read_refusals(text: str) -> dict[str, str]:
    """`name: "reason"` lines below `refused:`; a strict subset of YAML, since user processes may lack PyYAML."""
    section = text.split("\nrefused:\n", 1)[1]
    return dict(re.findall(r'^  ([\w.]+): "([^"]*)"$', section, re.M))


def operator_table(torch_package: Path) -> str:
    """Body of the C++ OperatorTable for this torch."""
    file = torch_package.parent / "torchgen" / "packaged" / "ATen" / "native" / "native_functions.yaml"
    if not file.exists():
        raise BuildError(f"{file} is missing: reinstall torch")
    unchecked = []
    name = ""
    for line in file.read_text().splitlines():
        if line.startswith("- func: "):
            name = line[len("- func: "):].split("(", 1)[0]
        elif line.startswith("  device_check: NoCheck"):
            unchecked.append(name)
    refused = read_refusals(refusals_file().read_text())
    names = ",\n".join(f'"{name}"' for name in unchecked)
    reasons = ",\n".join(f'{{"{name}", "{reason}"}}' for name, reason in refused.items())
    return f"std::unordered_set<std::string>{{\n{names}}},\n{{\n{reasons}}}\n"


def _hash(parts: list[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:12]


def library_path(torch, compiler: str | None) -> Path:
    """Where the library for this torch and compiler is or will be; without a compiler any that fits is taken."""
    sources = [path.read_text() for path in sorted([*KERNELS.glob("*.h"), *KERNELS.glob("*.cpp")])]
    what = _hash([*sources, refusals_file().read_text(), str(FLAGS), Path(__file__).read_text()])
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    base = f"torch{torch.__version__}-abi{abi}-{what}"
    if compiler is None:
        built = sorted(cache_dir().glob(f"{base}-*/{LIBRARY}"))
        return built[0] if built else cache_dir() / f"{base}-none" / LIBRARY
    status = os.stat(compiler)
    return cache_dir() / f"{base}-{_hash([os.path.realpath(compiler), str(status.st_size)])}" / LIBRARY


def ensure_built(torch) -> Path:
    """The library for this torch, built now if it is not in the cache."""
    compiler = find_compiler()
    library = library_path(torch, compiler)
    if library.exists():
        return library
    if compiler is None:
        raise BuildError(
            f"the host kernels for torch {torch.__version__} must be compiled once and there is no C++ compiler: "
            "install g++ (Debian: apt-get install g++) or set CXX"
        )
    try:
        library.parent.parent.mkdir(parents=True, exist_ok=True)
        lock = open(f"{library.parent}.lock", "w")
    except OSError as error:
        raise BuildError(f"cannot write {library.parent.parent}: {error.strerror}; set FAKEGPU_CACHE_DIR") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"waiting for another process that builds the host kernels for torch {torch.__version__}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _build(torch, compiler, library)
    return library


def _build(torch, compiler: str, library: Path) -> None:
    package = Path(torch.__file__).resolve().parent
    with tempfile.TemporaryDirectory(prefix="build-", dir=library.parent.parent) as work_name:
        work = Path(work_name)
        (work / "operator_table.inc").write_text(operator_table(package))
        sources = sorted(KERNELS.glob("*.cpp"))
        compile_command = [compiler, *FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
                           "-isystem", str(package / "include"), f"-I{work}", f"-I{KERNELS}"]
        started = time.monotonic()
        progress = _Progress(f"building the host kernels for torch {torch.__version__} (once)", len(sources))
        # compilers are pointless below the preloaded fake devices
        environment = {key: value for key, value in os.environ.items() if key not in ("LD_PRELOAD", "PYTHONPATH")}

        def run(command: list[str]) -> None:
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            if done.returncode:
                _fail(torch, library, command, done.stderr)

        def compile_one(source: Path) -> None:
            run([*compile_command, "-c", str(source), "-o", str(work / f"{source.stem}.o")])
            progress.step()

        with ThreadPoolExecutor(PARALLEL) as pool:
            list(pool.map(compile_one, sources))
        objects = [str(work / f"{source.stem}.o") for source in sources]
        # dlsym finds the runtime: nothing of ours is linked, torch's libraries are in the process already
        run([compiler, "-shared", *objects, "-o", str(work / LIBRARY), f"-L{package / 'lib'}", "-lc10", "-ltorch_cpu",
             "-Wl,--no-as-needed,--unresolved-symbols=ignore-in-shared-libs", "-ltorch_cuda", "-ldl"])
        library.parent.mkdir(exist_ok=True)
        os.replace(work / LIBRARY, library)
        progress.end(f"built in {time.monotonic() - started:.0f} s")


def _fail(torch, library: Path, command: list[str], errors: str) -> None:
    log = library.parent.parent / "error.log"
    log.write_text(" ".join(command) + "\n" + errors)
    first = next((line for line in errors.splitlines() if "error" in line), errors.strip()[:200])
    raise BuildError(
        f"the host kernels do not build for torch {torch.__version__} (tested: {TESTED}); log: {log}; first: {first}"
    )


class _Progress:
    """One line on stderr: counted on a terminal, plain otherwise."""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, total, 0
        self.terminal = sys.stderr.isatty()
        self._show("" if self.terminal else "\n")

    def _show(self, end: str) -> None:
        count = f" {self.done}/{self.total}" if self.terminal else ", about a minute"
        sys.stderr.write(f"{chr(13) if self.terminal else ''}fakegpu: {self.what}{count}{end}")
        sys.stderr.flush()

    def step(self) -> None:
        self.done += 1
        if self.terminal:
            self._show("")

    def end(self, text: str) -> None:
        sys.stderr.write(f", {text}\n" if self.terminal else f"fakegpu: host kernels {text}\n")


def _say(text: str) -> None:
    sys.stderr.write(f"fakegpu: {text}\n")


def main() -> int:
    try:
        import torch
    except ImportError:
        _say("torch is not installed: pip install torch")
        return 1
    try:
        print(ensure_built(torch))
    except BuildError as error:
        _say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
