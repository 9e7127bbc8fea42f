"""A few of PyTorch's own distributed tests, so that every run of the quick tests meets them (all: README.md)."""

import subprocess
import sys
from pathlib import Path

SUBSET = [
    "test_DistributedDataParallel_requires_grad",
    "test_all_gather_into_cat_tensor_cuda",
    "test_all_reduce_sum_cuda",
    "test_all_to_all_single_unequal_split_cuda",
    "test_batch_isend_irecv_nccl",
    "test_broadcast_cuda",
    "test_monitored_barrier_allreduce_hang",
    "test_reduce_scatter_v_cuda",
]


def test_pytorch_tests_pass_at_two_ranks() -> None:
    command = [sys.executable, str(Path(__file__).with_name("run.py")), "--world-size", "2",
               "--start-method", "forkserver", *SUBSET]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
    assert "as expected" in done.stdout and f"{len(SUBSET)} passed, 0 failed" in done.stdout, done.stdout[-2000:]
