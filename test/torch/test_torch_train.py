"""An unmodified DDP program under torchrun on two fake GPUs: verification/train_ddp.py checks its own numbers."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]


def test_ddp_training_equals_one_cpu_process():
    command = [sys.executable, "-m", "fakegpu", "run", "--device-count", "2", "--quiet", "torchrun", "--standalone",
               "--nproc-per-node", "2", str(ROOT / "verification" / "train_ddp.py"), "--steps", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    verdicts = [line for line in done.stdout.splitlines() if line.startswith("rank ")]
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(verdicts) == 2 and all(": OK" in line for line in verdicts)
