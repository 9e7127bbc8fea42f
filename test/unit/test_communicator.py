"""One communicator as a state machine: matching, deadlines, leaving, without sockets or clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakegpu._core import wire
from fakegpu.communicator import COMPLETE, FAILED, FINISHED, GO, NEVER, REPLY, START, Communicator
from fakegpu.dtypes import Kind
from fakegpu.errors import Status
from fakegpu.wording import find_cycle, grouped_submissions, rank_list

SECOND = 1_000_000_000
NOBODY = dict  # edges: nobody waits for anybody


def communicator(nranks: int, shm: bool = False, ranks: tuple[int, ...] | None = None) -> Communicator:
    return Communicator(1, "world", ranks or tuple(range(nranks)), shm)


def op(kind=Kind.ALL_REDUCE, seq=0, count=4, opid=1, **fields):
    return wire.Op(opid=opid, seq=seq, count=count, kind=kind, **({"dtype": wire.FLOAT32} | fields))


def of(effects: list, code: int) -> list:
    return [effect for effect in effects if effect[0] == code]


def failure(effects: list):
    (found,) = of(effects, FAILED)
    return found[1]


# ---- random programs ----


@st.composite
def programs(draw):
    """(nranks, shm, per rank: its operations, an order in which ranks submit): every rank agrees with the others."""
    nranks = draw(st.integers(1, 5))
    ranks: list[list] = [[] for _ in range(nranks)]
    pairs: dict[tuple[int, int], int] = {}
    collectives = 0
    for _ in range(draw(st.integers(0, 12))):
        count = draw(st.integers(0, 9))
        if draw(st.booleans()):
            kind = draw(st.sampled_from([Kind.ALL_REDUCE, Kind.BROADCAST, Kind.BARRIER, Kind.ALL_TO_ALL]))
            for rank in range(nranks):
                ranks[rank].append(op(kind, collectives, count, len(ranks[rank]) + 1, root=0))
            collectives += 1
        else:
            src, dst = draw(st.integers(0, nranks - 1)), draw(st.integers(0, nranks - 1))
            seq = pairs[src, dst] = pairs.get((src, dst), -1) + 1
            flags = draw(st.sampled_from([0, wire.OP_EAGER]))
            ranks[src].append(op(Kind.SEND, seq, count, len(ranks[src]) + 1, root=dst, flags=flags))
            ranks[dst].append(op(Kind.RECV, seq, count, len(ranks[dst]) + 1, root=src))
    turns = [rank for rank, ops in enumerate(ranks) for _ in ops]
    return nranks, draw(st.booleans()), ranks, draw(st.permutations(turns))


@given(program=programs(), when=st.randoms())
def test_agreeing_ranks_finish_everything_in_any_order(program, when):
    nranks, shm, ranks, turns = program
    comm = communicator(nranks, shm)
    next_op, gone_to, finished, to_do = [0] * nranks, set(), 0, []
    collective_order: list[list[int]] = [[] for _ in range(nranks)]
    for now, rank in enumerate(turns):
        current = ranks[rank][next_op[rank]]
        next_op[rank] += 1
        for effect in comm.submit(rank, [current], SECOND, now):
            assert effect[0] in (GO, START)
            if effect[0] == GO:
                _, target, opid, *_ = effect
                assert (target, opid) not in gone_to, "told twice"
                gone_to.add((target, opid))
                to_do.append((target, opid))
                went = ranks[target][opid - 1]
                if went.kind not in (Kind.SEND, Kind.RECV):
                    collective_order[target].append(went.seq)
    when.shuffle(to_do)
    for target, opid in to_do:
        finished += len(of(comm.done(target, opid, 0, 5, len(turns)), FINISHED))
    silent = {wire.SEND} if shm else set()
    for rank, ops in enumerate(ranks):
        for one in ops:
            told = one.kind not in silent and not (one.kind == Kind.SEND and one.flags & wire.OP_EAGER)
            assert ((rank, one.opid) in gone_to) == told
        assert collective_order[rank] == sorted(collective_order[rank])
    collectives = sum(1 for one in ranks[0] if one.kind not in (Kind.SEND, Kind.RECV))
    assert finished == collectives + sum(one.kind == Kind.SEND for ops in ranks for one in ops)
    assert comm.failure is None and comm.idle and comm.waiting == 0


@given(
    nranks=st.integers(2, 6),
    odd=st.integers(0, 5),
    field=st.sampled_from(["count", "dtype", "redop", "kind"]),
    order=st.permutations(range(6)),
)
def test_one_different_rank_is_an_error_that_names_it(nranks, odd, field, order):
    odd %= nranks
    comm = communicator(nranks)
    different = {"count": 5, "dtype": wire.INT32, "redop": wire.MAX, "kind": Kind.ALL_GATHER}
    last = []
    for rank in [rank for rank in order if rank < nranks]:
        last = comm.submit(rank, [op(**({field: different[field]} if rank == odd else {}))], SECOND, 0)
    found = failure(last)
    others = [rank for rank in range(nranks) if rank != odd]
    assert found.status == Status.MISMATCH and not of(last, GO)
    assert f"rank {odd}: " in found.text and f"{rank_list(others)}: all_reduce #0 float32 count 4 sum" in found.text
    assert comm.submit(odd, [op(seq=1)], SECOND, 0) == [], "a failed communicator takes nothing"


def test_fields_without_meaning_are_not_compared():
    comm = communicator(2)
    comm.submit(0, [op(Kind.ALL_GATHER, redop=wire.SUM, root=-1), op(Kind.BARRIER, 1, count=0, opid=2)], SECOND, 0)
    effects = comm.submit(
        1, [op(Kind.ALL_GATHER, redop=wire.MAX, root=3, stream=9), op(Kind.BARRIER, 1, 77, 2, dtype=1)], SECOND, 0
    )
    assert len(of(effects, GO)) == 4


# ---- flags and buffers of GO ----


def test_shared_memory_is_staged_when_any_member_asks():
    for flags, expected in (((0, 0), 0), ((0, wire.OP_STAGED), wire.OP_STAGED)):
        comm = communicator(2, shm=True)
        comm.submit(0, [op(flags=flags[0])], SECOND, 0)
        effects = comm.submit(1, [op(flags=flags[1])], SECOND, 0)
        assert [effect[3] for effect in of(effects, GO)] == [expected] * 2
        assert not of(effects, START)


def test_receiver_over_shared_memory_gets_the_senders_buffer():
    comm = communicator(2, shm=True)
    buffer = wire.BufferRef(pid=7, fd=3, inode=9, offset=64, bytes=16)
    comm.submit(0, [op(Kind.SEND, opid=5, root=1, buffer=buffer)], SECOND, 0)
    (go,) = comm.submit(1, [op(Kind.RECV, opid=8, root=0)], SECOND, 0)
    assert go == (GO, 1, 8, 0, 0, 4, 5, buffer)
    effects = comm.done(1, 8, 0, 1, 1)
    assert of(effects, COMPLETE) == [(COMPLETE, 0, 5, Status.OK)]


def test_sockets_tell_both_sides_unless_the_send_is_eager():
    for flags, told in ((0, [1, 0]), (wire.OP_EAGER, [1])):
        comm = communicator(2)
        comm.submit(0, [op(Kind.SEND, root=1, flags=flags)], SECOND, 0)
        effects = comm.submit(1, [op(Kind.RECV, root=0)], SECOND, 0)
        assert [effect[1] for effect in of(effects, GO)] == told


# ---- misuse ----


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (op(seq=3), "expected collective #0"),
        (op(Kind.BROADCAST, root=2), "root 2, expected 0 to 1"),
        (op(Kind.BROADCAST, root=-1), "root -1, expected 0 to 1"),
        (op(Kind.SEND, root=2), "peer 2, expected 0 to 1"),
        (op(Kind.RECV, root=-1), "peer -1, expected 0 to 1"),
    ],
    ids=["sequence", "root", "no-root", "peer", "no-peer"],
)
def test_an_impossible_submission_is_named(bad, expected):
    found = failure(communicator(2).submit(0, [bad], SECOND, 0))
    assert (found.status, found.rank) == (Status.INVALID_ARGUMENT, 0)
    assert expected in found.text


def test_slots_of_the_control_segment_are_never_reused_too_early():
    comm = communicator(2, shm=True)
    for seq in range(64):
        assert comm.submit(0, [op(seq=seq, opid=seq + 1)], SECOND, 0) == []
    assert "at most 64 unfinished" in failure(comm.submit(0, [op(seq=64, opid=65)], SECOND, 0)).text


def test_a_wait_takes_the_signals_it_asks_for():
    comm = communicator(2)
    wait = op(Kind.WAIT_SIGNAL, count=0, opid=9, root=0, peer_offset=2)
    assert comm.submit(1, [wait], SECOND, 0) == [] and not comm.idle
    put = comm.submit(0, [op(Kind.PUT_SIGNAL, opid=1, root=1)], SECOND, 10)
    assert [effect[0] for effect in put] == [FINISHED] and put[0][1].kind == "put_signal"
    signal = comm.submit(0, [op(Kind.SIGNAL, count=0, opid=2, root=1)], SECOND, 20)
    assert [effect[1:3] for effect in of(signal, GO)] == [(1, 9)]
    assert comm.idle and comm.wait_ns[1] == 20


def test_signals_of_another_index_or_pair_do_not_count():
    comm = communicator(3)
    comm.submit(1, [op(Kind.WAIT_SIGNAL, count=0, opid=9, root=0, peer_offset=1, scalar=5)], SECOND, 0)
    assert of(comm.submit(0, [op(Kind.SIGNAL, count=0, root=1, scalar=4)], SECOND, 0), GO) == []
    assert of(comm.submit(2, [op(Kind.SIGNAL, count=0, root=1, scalar=5)], SECOND, 0), GO) == []
    found = failure(comm.expire(2 * SECOND, NOBODY))
    assert found.status == Status.MISSING_RANK
    assert "wait_signal from rank 0 (index 5, context 0) for 1 signals" in found.text


@pytest.mark.parametrize("through", [True, False], ids=["went-through", "under-way"])
def test_a_sender_may_leave_when_its_payload_went_through(through):
    comm = communicator(2)
    comm.submit(0, [op(Kind.SEND, opid=1, root=1)], SECOND, 0)
    ((_, item),) = of(comm.submit(1, [op(Kind.RECV, opid=1, root=0)], SECOND, 0), START)
    item.sent = 16 if through else 8  # bytes that the relay has passed on, of 4 float32
    left = comm.leave(0, "destroyed its handle")
    assert left == [] if through else failure(left).status == Status.REMOTE
    if through:
        assert [effect[0] for effect in comm.done(1, 1, 0, 0, 5)] == [FINISHED]


def test_a_members_own_failure_fails_all():
    comm = communicator(1)
    comm.submit(0, [op()], SECOND, 0)
    found = failure(comm.done(0, 1, Status.SYSTEM, 0, 1))
    assert found.status == Status.SYSTEM and "all_reduce #0: rank 0 reported system" in found.text


# ---- time ----


@given(timeouts=st.lists(st.integers(1, 100), min_size=2, max_size=5), gap=st.integers(0, 5))
def test_deadline_is_first_submission_plus_longest_timeout(timeouts, gap):
    comm = communicator(len(timeouts) + 1)
    for rank, timeout in enumerate(timeouts):
        comm.submit(rank, [op()], timeout * 10, 100 + rank * gap)
    due = 100 + 10 * max(timeouts)
    now = 0
    while (now := comm.deadline) < due:  # earlier wake-ups only find the next deadline
        assert comm.expire(now, NOBODY) == []
    assert now == due and comm.expire(due - 1, NOBODY) == []
    found = failure(comm.expire(due, NOBODY))
    assert found.status == Status.MISSING_RANK
    assert f"never joined: rank {len(timeouts)}" in found.text and comm.deadline == NEVER


def test_waiting_time_goes_to_those_who_waited():
    comm = communicator(3)
    for rank, now in enumerate((10, 25, 40)):
        comm.submit(rank, [op()], SECOND, now)
    assert comm.wait_ns == [30, 15, 0]


def test_socket_operation_without_progress_times_out():
    comm = communicator(2)
    for rank in range(2):
        effects = comm.submit(rank, [op()], SECOND, 0)
    (start,) = of(effects, START)
    start[1].deadline = 5 * SECOND  # the relay moves it with every round
    assert comm.expire(2 * SECOND, NOBODY) == []
    comm.done(0, 1, 0, 0, 3 * SECOND)
    found = failure(comm.expire(5 * SECOND, NOBODY))
    assert found.status == Status.TIMEOUT and "not done: rank 1" in found.text


def test_circle_over_communicators_is_printed():
    comm = communicator(2)
    comm.submit(0, [op(Kind.SEND, root=1)], SECOND, 0)
    edges = {0: {1: "send #0"}, 1: {0: "barrier #2 of communicator 'other'"}}
    found = failure(comm.expire(SECOND, lambda: edges))
    assert found.status == Status.DEADLOCK
    assert "circular wait of global ranks 0 -> 1 -> 0: 0 waits in send #0, 1 waits in barrier #2" in found.text


def test_eager_sends_wait_for_nobody():
    comm = communicator(2, ranks=(4, 7))
    comm.submit(0, [op(Kind.SEND, root=1, flags=wire.OP_EAGER), op(Kind.RECV, root=1, opid=2)], SECOND, 0)
    assert [(a, b) for a, b, _ in comm.waits()] == [(4, 7)]


# ---- finalize, leaving, death ----


def test_finalize_is_acknowledged_when_the_last_comes():
    comm = communicator(3)
    assert comm.finalize(0, 11, SECOND, 0) == [] == comm.finalize(1, 12, SECOND, 0)
    assert [effect[1:4] for effect in comm.finalize(2, 13, SECOND, 0)] == [(0, 11, 0), (1, 12, 0), (2, 13, 0)]


def test_finalize_counts_ranks_that_left():
    comm = communicator(2)
    comm.finalize(0, 11, SECOND, 0)
    assert comm.leave(1, "destroyed its handle") == [(REPLY, 0, 11, Status.OK, "")]


def test_failure_answers_who_waits_in_finalize():
    comm = communicator(2)
    comm.finalize(0, 11, SECOND, 0)
    effects = comm.die(1, "rank 1 died")
    assert of(effects, REPLY)[0][:4] == (REPLY, 0, 11, Status.DEAD_RANK)
    assert comm.finalize(0, 12, SECOND, 0)[0][3] == Status.DEAD_RANK


@pytest.mark.parametrize("shm", [False, True], ids=["socket", "shm"])
def test_leaving_when_nobody_needs_the_rank_is_no_error(shm):
    comm = communicator(2, shm)
    comm.submit(0, [op()], SECOND, 0)
    comm.submit(1, [op()], SECOND, 0)
    comm.done(1, 1, 0, 0, 1)
    assert comm.leave(1, "ended") == []
    assert of(comm.done(0, 1, 0, 0, 2), FINISHED)
    found = failure(comm.submit(0, [op(seq=1, opid=2)], SECOND, 3))
    assert found.status == Status.REMOTE and "rank 1 ended, but the others still need it" in found.text


def test_leaving_behind_an_eager_send_is_no_error():
    comm = communicator(2)
    comm.submit(0, [op(Kind.SEND, root=1, flags=wire.OP_EAGER)], SECOND, 0)
    assert comm.leave(0, "ended") == []
    assert of(comm.submit(1, [op(Kind.RECV, root=0)], SECOND, 1), GO)


@pytest.mark.parametrize("ops", [[op()], [op(Kind.RECV, root=1)], [op(Kind.SEND, root=1)]], ids=["all", "recv", "send"])
def test_leaving_while_somebody_waits_is_an_error_at_once(ops):
    comm = communicator(2)
    comm.submit(0, ops, SECOND, 0)
    assert failure(comm.leave(1, "ended")).status == Status.REMOTE


@pytest.mark.parametrize("end", ["abort", "revoke", "die"])
def test_an_end_before_the_time_out_prints_the_circle(end):
    """A watchdog that aborts first: the text has the circle all the same; here a collective against a receive."""
    comm = communicator(2)
    comm.submit(0, [op(Kind.BARRIER)], SECOND, 0)
    comm.submit(1, [op(Kind.RECV, root=0)], SECOND, 0)
    edges = {0: {1: "barrier #0"}, 1: {0: "recv #0"}}
    arguments = {"abort": (0, Status.ABORTED, "why"), "revoke": (0,), "die": (0, "rank 0 died")}[end]
    text = failure(getattr(comm, end)(*arguments, lambda: edges)).text
    assert text.endswith("circular wait of global ranks 0 -> 1 -> 0: 0 waits in barrier #0, 1 waits in recv #0")


def test_all_missing_sides_of_a_group_of_receives_are_named():
    """Case 52: a gather that only its root calls, which torch submits as receives from everybody."""
    comm = communicator(4)
    for peer in (1, 2, 3):
        comm.submit(0, [op(Kind.RECV, root=peer)], SECOND, 0)
    text = failure(comm.expire(SECOND, dict)).text
    assert "ranks 1-3 never submitted the other side" in text and text.count("recv #0 from rank") == 3
    comm = communicator(4)
    for peer in (1, 2, 3):
        comm.submit(0, [op(Kind.RECV, root=peer)], SECOND, 0)
    assert failure(comm.abort(0, Status.ABORTED, "")).text.endswith("never joined: ranks 1-3")


def test_death_says_what_was_under_way():
    comm = communicator(3, ranks=(2, 4, 6))
    comm.submit(0, [op(Kind.BARRIER)], SECOND, 0)
    text = failure(comm.die(2, "rank 2 died: killed")).text
    assert text.startswith("communicator 'world' (global ranks 2,4,6): rank 2 died: killed; it had submitted nothing")
    assert text.endswith("waiting: rank 0: barrier #0; never joined: ranks 1-2")


def test_a_failure_is_reported_once():
    comm = communicator(3)
    assert len(of(comm.die(1, "x"), FAILED)) == 1
    assert comm.die(2, "y") == [] == comm.abort(0, Status.ABORTED, "z")
    assert comm.expire(NEVER, NOBODY) == []


# ---- words ----


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([3], "rank 3"), ([2, 0, 1], "ranks 0-2"), ([0, 2, 3, 4, 9], "ranks 0,2-4,9")],
)
def test_rank_list(ranks, text):
    assert rank_list(ranks) == text


def test_grouped_submissions_are_bounded():
    text = grouped_submissions({rank: op(count=rank) for rank in range(20)})
    assert text.count("all_reduce") == 8 and text.endswith("and 12 more")


@given(st.dictionaries(st.integers(0, 8), st.sets(st.integers(0, 8))))
def test_find_cycle_finds_one_if_there_is_one(edges):
    circle = find_cycle(edges)
    if circle is None:
        order: list = []
        left = {node: set(targets) for node, targets in edges.items()}
        while left:  # an acyclic graph can be taken apart from its ends
            ends = [node for node, targets in left.items() if not targets & left.keys()]
            assert ends, "there is a circle"
            order += ends
            left = {node: targets for node, targets in left.items() if node not in ends}
    else:
        assert circle[0] == circle[-1] and len(circle) > 1
        assert all(b in edges[a] for a, b in zip(circle, circle[1:], strict=False))
