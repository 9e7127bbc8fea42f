"""A part of the parallel training scripts on two ranks, and all of them on 2, 4 and 8 (slow); run.py is the same by hand."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parent))
import common  # noqa: E402
import run  # noqa: E402

QUICK = {
    "ddp": "sgd,adamw,no_sync,unused_parameters,uneven_inputs,power_sgd,sync_batch_norm",
    "fsdp2": "sgd,bf16_reduce_fp32,distributed_checkpoint",
    "mesh": "fsdp_tensor_sequence,pipeline_fsdp_interleaved",
}


@pytest.mark.timeout(420)
@pytest.mark.parametrize("script", QUICK)
def test_two_ranks_train_like_one_process(script: str) -> None:
    result = run.verdict(script, 2, QUICK[script])
    assert not result["failed"] and result["passed"] == sorted(QUICK[script].split(",")), result["output"][-6000:]


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("ranks", run.RANKS)
@pytest.mark.parametrize("script", run.SCRIPTS)
def test_every_check(script: str, ranks: int) -> None:
    result = run.verdict(script, ranks)
    assert not result["failed"] and result["passed"], result["output"][-6000:]


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_a_difference_beyond_the_bounds_is_an_error(optimizer: str) -> None:
    expected = {"weight": torch.linspace(-1, 1, 5)}
    common.same({"weight": expected["weight"] * (1 + 1e-6)}, expected, optimizer)
    with pytest.raises(AssertionError, match="weight differs by"):
        common.same({"weight": expected["weight"] + 1e-4}, expected, optimizer)
    with pytest.raises(AssertionError, match="names differ"):
        common.same({}, expected, optimizer)


def test_low_precision_is_neither_exact_nor_far() -> None:
    start, expected = {"weight": torch.zeros(4)}, {"weight": torch.ones(4)}
    common.near({"weight": torch.full((4,), 1.01)}, expected, start)
    with pytest.raises(AssertionError, match="of the way moved"):
        common.near({"weight": torch.full((4,), 1.03)}, expected, start)
    with pytest.raises(AssertionError, match="nothing was computed"):
        common.near(expected, expected, start)
