"""Communicators of libnccl.so.2 from making to ending: split, shrink, revoke, non-blocking, finalize, fork, GIL, arguments."""

from __future__ import annotations

import nccl_bodies as bodies
import numpy as np
import pytest
from nccl_reference import DTYPES, OPS
from nccl_world import Failed, make_world
from test_nccl_collectives import run

UNHANDLED_CUDA, INVALID_ARGUMENT, INVALID_USAGE, IN_PROGRESS, TIMEOUT = 1, 4, 5, 7, 8


@pytest.fixture(scope="module")
def pair():
    with make_world(2, "shm", timeout_ms=10_000) as world:
        yield world


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_split_orders_by_key_then_rank(transport):
    with make_world(4, transport) as world:
        assert world.run(bodies.split, [0, 1, 0, 1], [5, 0, 1, 0]) == [(2, 1, 2), (2, 0, 4), (2, 0, 2), (2, 1, 4)]
        assert world.run(bodies.split, [0, -1, 0, 0], [0] * 4) == [(3, 0, 5), None, (3, 1, 5), (3, 2, 5)]
        world.run(bodies.destroy)


def test_split_refuses_other_negative_colors(pair):
    found = pair.run(bodies.split, [-5, -5], [0, 0], allow_failures=True)
    assert all(isinstance(f, Failed) and f.result == INVALID_ARGUMENT and "color -5" in f.text for f in found)


def test_split_called_by_some_ranks_only():
    with make_world(3, "shm", timeout_ms=600) as world:
        found = world.run(bodies.split_some, [0], allow_failures=True)
        assert found[0].result == TIMEOUT and "called by 1 of 3 parent ranks" in found[0].text
        world.run(bodies.abort)


@pytest.mark.parametrize("abort_first", [False, True], ids=["default", "abort"])
def test_shrink_keeps_the_others(abort_first):
    with make_world(3, "shm") as world:
        assert world.run(bodies.shrink, [2], abort_first) == [(2, 0, 3), (2, 1, 3), None]
        world.run(bodies.abort)


def test_shrink_after_a_death():
    with make_world(3, "shm", timeout_ms=20_000) as world:
        waiting = world.start(bodies.submit, [("all_reduce", 8)] * 3, ranks=[0, 1])
        world.start(bodies.exit_now, ranks=[2])
        assert all(f.result == 6 for f in world.finish(waiting, 15, allow_failures=True))
        assert world.finish(world.start(bodies.shrink, [2], True, ranks=[0, 1])) == [(2, 0, 3), (2, 1, 3)]
        world.finish(world.start(bodies.abort, ranks=[0, 1]))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("first", [[0, 1], [2]], ids=["members-first", "newcomer-first"])
def test_grow_takes_new_ranks_in(transport, first):
    with make_world(3, transport) as world:
        uid = world.finish(world.start(bodies.unique_id, ranks=[0]))[0]
        world.finish(world.start(bodies.init_some, uid, 2, "small", ranks=[0, 1]))
        grow_id = world.finish(world.start(bodies.grow_id, "small", ranks=[0]))[0]
        world.start(bodies.grow, grow_id, 2, 3, "small", ranks=first)
        world.start(bodies.grow, grow_id, 2, 3, "small", ranks=sorted({0, 1, 2} - set(first)))
        assert world.finish([0, 1, 2]) == [(3, 0, 6), (3, 1, 6), (3, 2, 6)]


def test_a_grow_id_is_good_once():
    with make_world(2, "shm") as world:
        uid = world.finish(world.start(bodies.unique_id, ranks=[0]))[0]
        world.finish(world.start(bodies.init_some, uid, 1, "small", ranks=[0]))
        grow_id = world.finish(world.start(bodies.grow_id, "small", ranks=[0]))[0]
        assert world.run(bodies.grow, grow_id, 1, 2, "small") == [(2, 0, 3), (2, 1, 3)]
        (failed,) = world.finish(world.start(bodies.grow, grow_id, 1, 2, "small", ranks=[1]), allow_failures=True)
        assert failed.result == INVALID_USAGE and "used before" in failed.text


def test_a_revoked_communicator_can_be_split():
    with make_world(2, "shm") as world:
        assert world.run(bodies.revoke_then_split) == [(0, INVALID_USAGE, 2)] * 2
        world.run(bodies.destroy)


def test_nonblocking_init(pair):
    uid = pair.finish(pair.start(bodies.unique_id, ranks=[0]))[0]
    for first, early, state, value in pair.run(bodies.nonblocking_init, uid):
        assert first in (0, IN_PROGRESS) and early in (None, INVALID_ARGUMENT) and state == 0 and value == 2.0
    pair.run(bodies.destroy, "nonblocking")


def test_nonblocking_init_whose_peer_never_comes():
    with make_world(1, "shm", timeout_ms=500) as world:
        uid = world.run(bodies.unique_id)[0]
        first, early, early_text, state, text = world.run(bodies.nonblocking_init_alone, uid)[0]
        assert first == IN_PROGRESS and early == INVALID_ARGUMENT
        assert "before the previous operation returned ncclSuccess" in early_text
        assert state == TIMEOUT and "rank 1" in text
        world.run(bodies.destroy)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_finalize_then_destroy(transport):
    with make_world(2, transport) as world:
        assert world.run(bodies.finalize_and_destroy) == [(INVALID_USAGE, 0)] * 2


def test_a_forked_child_is_refused_and_the_parent_goes_on(pair):
    for result, text in pair.run(bodies.forked_child):
        assert result == UNHANDLED_CUDA and "fork" in text


def test_calls_with_the_gil_held_let_other_threads_run(pair):
    assert pair.run(bodies.held_gil) == [True, True]


def test_a_device_scalar_is_read_when_the_operation_runs(pair):
    assert pair.run(bodies.premul_from_device) == [10.0 * (2 + 3)] * 2


def test_small_facts(pair):
    for rank, facts in enumerate(pair.run(bodies.describe)):
        assert facts["device"] == 0 and facts["bytes"] > 0 and facts["registered"], rank
        assert facts["again"] == INVALID_ARGUMENT and "invalid argument" in facts["error_string"]


ARGUMENTS = [
    ("ncclAllReduce", ("buffer", "buffer", 4, 12, 0, "comm", None), "datatype 12, expected 0 to 11"),
    ("ncclAllReduce", ("buffer", "buffer", 4, 7, 77, "comm", None), "op 77"),
    ("ncclAllReduce", ("buffer", "buffer", 4, 7, -1, "comm", None), "op -1"),
    ("ncclAllReduce", (None, "buffer", 4, 7, 0, "comm", None), "sendbuff is NULL"),
    ("ncclAllReduce", ("buffer", None, 4, 7, 0, "comm", None), "recvbuff is NULL"),
    ("ncclAllReduce", ("buffer", "buffer+4", 4, 7, 0, "comm", None), "overlap without being in place"),
    ("ncclAllGather", ("buffer+4", "buffer", 4, 7, "comm", None), "overlap without being in place"),
    ("ncclAllReduce", ("buffer", "buffer", 1 << 60, 7, 0, "comm", None), "beyond any memory"),
    ("ncclAllReduce", ("buffer", "buffer", 4, 7, 0, None, None), "comm is NULL"),
    ("ncclAllReduce", ("buffer", "buffer", 4, 7, 0, "buffer", None), "is no communicator"),
    ("ncclBroadcast", ("buffer", "buffer", 4, 7, 2, "comm", None), "root 2, expected 0 to 1"),
    ("ncclSend", ("buffer", 4, 7, -1, "comm", None), "peer -1, expected 0 to 1"),
    ("ncclCommRevoke", ("comm", 3), "revokeFlags 0x3, expected 0"),
]


@pytest.mark.parametrize(("name", "arguments", "part"), ARGUMENTS, ids=[f"{n}-{p[:20]}" for n, _, p in ARGUMENTS])
def test_wrong_arguments_name_call_argument_found_and_expected(pair, name, arguments, part):
    for result, text in pair.run(bodies.raw_call, name, *arguments):
        assert result == INVALID_ARGUMENT and part in text and text.startswith(name), text


def test_fp8_reductions_need_compute_capability_9():
    with make_world(2, "shm", FAKEGPU_PROFILE="a100") as world:  # make_world asks for an h100; this overrides it
        found = world.run(bodies.raw_call, "ncclAllReduce", "buffer", "buffer", 4, 10, 0, "comm", None)
        assert all(result == INVALID_ARGUMENT and "sm90" in text for result, text in found)
        gathered = world.run(bodies.raw_call, "ncclBroadcast", "buffer", "buffer", 4, 10, 0, "comm", None)
        assert [result for result, _ in gathered] == [0, 0]
        world.run(bodies.destroy)


def test_duplicate_devices_are_refused_on_request():
    with pytest.raises(AssertionError, match="Duplicate GPU"), make_world(2, "shm", FAKEGPU_DUPLICATE_GPU="error"):
        pass


KNOWN = [
    ("int32", "avg", [[1], [2]], [1]),
    ("int32", "avg", [[-3], [0]], [-1]),
    ("int8", "sum", [[120], [100]], [-36]),
]


@pytest.mark.parametrize(("dtype", "op", "data", "want"), KNOWN, ids=["avg-1-2", "avg-3-0", "int8-wraps"])
def test_known_values(pair, dtype, op, data, want):
    arrays = [np.array(d, dtype) for d in data]
    found = pair.run(bodies.collective, "all_reduce", arrays, DTYPES[dtype], OPS[op], 0, 1, 1, False, False)
    assert [list(f) for f in found] == [want, want]


def test_bfloat16_sums_of_256_and_ones_round_once():
    """256 plus seven times 1 is 263; rounded once to bfloat16 that is 264, wherever the 256 stands."""
    bf16 = {256: 0x4380, 1: 0x3F80, 264: 0x4384}
    with make_world(8, "shm") as world:
        for where in range(8):
            data = [np.array([bf16[256 if r == where else 1]], np.uint16) for r in range(8)]
            found = world.run(bodies.collective, "all_reduce", data, DTYPES["bf16"], 0, 0, 1, 1, False, True)
            assert {int(f[0]) for f in found} == {bf16[264]}
        world.run(bodies.destroy)


def test_bfloat16_average_of_three_multiplies_by_the_rounded_third():
    """1/3 in bfloat16 is 0.333984375; products and sum stay in float32 and are rounded once."""
    with make_world(3, "shm") as world:
        program = {"kind": "all_reduce", "dtype": DTYPES["bf16"], "op": OPS["avg"], "root": 0, "count": 2000,
                   "in_place": False, "device": True, "seed": 11}  # fmt: skip
        found, want = run(world, program)
        np.testing.assert_array_equal(found[0], want[0])
        world.run(bodies.destroy)


def test_simulating_a_group_tells_its_modelled_time_and_runs_nothing(pair):
    small, large = pair.run(bodies.simulate_group, 10), pair.run(bodies.simulate_group, 50_000_000)
    assert all(fine for _, fine in small + large)
    assert 0 < small[0][0] < large[0][0]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_one_thread_finalizes_its_communicators_in_turn(transport):
    with make_world(2, transport) as world:
        uid = world.finish(world.start(bodies.unique_id, ranks=[0]))[0]
        assert world.run(bodies.finalize_one_by_one, uid, 3, timeout=15) == [[0, 1, 2], [3, 4, 5]]
