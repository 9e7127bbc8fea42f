#!/usr/bin/env python3
"""Runs every benchmark of this folder, one after the other; exit status 1 when a floor is missed. `./ftest bench`."""

import subprocess
import sys
from pathlib import Path


def main() -> int:
    here = Path(__file__).resolve()
    failed = []
    for script in sorted(here.parent.glob("*.py")):
        if script != here and subprocess.run([sys.executable, script], check=False).returncode:
            failed.append(script.stem)
    print(f"benchmarks: {'FAILED: ' + ', '.join(failed) if failed else 'OK'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
