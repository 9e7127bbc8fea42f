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


def test_an_outcome_that_is_not_in_the_manifest_is_named():
    sys.path.insert(0, str(SCRIPT.parent))
    import run_opdb

    def record(entry, status):
        return {"entry": entry, "dtype": "float32", "status": status, "detail": ""}

    manifest = {"others": {"refused": {"b": ["float32"]}, "agree (random)": {"c": ["float32"]}}}
    same = [record("a", "agree"), record("b", "refused"), record("c", "agree (random)")]
    assert run_opdb.differences(same, manifest) == []
    other = run_opdb.differences([record("a", "refused"), record("b", "agree")], manifest)
    assert other == ["a [float32]: refused, the manifest says agree; ", "b [float32]: agree, the manifest says refused; ",
                     "c [float32]: agree (random) in the manifest, not run"]
