"""How communicators come to be, without sockets or clock: ids, rendezvous, split, shrink, who is refused and why."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakegpu.errors import Status
from fakegpu.membership import (
    COMM_SHM,
    FAIL_PARENT,
    NO_COLOR,
    READY,
    REFUSE,
    SHRINK_ABORT,
    Joiner,
    Membership,
    world_id,
)
from fakegpu.operations import Failure

SECOND = 1_000_000_000


def process(rank=-1, *, session="", generation=-1, boot_id="b", pid=1):
    return SimpleNamespace(
        rank=rank, session=session, generation=generation, boot_id=boot_id, rank_of_device={}, where=f"pid {pid}"
    )


def joiner(rank, owner=None, **fields):
    return Joiner(owner or process(), rank, rank, fields.pop("timeout_ns", SECOND), **fields)


def membership(shm=False, only_host=None):
    return Membership(42, shm, only_host)


def init_all(made: Membership, joiners: list, order=None, uid=None) -> list:
    uid, effects = uid or made.new_id(), []
    for i in order or range(len(joiners)):
        effects += made.init(joiners[i], uid, len(joiners), 0)
    return effects


def world(made: Membership, nranks: int):
    """A communicator of nranks processes, and the processes."""
    processes = [process(rank) for rank in range(nranks)]
    ((_, comm, _, _),) = init_all(made, [joiner(rank, owner) for rank, owner in enumerate(processes)])
    return comm, processes


def refused(effects: list) -> list[tuple]:
    """(rank, status) of everybody refused."""
    return [(effect[1].rank, effect[2]) for effect in effects if effect[0] == REFUSE]


# ---- init ----


@given(order=st.permutations(range(5)))
def test_members_are_in_rank_order_whoever_comes_first(order):
    effects = init_all(membership(), [joiner(rank) for rank in range(5)], order)
    ((code, comm, members, _),) = effects
    assert code == READY and comm.nranks == 5
    assert [member.rank for member in members] == list(range(5))


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [((5, 7, 3), (5, 7, 3)), ((-1, -1, -1), (0, 1, 2)), ((4, 4, 4), (0, 1, 2))],
    ids=["launcher", "unknown", "same-variable-everywhere"],
)
def test_global_ranks_of_processes(ranks, expected):
    ((_, comm, _, _),) = init_all(membership(), [joiner(i, process(rank)) for i, rank in enumerate(ranks)])
    assert comm.global_ranks == expected


def test_several_ranks_of_one_process_keep_their_global_ranks_by_device():
    made, owner = membership(), process(rank=0)
    ((_, first, _, _),) = init_all(made, [joiner(i, owner, device=10 + i) for i in range(3)])
    ((_, second, _, _),) = init_all(made, [joiner(i, owner, device=12 - i) for i in range(2)])
    assert (first.global_ranks, second.global_ranks) == ((0, 1, 2), (2, 1))


@pytest.mark.parametrize(
    ("allowed", "flags", "boots", "only", "expected"),
    [
        (True, [COMM_SHM, COMM_SHM], "bb", None, True),
        (True, [COMM_SHM, 0], "bb", None, False),
        (True, [COMM_SHM, COMM_SHM], "bc", None, False),
        (True, [COMM_SHM, COMM_SHM], ["", ""], None, False),
        (False, [COMM_SHM, COMM_SHM], "bb", None, False),
        (True, [COMM_SHM, COMM_SHM], "bb", "b", True),
        (True, [COMM_SHM, COMM_SHM], "bb", "c", False),
    ],
    ids=["all", "one-cannot", "two-hosts", "unknown-hosts", "tcp", "tcp-coordinators-host", "tcp-another-host"],
)
def test_shared_memory_needs_everybody_on_one_host(allowed, flags, boots, only, expected):
    joiners = [joiner(i, process(boot_id=boots[i]), flags=flags[i]) for i in range(2)]
    ((_, comm, _, _),) = init_all(membership(allowed, only), joiners)
    assert comm.shm is expected


@pytest.mark.parametrize(
    ("rank", "nranks", "text"),
    [(2, 2, "rank 2, expected 0 to 1"), (-1, 2, "rank -1"), (0, 0, "nranks 0"), (0, 70000, "nranks 70000")],
)
def test_impossible_ranks(rank, nranks, text):
    made = membership()
    ((_, _, status, found),) = made.init(joiner(rank), made.new_id(), nranks, 0)
    assert status == Status.INVALID_ARGUMENT and text in found


def test_ids_are_refused_with_the_reason():
    made = membership()
    uid = made.new_id()
    init_all(made, [joiner(0)], uid=uid)
    for stale, reason in (
        (uid, "used before"),
        (Membership(43, False).new_id(), "another coordinator made it"),
        (bytes(128), "not made by ncclGetUniqueId"),
    ):
        ((_, _, status, text),) = made.init(joiner(0), stale, 1, 0)
        assert status == Status.STALE_ID and reason in text


def test_an_id_of_a_failed_init_is_used_up():
    made = membership()
    uid, owner = made.new_id(), process(0, pid=77)
    made.init(joiner(0, owner), uid, 2, 0)
    assert made.leave(owner, "killed") == []
    assert "used before" in made.init(joiner(1), uid, 2, 0)[0][3]


def test_a_restarted_rank_with_the_old_generations_id_is_refused_alone():
    made = membership()
    uid = made.new_id()
    made.init(joiner(0, process(0, generation=0)), uid, 2, 0)
    ((_, who, status, text),) = made.init(joiner(1, process(1, generation=1)), uid, 2, 0)
    assert (who.rank, status) == (1, Status.STALE_ID) and "generation 1, rank 0 of 0" in text
    assert made.init(joiner(1, process(1, generation=0)), uid, 2, 0)[0][0] == READY


def test_the_well_known_id_serves_again_and_separates_sessions():
    made = membership()
    for _ in range(2):
        assert init_all(made, [joiner(0), joiner(1)], uid=world_id("a"))[-1][0] == READY
    assert made.init(joiner(0), world_id("a"), 2, 0) == []
    assert made.init(joiner(1), world_id("b"), 2, 0) == []
    with pytest.raises(ValueError, match="65 bytes"):
        world_id("x" * 65)


def test_disagreement_about_nranks_and_double_ranks_fail_everybody():
    made = membership()
    uid = made.new_id()
    made.init(joiner(0), uid, 3, 0)
    assert refused(made.init(joiner(1), uid, 4, 0)) == [(0, Status.MISMATCH), (1, Status.MISMATCH)]
    uid = made.new_id()
    made.init(joiner(1, process(pid=5)), uid, 3, 0)
    effects = made.init(joiner(1, process(pid=6)), uid, 3, 0)
    assert refused(effects) == [(1, Status.INVALID_ARGUMENT)] * 2
    assert "rank 1 joined twice: pid 5 and pid 6" in effects[0][3]


def test_a_death_ends_the_wait_of_the_others():
    made = membership()
    uid, owner = made.new_id(), process(1, pid=9)
    made.init(joiner(0), uid, 3, 0)
    made.init(joiner(1, owner), uid, 3, 0)
    ((_, who, status, text),) = made.leave(owner, "pid 9: killed")
    assert (who.rank, status) == (0, Status.DEAD_RANK) and "rank 1 is gone: pid 9: killed" in text


def test_deadline_is_the_longest_timeout():
    made = membership()
    uid = made.new_id()
    made.init(joiner(0, timeout_ns=10), uid, 3, 100)
    made.init(joiner(2, timeout_ns=70), uid, 3, 130)
    assert made.expire(made.deadline, 2) == []
    assert made.deadline == 170
    effects = made.expire(170, 2)
    assert refused(effects) == [(0, Status.MISSING_RANK), (2, Status.MISSING_RANK)]
    assert "ranks 0,2 joined; never joined: rank 1" in effects[0][3] and "preloaded" in effects[0][3]
    made.init(joiner(0, timeout_ns=10), made.new_id(), 2, 200)
    assert "preloaded" not in made.expire(300, 2)[0][3], "another process is connected"


# ---- split ----


@given(st.data())
def test_split_orders_by_key_then_parent_rank(data):
    nranks = data.draw(st.integers(1, 6))
    colors = data.draw(st.lists(st.integers(-1, 2), min_size=nranks, max_size=nranks))
    keys = data.draw(st.lists(st.integers(-3, 3), min_size=nranks, max_size=nranks))
    made = membership()
    comm, processes = world(made, nranks)
    effects = []
    for rank in data.draw(st.permutations(range(nranks))):
        assert not effects, "nobody is answered before the last"
        effects = made.split(comm, joiner(rank, processes[rank], color=colors[rank], key=keys[rank]), 0)
    assert sorted(e[1].rank for e in effects if e[0] == NO_COLOR) == [r for r in range(nranks) if colors[r] == -1]
    groups = {e[2][0].color: e for e in effects if e[0] == READY}
    assert set(groups) == set(colors) - {-1}
    for color, (_, part, members, _) in groups.items():
        order = sorted((keys[r], r) for r in range(nranks) if colors[r] == color)
        assert [m.rank for m in members] == [r for _, r in order] == list(part.global_ranks)


def test_splits_of_one_parent_are_told_apart_by_their_number():
    made = membership()
    comm, processes = world(made, 2)
    assert made.split(comm, joiner(0, processes[0]), 0) == []
    assert made.split(comm, joiner(0, processes[0], color=1), 0) == [], "the second call of rank 0 waits for rank 1's"
    assert made.split(comm, joiner(1, processes[1]), 0)[0][1].nranks == 2
    assert [e[1].nranks for e in made.split(comm, joiner(1, processes[1], color=2), 0)] == [1, 1]


def test_split_timeout_fails_the_parent():
    made = membership()
    comm, processes = world(made, 3)
    made.split(comm, joiner(1, processes[1]), 0)
    refusal, parent = made.expire(SECOND, 3)
    assert "called by 1 of 3 parent ranks: rank 1; never called by ranks 0,2" in refusal[3]
    assert parent[:2] == (FAIL_PARENT, comm)


def test_a_failed_parent_ends_its_splits_and_takes_no_more():
    made = membership()
    comm, processes = world(made, 2)
    made.split(comm, joiner(0, processes[0]), 0)
    comm.fail(Failure(Status.DEAD_RANK, "rank 1 died", "dead_rank"))
    assert refused(made.parent_failed(comm)) == [(0, Status.DEAD_RANK)]
    assert refused(made.split(comm, joiner(0, processes[0]), 0)) == [(0, Status.DEAD_RANK)]


def test_a_revoked_parent_can_be_split():
    made = membership()
    comm, processes = world(made, 1)
    comm.revoke(0)
    assert made.split(comm, joiner(0, processes[0]), 0)[0][0] == READY


# ---- shrink ----


def test_shrink_needs_the_survivors_only():
    made = membership()
    comm, processes = world(made, 4)
    effects = []
    for rank in (3, 0, 1):
        assert not effects
        effects = made.shrink(comm, joiner(rank, processes[rank]), [2], 0)
    ((_, small, _, gathering),) = effects
    assert (small.global_ranks, gathering.excluded, gathering.abort) == ((0, 1, 3), {2}, False)
    assert comm.failure is None


def test_shrink_abort_ends_the_parent_first():
    made = membership()
    comm, processes = world(made, 3)
    effects = made.shrink(comm, joiner(0, processes[0], flags=SHRINK_ABORT), [1], 0)
    assert [effect[0] for effect in effects] == [FAIL_PARENT]
    comm.fail(effects[0][2])
    assert made.parent_failed(comm) == [], "the shrink itself goes on"
    assert made.shrink(comm, joiner(2, processes[2], flags=SHRINK_ABORT), [1], 0)[0][0] == READY


@pytest.mark.parametrize(
    ("rank", "excluded", "text"),
    [
        (0, [], "expected some of 0 to 2"),
        (0, [1, 1], "each once"),
        (0, [3], "expected some of 0 to 2"),
        (0, [0, 1, 2], "expected some of 0 to 2"),
        (1, [1], "called by the excluded rank 1"),
    ],
)
def test_impossible_exclusions(rank, excluded, text):
    made = membership()
    comm, processes = world(made, 3)
    ((_, _, status, found),) = made.shrink(comm, joiner(rank, processes[rank]), excluded, 0)
    assert status == Status.INVALID_ARGUMENT and text in found


def test_shrink_with_different_lists_names_both():
    made = membership()
    comm, processes = world(made, 4)
    made.shrink(comm, joiner(0, processes[0]), [2], 0)
    effects = made.shrink(comm, joiner(1, processes[1]), [3], 0)
    assert refused(effects) == [(0, Status.MISMATCH), (1, Status.MISMATCH)]
    assert "rank 0 excludes [2], rank 1 [3]" in effects[0][3]


def test_shrink_that_keeps_a_dead_rank_says_so():
    made = membership()
    comm, processes = world(made, 3)
    comm.die(2, "rank 2 died")
    effects = made.shrink(comm, joiner(0, processes[0], flags=SHRINK_ABORT), [1], 0)
    assert refused(effects) == [(0, Status.DEAD_RANK)] and "rank 2 is gone" in effects[0][3]
