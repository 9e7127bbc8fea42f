"""A sixth of PyTorch's operator database on a fake device against the CPU; verification/opdb.py is the whole."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="torch's operator database needs expecttest")
SCRIPT = Path(__file__).resolve().parents[2] / "verification" / "opdb.py"


def test_operator_database_agrees_with_the_cpu(torch_environment):
    command = [sys.executable, str(SCRIPT), "--dtypes", "float32,float16", "--samples", "2", "--shard", "1/6"]
    done = subprocess.run(command, env=torch_environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0 and ", 0 disagree," in done.stdout, done.stdout + done.stderr


def test_a_wrong_operator_is_seen(torch_environment):
    """The check itself: an operator that is made wrong on CUDA fails it."""
    code = ("import runpy, sys, torch\n"
            "library = torch.library.Library('aten', 'IMPL')\n"
            "library.impl('sinh', lambda x: torch.cosh(x), 'CUDA', allow_override=True)\n"
            f"sys.argv = ['opdb.py', '--dtypes', 'float32', '--only', 'sinh']\nrunpy.run_path({str(SCRIPT)!r}, "
            "run_name='__main__')")
    done = subprocess.run([sys.executable, "-c", code], env=torch_environment, capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 1 and "sinh [float32] AssertionError" in done.stdout, done.stdout + done.stderr
