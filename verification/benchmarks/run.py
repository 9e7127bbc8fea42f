#!/usr/bin/env python3
"""Runs the benchmarks that have floors, one after the other; exit status 1 when one is missed. `./ftest bench`."""

import subprocess
import sys
from pathlib import Path


HERE = Path(__file__).resolve().parent
BENCHMARKS = ("startup", "core", "allreduce")


def main() -> int:
    failed = [name for name in BENCHMARKS if subprocess.run([sys.executable, HERE / f"{name}.py"], check=False).returncode]
    print(f"benchmarks: {'FAILED: ' + ', '.join(failed) if failed else 'OK'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
