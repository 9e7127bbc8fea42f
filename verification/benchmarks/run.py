#!/usr/bin/env python3
"""Runs the benchmarks that have floors, one after the other; exit status 1 when one is missed. `./ftest bench`."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path


HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BENCHMARKS = ("startup", "core", "allreduce")
ON_A_DEVICE = ("operators", "training_step")  # torch on one fake device beside torch on the CPU
LAUNCH = [sys.executable, "-m", "fakegpu", "run", "--quiet", "--device-count", "1"]


def main() -> int:
    commands = {name: [sys.executable, HERE / f"{name}.py"] for name in BENCHMARKS}
    if importlib.util.find_spec("torch"):
        commands |= {name: [*LAUNCH, sys.executable, HERE / f"{name}.py", "--check"] for name in ON_A_DEVICE}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    failed = [name for name, command in commands.items() if subprocess.run(command, env=environment, check=False).returncode]
    print(f"benchmarks: {'FAILED: ' + ', '.join(failed) if failed else 'OK'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
