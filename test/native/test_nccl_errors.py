"""Every communication mistake is named on every rank within the time-out: mismatches, missing and dead ranks, deadlocks."""

from __future__ import annotations

import re
import time

import nccl_bodies as bodies
import pytest
from nccl_world import Failed, make_world

INVALID_ARGUMENT, INVALID_USAGE, REMOTE, TIMEOUT = 4, 5, 6, 8
pytestmark = pytest.mark.resilience
TRANSPORTS = ["shm", "socket", "tcp"]


def failures(world, body, *arguments, timeout: float = 40.0) -> list[Failed]:
    """Every rank failed; the same result and text came to all that the library told."""
    found = world.run(body, *arguments, timeout=timeout, allow_failures=True)
    assert all(isinstance(f, Failed) and f.kind == "NcclError" for f in found), found
    return found


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_different_counts_name_both_and_who_sent_which(transport):
    with make_world(2, transport) as world:
        for failed in failures(world, bodies.submit, [("all_reduce", 409600), ("all_reduce", 409598)]):
            assert failed.result == INVALID_USAGE
            assert "409600" in failed.text and "409598" in failed.text
            assert re.search(r"rank 0\b", failed.text) and re.search(r"rank 1\b", failed.text)
        errors = world.run(bodies.raise_last)
        assert {code for code, _ in errors} == {INVALID_USAGE} and "409598" in errors[0][1]
        world.run(bodies.abort)


def test_different_collectives_print_sequence_kind_dtype_and_count():
    with make_world(2, "shm") as world:
        world.run(bodies.submit, [("all_reduce", 5)] * 2)
        for failed in failures(world, bodies.submit, [("all_reduce", 64), ("all_gather", 32)]):
            for part in ("all_reduce", "all_gather", "#1", "float32", "64", "32"):
                assert part in failed.text, part
        world.run(bodies.abort)


def test_three_to_one_is_grouped_by_what_was_submitted():
    with make_world(4, "shm") as world:
        kinds = [("all_reduce", 64)] * 3 + [("all_gather", 64)]
        for failed in failures(world, bodies.submit, kinds):
            assert re.search(r"ranks 0\D{1,3}2", failed.text) and re.search(r"rank 3\b", failed.text), failed.text
        world.run(bodies.abort)


@pytest.mark.parametrize(
    ("dtypes", "ops", "roots", "parts"),
    [
        ([7, 2], [0, 0], None, ("float32", "int32")),
        ([7, 7], [0, 2], None, ("sum", "max")),
        ([7, 7], [0, 0], [0, 1], ("root 0", "root 1")),
    ],
    ids=["dtype", "reduction", "root"],
)
def test_differing_arguments(dtypes, ops, roots, parts):
    with make_world(2, "shm") as world:
        for failed in failures(world, bodies.submit_with, dtypes, ops, roots):
            for part in parts:
                assert part in failed.text.replace("=", " "), failed.text
        world.run(bodies.abort)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_never_joins_is_named(transport):
    with make_world(3, transport, timeout_ms=700) as world:
        found = world.run(bodies.skip_last_rank, allow_failures=True)
        for failed in found[:2]:
            assert failed.result == TIMEOUT and "rank 2" in failed.text and "never" in failed.text
            assert 0.4 < failed.seconds < 10
        world.run(bodies.abort)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_dead_rank_is_told_at_once(transport):
    with make_world(2, transport, timeout_ms=30_000) as world:
        waiting = world.start(bodies.submit, [("all_reduce", 8)] * 2, ranks=[0])
        world.start(bodies.exit_now, ranks=[1])
        (failed,) = world.finish(waiting, timeout=15, allow_failures=True)
        assert failed.result == REMOTE and "rank 1" in failed.text and failed.seconds < 10
        started = time.monotonic()
        world.finish(world.start(bodies.destroy, ranks=[0]))
        assert time.monotonic() - started < 5


def test_an_abort_returns_promptly_and_reaches_the_peers():
    with make_world(2, "shm", timeout_ms=30_000) as world:
        (answer,) = world.finish(world.start(bodies.abort_from_another_thread, ranks=[0]))
        seconds, result = answer
        assert seconds < 5 and result != 0
        (failed,) = world.finish(world.start(bodies.submit, [("all_reduce", 8)] * 2, ranks=[1]), 15, allow_failures=True)
        assert failed.result == INVALID_USAGE and "abort" in failed.text
        world.finish(world.start(bodies.abort, ranks=[1]))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ungrouped_large_exchange_is_a_deadlock_and_grouped_passes(transport):
    with make_world(2, transport, timeout_ms=700) as world:
        assert world.run(bodies.large_exchange, 400_000, True) == [True, True]
        assert world.run(bodies.large_exchange, 1000, False) == [True, True]
        for failed in failures(world, bodies.large_exchange, 400_000, False):
            assert failed.result == TIMEOUT and re.search(r"0 -> 1 -> 0|1 -> 0 -> 1", failed.text), failed.text
        world.run(bodies.abort)


def test_a_pair_that_disagrees_names_pair_sent_and_expected():
    with make_world(2, "shm") as world:
        for failed in failures(world, bodies.uneven_pair):
            assert re.search(r"0 -> 1|rank 0.*rank 1", failed.text) and "2" in failed.text and "3" in failed.text
        world.run(bodies.abort)


def test_two_communicators_in_opposite_order_print_the_circle():
    with make_world(2, "shm", timeout_ms=900) as world:
        found = failures(world, bodies.opposite_communicators)
        assert all(f.result == TIMEOUT for f in found)
        assert any(re.search(r"->.*->", f.text) for f in found), found


def test_a_missing_member_of_an_init_is_named():
    with make_world(2, "shm", timeout_ms=600) as world:
        uid = world.finish(world.start(bodies.unique_id, ranks=[0]))[0]
        (failed,) = world.finish(world.start(bodies.init, uid, "late", ranks=[1]), allow_failures=True)
        assert failed.result == TIMEOUT and "rank 0" in failed.text
        world.run(bodies.destroy)


def test_a_used_unique_id_is_refused_with_its_reason():
    with make_world(2, "shm") as world:
        uid = world.finish(world.start(bodies.unique_id, ranks=[0]))[0]
        world.run(bodies.init, uid, "first")
        for failed in failures(world, bodies.init, uid, "again"):
            assert failed.result == INVALID_USAGE and "used before" in failed.text
        world.run(bodies.destroy, "first")
        world.run(bodies.destroy)


def test_a_failed_communicator_leaves_the_others_alone():
    with make_world(2, "shm") as world:
        uid = world.finish(world.start(bodies.unique_id, ranks=[0]))[0]
        world.run(bodies.init, uid, "second")
        failures(world, bodies.submit, [("all_reduce", 4), ("all_reduce", 5)])
        world.run(bodies.abort)
        assert world.run(bodies.raise_last, "second") == [(0, "")] * 2 or all(
            code == 0 for code, _ in world.run(bodies.raise_last, "second")
        )
        world.run(bodies.destroy, "second")


def test_the_coordinator_goes_away():
    with make_world(2, "shm", timeout_ms=30_000) as world:
        waiting = world.start(bodies.submit, [("all_reduce", 8)] * 2, ranks=[0])
        time.sleep(0.1)
        world.coordinator.stop()
        (failed,) = world.finish(waiting, timeout=10, allow_failures=True)
        assert failed.result == REMOTE
        world.run(bodies.abort)
