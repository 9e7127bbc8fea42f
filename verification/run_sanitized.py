#!/usr/bin/env python3
"""Core and native tests under AddressSanitizer and UndefinedBehaviorSanitizer (`--thread`: ThreadSanitizer).

Builds a copy of the tracked files in a temporary folder, so that the checkout keeps its release build; leaks are not
looked for, since the interpreter keeps memory on purpose. Exit status of pytest. `./ftest sanitize` runs it.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNTIMES = {"address": "libasan.so", "thread": "libtsan.so"}


def copy_tracked(target: Path) -> None:
    """The tracked files as they are in the work tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        source = ROOT / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--thread", action="store_true")
    parser.add_argument("tests", nargs="*", default=["test/core", "test/native"])
    options = parser.parse_args()
    kind = "thread" if options.thread else "address"
    compiler = os.environ.get("CC", "gcc")
    runtime = subprocess.run([compiler, f"-print-file-name={RUNTIMES[kind]}"], check=True, capture_output=True, text=True)
    if not Path(runtime.stdout.strip()).is_absolute():
        print(f"sanitize: error: {compiler} has no {RUNTIMES[kind]}; install it (Debian: apt-get install libgcc-12-dev)")
        return 2
    with tempfile.TemporaryDirectory(prefix="fakegpu-sanitize-") as name:
        copy_tracked(Path(name))
        environment = {**os.environ, "FAKEGPU_SANITIZE": kind, "PYTHONPATH": name}
        subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=name, env=environment, check=True)
        environment |= {
            "LD_PRELOAD": os.path.realpath(runtime.stdout.strip()),
            "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:handle_segv=0",
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
            "TSAN_OPTIONS": "halt_on_error=1:ignore_noninstrumented_modules=1",
            "FAKEGPU_TEST_SANITIZED": kind,
        }
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options.tests], cwd=name,
                              env=environment, check=False)
    print(f"sanitize ({kind}): {'OK' if done.returncode == 0 else 'FAILED'}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
