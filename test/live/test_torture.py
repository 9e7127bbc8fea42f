"""The first part of the long suites chaos, fuzz-wire and soak, as CI runs it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHORT = {
    "chaos": ("--scenarios", "18", "--workers", "2"),
    "fuzz_wire": ("--frames", "20000", "--live", "600"),
    "soak": ("--operations", "4000"),
}


@pytest.mark.resilience
@pytest.mark.parametrize("name", SHORT)
def test_a_short_run_passes(name: str) -> None:
    done = subprocess.run([sys.executable, f"verification/{name}.py", *SHORT[name]], cwd=ROOT, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
