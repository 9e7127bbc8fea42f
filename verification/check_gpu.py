#!/usr/bin/env python3
"""Checks that need a real NVIDIA GPU: real compute with simulated communication (hybrid mode), two ranks on one GPU.

On a machine without one it says that nothing was checked and exits with the status by which pytest tells that no test
ran, never 0. `./ftest gpu` runs it.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTHING_RAN = 5  # pytest.ExitCode.NO_TESTS_COLLECTED


def main() -> int:
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        print("gpu: SKIPPED: this machine has no NVIDIA device; nothing was checked")
        return NOTHING_RAN
    command = [sys.executable, "-m", "fakegpu", "run", "--mode", "hybrid", "torchrun", "--standalone", "--nproc-per-node",
               "2", "test/programs/collectives.py", "--device", "0"]
    done = subprocess.run(command, cwd=ROOT, check=False)
    print(f"gpu: {'OK' if done.returncode == 0 else 'FAILED'}: every collective on two ranks that share a real GPU")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
