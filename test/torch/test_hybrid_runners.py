"""The run_hybrid_*_numerics.py scripts in simulate mode: they pass, and a changed number or operation fails them."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "verification"))
from hybrid import job, reference  # noqa: E402

FSDP2 = [(2, "fp32", "fp32"), (2, "fp16", "fp32"), (2, "fp16", "parameter"), (2, "bf16", "fp32"), (2, "bf16", "parameter"),
         (4, "fp32", "fp32"), (4, "fp16", "fp32"), (4, "fp16", "parameter"), (4, "bf16", "fp32"), (4, "bf16", "parameter")]  # fmt: skip
QUICK = {(2, "bf16", "parameter")}


def passes(script: str, folder: Path, *arguments: str) -> dict:
    """The result a runner leaves in its report folder."""
    done = subprocess.run([sys.executable, f"verification/{script}.py", "--report-dir", str(folder), *arguments], cwd=ROOT,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0 and ": PASS" in done.stdout, done.stdout + done.stderr
    for name in ("rank0.json", "rank1.json", "cluster_report.json", "cluster_report.md"):
        assert (folder / name).exists()
    return json.loads((folder / "result.json").read_text())


@pytest.mark.timeout(300)
def test_ddp_variants(tmp_path: Path) -> None:
    result = passes("run_hybrid_ddp_numerics", tmp_path, "--variant", "all")
    assert len(result["variants"]) == 5


@pytest.mark.timeout(300)
def test_fsdp(tmp_path: Path) -> None:
    assert passes("run_hybrid_fsdp_numerics", tmp_path)["operations"]["reduce_scatter float32 sum 64 B"] == 4


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in FSDP2],
    ids=lambda case: f"{case[0]}-ranks-{case[1]}-reduce-{case[2]}",
)  # fmt: skip
def test_fsdp2(case: tuple, tmp_path: Path) -> None:
    world, precision, reduced = case
    passes("run_hybrid_fsdp2_numerics", tmp_path, "--world-size", str(world), "--precision", precision,
           "--reduce-precision", reduced)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ddp_over_two_tcp_nodes() -> None:
    done = subprocess.run(["test/run_hybrid_multinode.sh", "2"], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0 and ", two nodes over TCP: OK" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_number_off_by_one_bit_fails_a_rank(tmp_path: Path) -> None:
    """The worker compares with reference.py: another learning rate there is a wrong parameter here."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys; sys.path.insert(0, {str(ROOT / 'verification')!r})\n"
        "from hybrid import reference as r\nfrom fractions import Fraction\n"
        "real = r.train\n"
        "r.train = lambda *a: r.combine(lambda v: v + Fraction(1, 1 << 20), real(*a))\n"
    )
    command = [sys.executable, "verification/run_hybrid_ddp_numerics.py", "--variant", "basic", "--report-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
                          timeout=280, check=False)  # fmt: skip
    assert done.returncode == 1 and "basic: gradients of step 0" in done.stdout, done.stdout + done.stderr


def test_an_operation_more_or_less_is_named() -> None:
    entry = {"operation": "all_reduce", "data_type": "float32", "reduce_op": "sum", "logical_payload_bytes": 124}
    document = {"operation_timeline": {"entries": [entry, entry]}}
    key = ("all_reduce", "float32", "sum", 124)
    job.compare_operations(document, Counter({key: 2}), lambda entry: True)
    for expected in (Counter({key: 1}), Counter({key: 2, ("broadcast", "float32", None, 4): 1})):
        with pytest.raises(AssertionError, match="not expected .*missing"):
            job.compare_operations(document, expected, lambda entry: True)


def test_the_reference_is_its_own_derivative() -> None:
    """The worked-out gradient against a difference quotient, exact for a function that is linear in each number."""
    parameters = {name: reference.initial(name) for name in reference.SHAPES}
    x = reference.sample(1, 2)

    def loss() -> object:
        hidden = [sum(w * v for w, v in zip(row, x)) + b for row, b in zip(parameters["inner.weight"], parameters["inner.bias"])]
        out = [sum(w * v for w, v in zip(row, hidden)) + b for row, b in zip(parameters["outer.weight"], parameters["outer.bias"])]
        return sum(c * y for c, y in zip(reference.LOSS, out))

    found, before = reference.gradient(parameters, x), loss()
    for name, value in parameters.items():
        for index in range(len(value)):
            row, place = (value, index) if "bias" in name else (value[index], 1)
            row[place] += 1
            slope = loss() - before
            row[place] -= 1
            assert slope == (found[name][index] if "bias" in name else found[name][index][place]), name
