"""torch's own watchdog ends a job in which a rank left out a collective, and fakegpu names rank and operation."""

from pathlib import Path

import pytest
from launched import torchrun


@pytest.mark.timeout(400)
def test_a_skipped_all_reduce_times_out_and_is_named(tmp_path: Path) -> None:
    job = torchrun("skipped.py", 2, tmp_path, seconds=360, TORCH_NCCL_DUMP_ON_TIMEOUT="0")
    assert job.status != 0
    assert "Watchdog caught collective operation timeout" in job.output
    for text in (job.output, job.failures()):
        assert "all_reduce #1" in text and "never joined: rank 1" in text, text[-3000:]
