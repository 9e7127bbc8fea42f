"""What goes wrong between ranks is an error on every member, whose text says who did what; real coordinator."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import fakegpu
from fakegpu import errors
from fakegpu.membership import world_id

sys.path.insert(0, str(Path(__file__).parent))
from worlds import crashing, kill, make_id, run_ranks, run_threads, values

LONG_MS = 30_000  # never reached by a test that works
SHORT_MS = 400
pytestmark = pytest.mark.resilience


@pytest.fixture(params=["unix", "tcp"])
def coordinator(request):
    with fakegpu.Coordinator(request.param, chunk_bytes=4096) as made:
        yield made


def texts(results: dict, cls: type) -> list[str]:
    """Every rank raised the same class; their texts."""
    for rank, error in results.items():
        assert type(error) is cls, f"rank {rank}: {error!r}"
    return [results[rank].text for rank in sorted(results)]


# ---- mismatches ----


def test_different_collectives_print_both_sides(coordinator):
    def body(comm):
        array = np.zeros(4096 if comm.rank == 0 else 7, np.float32)
        return comm.all_reduce(array) if comm.rank == 0 else comm.all_gather(array)

    for text in texts(run_ranks(coordinator.address, 4, body), errors.MismatchError):
        assert "communicator 'world'" in text
        assert "rank 0: all_reduce #0 float32 count 4096 sum" in text
        assert "ranks 1-3: all_gather #0 float32 count 7" in text


MISMATCHES = {
    "count": (lambda c: c.all_reduce(np.zeros(409600 - 2 * c.rank, np.float32)), ["count 409600 sum", "count 409598"]),
    "dtype": (
        lambda c: c.all_reduce(np.zeros(4, ["float32", "float64"][c.rank])),
        ["float32 count 4", "float64 count 4"],
    ),
    "op": (lambda c: c.all_reduce(np.zeros(4), op=["sum", "max"][c.rank]), ["count 4 sum", "count 4 max"]),
    "root": (lambda c: c.broadcast(np.zeros(4), root=c.rank), ["root 0", "root 1"]),
}


@pytest.mark.parametrize("case", MISMATCHES, ids=str)
def test_every_field_is_compared(coordinator, case):
    body, expected = MISMATCHES[case]
    for text in texts(run_ranks(coordinator.address, 2, body), errors.MismatchError):
        assert all(part in text for part in expected), text


def test_premulsum_factors_and_unused_fields_may_differ(coordinator):
    def body(comm):
        comm.all_reduce(np.ones(3), op="premulsum", scalar=comm.rank)
        return comm.all_gather(np.ones(3)).sum()

    assert values(run_ranks(coordinator.address, 2, body)) == [6.0, 6.0]


def test_uneven_pair_is_named(coordinator):
    def body(comm):
        with comm.group():
            comm.send(np.zeros(2 if comm.rank == 0 else 3), 1 - comm.rank)
            comm.recv(np.zeros(3), 1 - comm.rank)

    for text in texts(run_ranks(coordinator.address, 2, body), errors.MismatchError):
        assert "pair 0 -> 1" in text
        assert "rank 0 sent 2 float64, rank 1 expected 3 float64" in text


def test_a_mismatch_does_not_wait_for_a_rank_that_never_comes(coordinator):
    """Two of three ranks differ: they learn it after a short grace, not after the time-out."""
    end = threading.Event()

    def body(comm):
        if comm.rank == 2:
            return end.wait(30)
        try:
            return comm.all_reduce(np.zeros(1 + comm.rank))
        finally:
            end.set()

    started = time.monotonic()
    results = run_ranks(coordinator.address, 3, body, timeout_ms=LONG_MS)
    assert time.monotonic() - started < 15
    for rank in (0, 1):
        assert isinstance(results[rank], errors.MismatchError)
        assert "not there yet: rank 2" in results[rank].text


# ---- ranks that never come ----


def test_missing_rank_is_named_with_what_it_did_last(coordinator):
    def body(comm):
        comm.barrier()
        if comm.rank == 3:
            return wait_for_error(comm)
        return comm.all_reduce(np.zeros(5, np.int32))

    for text in texts(run_ranks(coordinator.address, 4, body, timeout_ms=SHORT_MS), errors.MissingRankError):
        assert f"timed out after {SHORT_MS} ms" in text
        assert "ranks 0-2: all_reduce #1 int32 count 5 sum" in text
        assert "never joined: rank 3 (last seen in rank 3: barrier #0)" in text


def wait_for_error(comm) -> None:
    """Do nothing until the communicator's error arrives, then raise it."""
    client = comm.client
    with client._changed:
        assert client._changed.wait_for(lambda: comm.error is not None, 30)
    comm.check()


def test_the_longest_timeout_of_the_submitters_counts(coordinator):
    uid = make_id(coordinator.address)

    def run(rank: int):
        timeout = 1500 if rank == 0 else 100
        with fakegpu.connect(coordinator.address, rank=rank, world_size=3, timeout_ms=5000) as client:
            comm = client.init(3, rank, uid)
            client.timeout_ms = timeout
            if rank == 2:
                return wait_for_error(comm)
            return comm.barrier()

    started = time.monotonic()
    for text in texts(run_threads(3, run), errors.MissingRankError):
        assert "timed out after 1500 ms" in text
    assert time.monotonic() - started > 1.4


def test_init_timeout_names_who_never_joined(coordinator):
    def run(rank: int):
        with fakegpu.connect(coordinator.address, rank=rank, world_size=4, timeout_ms=SHORT_MS) as client:
            return client.init(4, rank, world_id("s"), "late")

    for text in texts(run_threads(2, run), errors.MissingRankError):
        assert text.startswith(
            f"init of communicator 'late' of 4 ranks timed out after {SHORT_MS} ms: ranks 0-1 joined;"
        )
        assert "never joined: ranks 2-3" in text
        assert "was libnccl.so.2 preloaded" in text


def test_split_timeout_counts_the_callers(coordinator):
    def body(comm):
        return comm.split(0) if comm.rank == 1 else wait_for_error(comm)

    for text in texts(run_ranks(coordinator.address, 3, body, timeout_ms=SHORT_MS), errors.MissingRankError):
        assert "split of communicator 'world' timed out" in text
        assert "called by 1 of 3 parent ranks: rank 1; never called by ranks 0,2" in text


# ---- circular waits ----


def test_two_large_sends_without_group_are_a_deadlock():
    with fakegpu.Coordinator("unix", eager_bytes=1024) as made:

        def body(comm):
            array, peer = np.zeros(4096), 1 - comm.rank
            comm.send(array, peer)
            comm.recv(array, peer)

        for text in texts(run_ranks(made.address, 2, body, timeout_ms=SHORT_MS), errors.DeadlockError):
            assert "circular wait of global ranks 0 -> 1 -> 0" in text or "1 -> 0 -> 1" in text
            assert "send #0 to rank 1" in text and "send #0 to rank 0" in text


def test_the_same_in_one_group_or_small_passes(coordinator):
    def body(comm):
        peer, got = 1 - comm.rank, np.zeros(300_000)
        with comm.group():
            comm.send(np.full(300_000, comm.rank), peer)
            comm.recv(got.view(np.int64), peer)
        comm.send(np.arange(10), peer)
        return int(got.view(np.int64).sum()), comm.recv(np.zeros(10, np.int64), peer).sum()

    assert values(run_ranks(coordinator.address, 2, body)) == [(300_000, 45), (0, 45)]


def test_communicators_in_opposite_order_are_a_deadlock(coordinator):
    def body(comm):
        other = comm.split(0, name="other")
        first, second = (comm, other) if comm.rank == 0 else (other, comm)
        first.barrier()
        second.barrier()

    results = run_ranks(coordinator.address, 2, body, timeout_ms=SHORT_MS)
    found = [error.text for error in results.values() if isinstance(error, errors.DeadlockError)]
    assert found, results
    assert "'world'" in found[0] and "'other'" in found[0] and "circular wait" in found[0]


# ---- death, abort, leaving ----


def test_death_reaches_every_peer_within_a_second(coordinator):
    uid = make_id(coordinator.address)
    killed_at = []

    def run(rank: int):
        if rank == 1:
            with crashing(coordinator.address, rank=1, world_size=3, timeout_ms=LONG_MS) as client:
                client.init(3, 1, uid, "world").barrier()
            killed_at.append(time.monotonic())
            return None
        with fakegpu.connect(coordinator.address, rank=rank, world_size=3, timeout_ms=LONG_MS) as client:
            comm = client.init(3, rank, uid, "world")
            comm.barrier()
            try:
                comm.all_reduce(np.zeros(9))
            except errors.DeadRankError as error:
                return time.monotonic(), error.text

    results = values(run_threads(3, run))
    for told_at, text in (results[0], results[2]):
        assert told_at - killed_at[0] < 1.0
        assert "rank 1 (global rank 1, pid" in text and "died: its connection closed without BYE" in text
        assert "its last operation: barrier #0, finished" in text
    status = coordinator.status()
    assert status["communicators"] == [] and status["connections"] == 0


def test_abort_reaches_a_waiting_peer_with_the_reason(coordinator):
    def body(comm):
        if comm.rank == 1:
            while coordinator.status()["communicators"][0]["waiting"] == 0:
                pass  # until rank 0's submission is there
            comm.abort("watchdog: 5 s without progress")
            return "aborted"
        return comm.all_reduce(np.zeros(4))

    results = run_ranks(coordinator.address, 2, body, timeout_ms=LONG_MS)
    assert results[1] == "aborted"
    assert isinstance(results[0], errors.AbortedError)
    text = results[0].text
    assert "aborted by rank 1: watchdog: 5 s without progress" in text
    assert "waiting: rank 0: all_reduce #0 float64 count 4 sum; never joined: rank 1" in text


def test_other_communicators_go_on_after_one_failed(coordinator):
    def body(comm):
        part = comm.split(0, name="part")
        try:
            part.all_reduce(np.zeros(1 + comm.rank))
        except errors.MismatchError:
            return comm.all_reduce(np.ones(2)).sum()

    assert values(run_ranks(coordinator.address, 2, body)) == [4.0, 4.0]


@pytest.mark.parametrize("how", ["destroy", "bye"])
def test_a_rank_that_left_is_named_at_once(coordinator, how):
    uid = make_id(coordinator.address)
    left = threading.Event()

    def run(rank: int):
        with fakegpu.connect(coordinator.address, rank=rank, world_size=2, timeout_ms=LONG_MS) as client:
            comm = client.init(2, rank, uid, "world")
            if rank == 1:
                if how == "destroy":
                    comm.destroy()
            else:
                left.wait(30)
                return comm.all_reduce(np.zeros(3))
        return left.set()

    if how == "destroy":
        left.set()
    results = run_threads(2, run)
    assert isinstance(results[0], errors.RemoteError), results
    assert "rank 1" in results[0].text and "all_reduce #0" in results[0].text


def test_finalize_waits_for_everybody(coordinator):
    def body(comm):
        comm.barrier()
        comm.finalize()
        comm.destroy()
        return True

    assert values(run_ranks(coordinator.address, 3, body)) == [True] * 3


def test_finalize_names_who_never_called_it(coordinator):
    uid = make_id(coordinator.address)

    def run(rank: int):
        with fakegpu.connect(coordinator.address, rank=rank, world_size=2, timeout_ms=3000) as client:
            comm = client.init(2, rank, uid)
            return comm.finalize() if rank == 0 else wait_for_error(comm)

    for text in texts(run_threads(2, run), errors.MissingRankError):
        assert "finalize timed out: called by rank 0; never called by rank 1" in text


# ---- recovery ----


def test_shrink_after_a_death(coordinator):
    uid = make_id(coordinator.address)

    def run(rank: int):
        client = fakegpu.connect(coordinator.address, rank=rank, world_size=3, timeout_ms=LONG_MS)
        comm = client.init(3, rank, uid, "world")
        comm.barrier()
        if rank == 2:
            kill(client)
            return None
        with client:
            with pytest.raises(errors.DeadRankError):
                comm.all_reduce(np.ones(1))
                comm.barrier()
            small = comm.shrink([2], abort=True)
            return small.rank, small.nranks, small.all_reduce(np.ones(2) * (rank + 1)).tolist()

    assert values(run_threads(3, run))[:2] == [(0, 2, [3.0, 3.0]), (1, 2, [3.0, 3.0])]


def test_shrink_of_a_healthy_parent_keeps_it(coordinator):
    def body(comm):
        comm.barrier()
        if comm.rank == 1:
            small = None
        else:
            small = comm.shrink([1])
            assert (small.nranks, small.global_ranks) == (2, (0, 2))
            small.barrier()
        return comm.all_reduce(np.ones(1))[0]

    assert values(run_ranks(coordinator.address, 3, body)) == [3.0] * 3


def test_revoke_ends_operations_and_leaves_shrink(coordinator):
    def body(comm):
        if comm.rank == 2:
            comm.revoke()
            return wait_for_error(comm)
        with pytest.raises(errors.AbortedError, match="revoked by rank 2"):
            comm.barrier()
        return comm.shrink([2]).all_reduce(np.ones(1))[0]

    results = run_ranks(coordinator.address, 3, body)
    assert [results[0], results[1]] == [2.0, 2.0]


def test_report_holds_failure_and_recovery(tmp_path):
    path = tmp_path / "report.json"
    with fakegpu.Coordinator(report=path) as made:

        def body(comm):
            try:
                comm.all_reduce(np.zeros(1 + comm.rank))
            except errors.MismatchError:
                comm.shrink([2], abort=True) if comm.rank < 2 else None

        values(run_ranks(made.address, 3, body))
    resilience = made.document["resilience"]
    assert (resilience["failure_count"], resilience["recovery_count"]) == (1, 1)
    assert resilience["failure_events"][0]["error_code"] == 100
    assert resilience["recovery_events"][0]["surviving_ranks"] == [0, 1]
    assert path.exists() and path.with_suffix(".md").exists()


# ---- unique ids ----


def test_ids_are_good_for_one_communicator_of_one_coordinator(coordinator):
    with fakegpu.connect(coordinator.address, rank=0, world_size=1, timeout_ms=5000) as client:
        used = client.unique_id()
        client.init(1, 0, used)
        with pytest.raises(errors.StaleIdError, match="used before"):
            client.init(1, 0, used)
        with pytest.raises(errors.StaleIdError, match="not made by"):
            client.init(1, 0, bytes(range(128)))
        with fakegpu.Coordinator() as another, fakegpu.connect(another.address, rank=0, timeout_ms=5000) as foreign:
            with pytest.raises(errors.StaleIdError, match="another coordinator made it"):
                client.init(1, 0, foreign.unique_id())
        client.init(1, 0, world_id("w"))
        client.init(1, 0, world_id("w"))  # the well-known id of a session serves again


def test_ranks_that_disagree_about_nranks(coordinator):
    uid = make_id(coordinator.address)

    def run(rank: int):
        with fakegpu.connect(coordinator.address, rank=rank, timeout_ms=LONG_MS) as client:
            return client.init(3 + rank, rank, uid)

    for text in texts(run_threads(2, run), errors.MismatchError):
        assert "nranks 3" in text and "nranks 4" in text or "gave 4" in text or "gave 3" in text


def test_a_rank_that_joins_twice_is_named(coordinator):
    uid = make_id(coordinator.address)

    def run(_rank: int):
        with fakegpu.connect(coordinator.address, rank=-1, timeout_ms=LONG_MS) as client:
            return client.init(2, 1, uid)

    for text in texts(run_threads(2, run), errors.ArgumentError):
        assert "rank 1 joined twice: pid" in text


def test_sessions_do_not_meet(coordinator):
    uid = make_id(coordinator.address)

    def run(rank: int):
        options = {"rank": rank, "world_size": 2, "timeout_ms": SHORT_MS, "session": f"s{rank}"}
        with fakegpu.connect(coordinator.address, **options) as client:
            return client.init(2, rank, uid)

    results = run_threads(2, run)
    refused = [error for error in results.values() if isinstance(error, errors.ArgumentError)]
    assert len(refused) == 1 and "session 's" in refused[0].text


def test_split_refuses_a_negative_colour(coordinator):
    def body(comm):
        with pytest.raises(errors.ArgumentError, match="color -5, expected -1"):
            comm.split(-5)
        return True

    assert values(run_ranks(coordinator.address, 2, body)) == [True, True]
