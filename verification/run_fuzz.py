"""`./ftest fuzz`: thousands of random NCCL programs on 2 to 8 ranks; right, or refused on every member, and nothing left.

Runs test/native/test_nccl_fuzz.py with --programs programs (5,000) and prints what the ranks held at the end. --seed N
draws other programs than the fixed ones.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", type=int, default=5000)
    parser.add_argument("--seed", type=int, help="of hypothesis; without it the programs are always the same")
    options = parser.parse_args()
    command = [sys.executable, "-m", "pytest", "-q", "-x", "test/native/test_nccl_fuzz.py"]
    if options.seed is not None:
        command += [f"--hypothesis-seed={options.seed}"]
    profile = {"HYPOTHESIS_PROFILE": "dev"} if options.seed is not None else {}
    environment = {**os.environ, **profile, "FAKEGPU_FUZZ_PROGRAMS": str(options.programs)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
