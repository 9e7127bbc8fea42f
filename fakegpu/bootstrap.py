"""Prepares a checkout for ./fgpu and ./ftest: virtual environment, packages, in-place build, torch host kernels.

Owns .venv of this checkout, its install stamp and the build stamp in build/. Uses the standard library only and
must parse on any Python 3.6+, since it runs before anything is installed. A second run compares file times only.
It never installs into an environment that the user manages (FAKEGPU_PYTHON, or an active one with fakegpu in it).
Called by the two shells with the name of what to run afterwards; the package itself never imports this module.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MINIMUM = (3, 10)
CANDIDATES = ("python3.11", "python3.12", "python3.13", "python3.10")
EXTRAS = "torch,test"
CHOSEN = "--chosen"  # first argument of a process that was started with the chosen interpreter
SOURCE_SUFFIXES = {".pyx", ".pxd", ".c", ".h", ".cpp", ".map", ".py", ".yaml", ".json", ".toml"}
# what a build reads; Python files of the package are used in place and need none
BUILD_INPUTS = ("setup.py", "pyproject.toml", "interposer", "fakegpu/_core", "fakegpu/torchhost", "data")


class Stop(Exception):
    """A step cannot be done; the text is one line that says what to install or to do."""


def say(text: str) -> None:
    print("fakegpu: " + text, file=sys.stderr, flush=True)


# ---- which interpreter -------------------------------------------------------------------------------------------


def active_environment() -> str:
    """Interpreter of the active environment if fakegpu is installed there from this checkout, else ''."""
    prefix = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX") or ""
    if not prefix or Path(prefix).resolve() == (ROOT / ".venv").resolve():
        return ""
    for record in Path(prefix).glob("lib/python3*/site-packages/fakegpu-*.dist-info/direct_url.json"):
        if json.loads(record.read_text()).get("url") == ROOT.as_uri():
            return str(Path(prefix) / "bin" / "python")
    return ""


def choose_python() -> str:
    """The interpreter that is to run everything; may not exist yet when it is .venv's."""
    own = os.environ.get("FAKEGPU_PYTHON", "")
    if own:
        found = shutil.which(own)
        if not found:
            raise Stop(
                "FAKEGPU_PYTHON=%s: no such program; name a Python %d.%d or newer, or unset it"
                % (own, MINIMUM[0], MINIMUM[1])
            )
        return found
    return active_environment() or str(ROOT / ".venv" / "bin" / "python")


def same_python(program: str) -> bool:
    """True if this process is `program`: same environment, not only the same binary behind the links."""
    if sys.argv[1] == CHOSEN:  # a shim starts another file than its own name says
        return True
    return Path(sys.executable).parent.resolve() == Path(program).parent.resolve()


def re_execute(program: str) -> None:
    os.execv(program, [program, "-E", __file__, CHOSEN] + sys.argv[1:])


def base_python() -> str:
    """An interpreter fit to make .venv: this one, or the first newer one on PATH."""
    if sys.version_info >= MINIMUM:
        return sys.executable
    for name in CANDIDATES:
        found = shutil.which(name)
        if found:
            return found
    raise Stop(
        "Python %d.%d or newer is needed, this is %s; install one (Debian: apt-get install python3.11 "
        "python3.11-venv python3.11-dev)" % (MINIMUM[0], MINIMUM[1], sys.version.split()[0])
    )


# ---- steps -------------------------------------------------------------------------------------------------------


def run_step(text: str, command: list, hint: str) -> None:
    """Run one command quietly; a failure shows the end of its output and stops with the hint."""
    say(text + " ...")
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=str(ROOT), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        tail = done.stdout.decode(errors="replace").strip().splitlines()[-12:]
        print("\n".join("    " + line for line in tail), file=sys.stderr)
        raise Stop("%s failed (exit status %d): %s" % (text, done.returncode, hint))
    if time.monotonic() - began > 5:
        say("    done in %d s" % (time.monotonic() - began))


def make_environment() -> None:
    """Create .venv with pip in it."""
    python = base_python()
    version = "%d.%d" % sys.version_info[:2]
    run_step(
        "creating .venv",
        [python, "-m", "venv", str(ROOT / ".venv")],
        "install Python's venv module (Debian: apt-get install python%s-venv) or set FAKEGPU_PYTHON" % version,
    )


def check_tools() -> None:
    """A compiler and Python's headers, before anything long is begun."""
    compiler = (os.environ.get("CC") or "gcc").split()[0]
    if not any(shutil.which(name) for name in (compiler, "cc", "clang")):
        raise Stop("no C compiler found; install one (Debian: apt-get install gcc g++) or set CC")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        raise Stop(
            "Python's C headers are missing; install them (Debian: apt-get install python%d.%d-dev)"
            % sys.version_info[:2]
        )


def content_digest(paths: list) -> str:
    """One digest over names and bytes of files of this checkout."""
    digest = hashlib.sha256()
    for name in paths:
        digest.update(name.encode() + b"\0" + hashlib.sha256((ROOT / name).read_bytes()).digest())
    return digest.hexdigest()


def install_stamp() -> Path:
    return Path(sys.prefix) / "fakegpu-install.json"


def install_wanted() -> dict:
    return {"root": str(ROOT), "digest": content_digest(["pyproject.toml", "setup.py"]), "extras": EXTRAS}


def install_packages() -> bool:
    """pip install -e with torch and the test tools into .venv; True if anything was done (the build included)."""
    wanted = install_wanted()
    if read_json(install_stamp()) == wanted:
        return False
    check_tools()
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    network = "see the lines above; is a package index reachable and is the disk full?"
    run_step(
        "installing the build tools into .venv", pip + ["setuptools>=77", "cython>=3.1", "pyyaml>=6", "wheel"], network
    )
    run_step(
        "installing torch, the test tools and fakegpu into .venv (about 3 GB, takes minutes)",
        pip + ["--no-build-isolation", "-e", "%s[%s]" % (ROOT, EXTRAS)],
        network,
    )
    write_json(install_stamp(), wanted)
    return True


def build_inputs() -> dict:
    """Name -> [mtime_ns, size] of every file a build reads."""
    found = {}
    for top in BUILD_INPUTS:
        path = ROOT / top
        files = path.rglob("*") if path.is_dir() else [path]
        for file in files:
            name = file.relative_to(ROOT).as_posix()
            # Cython's output lies beside its source
            if file.suffix not in SOURCE_SUFFIXES or (file.suffix == ".c" and name.startswith("fakegpu/_core/")):
                continue
            try:
                status = file.stat()
            except FileNotFoundError:  # another process's temporary file
                continue
            found[name] = [status.st_mtime_ns, status.st_size]
    return found


def build_stamp() -> Path:
    return (
        ROOT
        / "build"
        / ("bootstrap-%s-%s.json" % (sys.implementation.cache_tag, hashlib.sha256(sys.prefix.encode()).hexdigest()[:8]))
    )


def build_in_place(built_already: bool) -> None:
    """Compile _core, the libraries and torch's host kernels where a source changed since the last time."""
    inputs = build_inputs()
    before = read_json(build_stamp())
    if before.get("files") == inputs and not built_already:
        return
    digest = content_digest(sorted(inputs))
    if before.get("digest") != digest or built_already:
        check_tools()
        if not built_already:
            run_step(
                "building fakegpu/_core and the libraries",
                [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
                "the compiler's message is above",
            )
        build_torch_kernels()
    write_json(build_stamp(), {"files": inputs, "digest": digest})


def build_torch_kernels() -> None:
    """The cached C++ extension for this torch; its own module knows whether there is anything to do."""
    has_torch = any((Path(folder) / "torch" / "version.py").exists() for folder in sys.path if folder)
    if not has_torch or not (ROOT / "fakegpu" / "torchhost" / "build.py").exists():
        return
    if not any(shutil.which(name) for name in ((os.environ.get("CXX") or "g++").split()[0], "c++", "clang++")):
        raise Stop("no C++ compiler found; install one (Debian: apt-get install g++) or set CXX")
    run_step(
        "preparing the host kernels for torch (compiles 1-2 minutes, once per torch version)",
        [sys.executable, "-m", "fakegpu.torchhost.build"],
        "the compiler's message is above",
    )


def read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def write_json(path: Path, value: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value))
    os.replace(str(new), str(path))


# ---- the whole ---------------------------------------------------------------------------------------------------


def ready() -> bool:
    """True if nothing has to be installed or built; file times only."""
    if in_own_environment() and read_json(install_stamp()) != install_wanted():
        return False
    return read_json(build_stamp()).get("files") == build_inputs()


def in_own_environment() -> bool:
    return Path(sys.prefix).resolve() == (ROOT / ".venv").resolve()


def prepare() -> None:
    """Bring this checkout up to date, in the interpreter that everything will run in (may replace the process)."""
    python = choose_python()
    if os.access(python, os.X_OK) and same_python(python) and ready():
        return
    (ROOT / "build").mkdir(exist_ok=True)
    lock = os.open(str(ROOT / "build" / "bootstrap.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run prepares this checkout; waiting for it ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.access(python, os.X_OK):
            make_environment()
        if not same_python(python):
            re_execute(python)  # the lock is close-on-exec; the new process takes it again
        if sys.version_info < MINIMUM:
            raise Stop("%s is Python %s; %d.%d or newer is needed" % ((python, sys.version.split()[0]) + MINIMUM))
        installed = install_packages() if in_own_environment() else False
        build_in_place(installed)
    finally:
        os.close(lock)


def run_target(target: str, arguments: list) -> int:
    """Hand over to the command line or the test runner, in this process."""
    sys.path.insert(0, str(ROOT))
    if target == "ftest":
        sys.path.insert(0, str(ROOT / "test"))
        from suites import main
    else:
        from fakegpu.cli import main
    return main(arguments)


def entry() -> int:
    try:
        prepare()
    except Stop as stop:
        say("error: %s" % stop)
        return 2
    except OSError as error:
        say("error: this checkout cannot be prepared: %s" % error)
        return 2
    except KeyboardInterrupt:
        return 130
    arguments = [a for a in sys.argv[1:2] if a != CHOSEN] + sys.argv[2:]
    return run_target(arguments[0], arguments[1:])


if __name__ == "__main__":
    # the script's own folder comes first on the path and would hide standard modules behind the package's
    if Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
        del sys.path[0]
    sys.exit(entry())
