"""Counts beyond 2^31 elements and payloads beyond 4 GiB: first and last element of each block are exact."""

from __future__ import annotations

import nccl_bodies as bodies
import pytest
from nccl_world import make_world

GIB = 1 << 30


def memory_available() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))


@pytest.mark.slow
@pytest.mark.skipif(memory_available() < 12 * GIB, reason="needs 12 GiB of free memory")
def test_an_all_gather_past_4_gib_on_each_rank():
    count = int(2.2 * GIB)
    with make_world(2, "shm", timeout_ms=120_000) as world:
        assert world.run(bodies.huge_all_gather, count, timeout=240) == [[(10, 20), (11, 21)]] * 2
