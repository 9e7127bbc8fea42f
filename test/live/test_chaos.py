"""One rank does something fatal at a random moment: nobody hangs, everybody learns it, nothing is left."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fakegpu
from fakegpu import errors

sys.path.insert(0, str(Path(__file__).parent))
from worlds import kill, make_id, run_threads

pytestmark = pytest.mark.resilience
EXAMPLES = int(os.environ.get("FAKEGPU_TEST_EXAMPLES", "40"))
FATAL = ("kill", "abort", "close", "destroy", "mismatch", "kill-in-payload")
CALLS = ("all_reduce", "all_gather", "all_to_all", "barrier", "ring", "broadcast")


@pytest.fixture(scope="module", params=["unix", "tcp"])
def coordinator(request):
    with fakegpu.Coordinator(request.param, chunk_bytes=1024, window=2, eager_bytes=256) as made:
        yield made


def call(comm, kind: str, count: int) -> None:
    """One operation; `ring` sends to the next rank and receives from the previous one, in a group."""
    array = np.ones(count * comm.nranks, np.float32)
    if kind == "barrier":
        comm.barrier()
    elif kind == "ring":
        with comm.group():
            comm.send(array, (comm.rank + 1) % comm.nranks)
            comm.recv(np.empty_like(array), (comm.rank - 1) % comm.nranks)
    else:
        getattr(comm, kind)(array)


def fatal(comm, how: str, kind: str, count: int) -> None:
    """What the chosen rank does instead of its next operation."""
    client = comm.client
    if how == "kill":
        kill(client)
    elif how == "abort":
        comm.abort("chaos")
    elif how == "close":
        client.close()
    elif how == "destroy":
        comm.destroy()
    elif how == "mismatch":
        comm.all_reduce(np.ones(count + 12345, np.int8))
    else:  # dies with half of a round on its way
        right = client._wire.send

        def half(parts: list) -> None:
            right([b"".join(map(bytes, parts))[: 40 + len(parts)]] if len(parts) > 1 else parts)
            if len(parts) > 1:
                kill(client)
                raise ConnectionError("killed")

        client._wire.send = half
        call(comm, kind, count)


def end(client) -> None:
    if not client._closed:
        client.close()


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    nranks=st.integers(2, 5),
    victim=st.integers(0, 4),
    how=st.sampled_from(FATAL),
    before=st.lists(st.tuples(st.sampled_from(CALLS), st.integers(0, 2000)), max_size=4),
    then=st.tuples(st.sampled_from(CALLS), st.integers(0, 2000)),
)
def test_a_fatal_rank_hangs_nobody(coordinator, nranks, victim, how, before, then):
    victim %= nranks
    if how == "mismatch" and then[0] == "ring":
        then = ("barrier", 0)  # a collective against sends is found at the time-out only
    if how == "kill-in-payload":
        then = ("all_reduce", max(then[1], 1))
    uid = make_id(coordinator.address)

    def run(rank: int):
        client = fakegpu.connect(coordinator.address, rank=rank, world_size=nranks, timeout_ms=30_000)
        try:
            comm = client.init(nranks, rank, uid)
            for kind, count in before:
                call(comm, kind, count)
            if rank == victim:
                return fatal(comm, how, *then)
            call(comm, *then)
            return comm.barrier()
        finally:
            end(client)

    started = time.monotonic()
    results = run_threads(nranks, run)
    assert time.monotonic() - started < 20, "nobody waited for the time-out"
    for rank, result in results.items():
        if rank != victim:
            assert isinstance(result, errors.CommunicatorError), (rank, result)
            assert str(victim) in result.text
    wait_until_idle(coordinator)


def wait_until_idle(coordinator) -> None:
    """The coordinator has forgotten everything once it has seen the connections' ends."""
    until = time.monotonic() + 10
    while True:
        status = coordinator.status()
        left = status["communicators"], status["buffered_bytes"], status["connections"], status["gathering"]
        if left == ([], 0, 0, 0):
            return
        assert time.monotonic() < until, status
