"""What went wrong in a communicator, put into words: a Failure for each way it can end.

Pure functions that read a communicator's state when it fails; nothing here runs while operations work. Called by
communicator.py only. Layer 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from fakegpu.dtypes import DTYPE_LABELS, KIND_LABELS, SIZES, Kind
from fakegpu.errors import Status
from fakegpu.operations import OP_EAGER, Collective, Exchange, Failure, Half
from fakegpu.wording import find_cycle, grouped_submissions, operation_name, operation_text, rank_list

if TYPE_CHECKING:
    from fakegpu.communicator import Communicator

_MAX_LEFT = 8  # ranks that left, or sends and receives, printed one by one


def mismatch(comm: Communicator, item: Collective) -> Failure:
    """Ranks submitted different collectives under one number."""
    submitted = item.submitted()
    text = f"{comm.title}: the ranks submitted different operations: {grouped_submissions(submitted)}"
    if absent := _absent(comm, submitted):
        text += f"; not there yet: {rank_list(absent)}"
    size = item.count * SIZES[item.dtype]
    return Failure(
        Status.MISMATCH,
        text,
        "mismatch",
        item.seq,
        KIND_LABELS[item.kind],
        observed=tuple(submitted),
        payload_bytes=size,
    )


def pair(comm: Communicator, send: Half, recv: Half) -> Failure:
    """A send and its receive differ in size or type."""
    sent, expected = (f"{half.op.count} {DTYPE_LABELS[half.op.dtype]}" for half in (send, recv))
    text = (
        f"{comm.title}: send and receive #{send.op.seq} of the pair {send.rank} -> {recv.rank} differ: "
        f"rank {send.rank} sent {sent}, rank {recv.rank} expected {expected}"
    )
    observed = tuple(sorted({send.rank, recv.rank}))
    size = send.op.count * SIZES[send.op.dtype]
    return Failure(Status.MISMATCH, text, "mismatch", send.op.seq, "send", send.rank, observed, size)


def missing(comm: Communicator, item: Collective, edges: Mapping) -> Failure:
    """A collective's deadline passed and ranks never came."""
    submitted = item.submitted()
    absent = _absent(comm, submitted)
    text = (
        f"{comm.title}: {_late(item)}: {grouped_submissions(submitted)}; "
        f"never joined: {rank_list(absent)} ({_whereabouts(comm, absent)})"
    )
    return _timeout(text, submitted, edges)


def alone(comm: Communicator, half: Half, edges: Mapping) -> Failure:
    """A send's or receive's deadline passed and its other side never came."""
    halves = [half, *(h for h in _waiting_halves(comm) if h.rank == half.rank and h is not half)]
    peers = sorted({h.op.root for h in halves})
    text = (
        f"{comm.title}: {_late(half)}: {_halves_text(halves)}; {rank_list(peers)} never submitted the "
        f"other side ({_whereabouts(comm, peers)})"
    )
    return _timeout(text, {half.rank: half.op}, edges)


def _timeout(text: str, submitted: dict, edges: Mapping) -> Failure:
    """A rank is missing, or ranks wait for each other in a circle."""
    status = Status.MISSING_RANK
    if circle := _circle(edges):
        status = Status.DEADLOCK
        text += circle
    op = next(iter(submitted.values()))
    ranks = tuple(submitted)
    size = op.count * SIZES[op.dtype]
    return Failure(status, text, "timeout", op.seq, KIND_LABELS[op.kind], None, ranks, size, ranks)


def _circle(edges: Mapping) -> str:
    """The circular wait, for the end of a text; "" where nobody waits in a circle."""
    circle = find_cycle(edges)
    if circle is None:
        return ""
    start = circle.index(min(circle))  # the same circle reads the same, whoever was found first
    circle = [*circle[start:-1], *circle[:start], circle[start]]
    steps = (f"{a} waits in {edges[a][b]}" for a, b in zip(circle, circle[1:], strict=False))
    return f"; circular wait of global ranks {' -> '.join(map(str, circle))}: {', '.join(steps)}"


def stalled(comm: Communicator, item: Collective | Exchange) -> Failure:
    """Everybody agreed, but the payload stopped moving."""
    late = tuple(rank for rank, running in enumerate(comm.running) if item in running.values())
    op, who = (item.ops[0], "every rank") if type(item) is Collective else (item.send, f"rank {item.src}")
    text = (
        f"{comm.title}: {_late(item)} without progress: {who} submitted {operation_text(op)}, but its payload "
        f"did not arrive; not done: {rank_list(late)}"
    )
    size = op.count * SIZES[op.dtype]
    return Failure(Status.TIMEOUT, text, "timeout", op.seq, KIND_LABELS[op.kind], payload_bytes=size, waiting=late)


def unfinalized(comm: Communicator) -> Failure:
    """Some ranks called finalize, others never did."""
    there = tuple(comm.finalized)
    absent = [rank for rank in _absent(comm, there) if rank not in comm.left]
    text = f"{comm.title}: finalize timed out: called by {rank_list(there)}; never called by {rank_list(absent)}"
    return Failure(Status.MISSING_RANK, text, "timeout", operation="finalize", observed=there, waiting=there)


def needed(comm: Communicator, submitted: dict) -> Failure:
    """A rank left in order, but the others need it."""
    gone = "; ".join(f"rank {rank} {how}" for rank, how in list(comm.left.items())[:_MAX_LEFT])
    what = grouped_submissions(submitted) if submitted else "an operation was not finished"
    text = f"{comm.title}: {gone}, but the others still need it: {what}"
    seq = next((op.seq for op in submitted.values()), None)
    size = attempted_bytes(comm)
    return Failure(Status.REMOTE, text, "dead_rank", seq, observed=tuple(submitted), payload_bytes=size)


def death(comm: Communicator, rank: int, how: str, edges: Mapping) -> Failure:
    """A rank's process is gone."""
    last = comm.last[rank]
    did, name, seq = "it had submitted nothing", None, None
    if last is not None:
        state = "unfinished" if _unfinished(comm, rank) else "finished"
        did, name, seq = f"its last operation: {operation_text(last)}, {state}", operation_name(last), last.seq
    text = f"{comm.title}: {how}; {did}{_outlook(comm, edges)}"
    observed = tuple(first_waiting(comm))
    return Failure(Status.DEAD_RANK, text, "dead_rank", seq, name, rank, observed, attempted_bytes(comm))


def ended(comm: Communicator, rank: int, status: Status, source: str, what: str, edges: Mapping) -> Failure:
    """A rank aborted or revoked it."""
    text = f"{comm.title}: {what}{_outlook(comm, edges)}"
    observed, size = tuple(first_waiting(comm)), attempted_bytes(comm)
    return Failure(status, text, source, rank=rank, observed=observed, payload_bytes=size)


def misuse(comm: Communicator, rank: int, op, expected: str) -> Failure:
    """A rank's frame cannot be: a defect of its client."""
    text = f"{comm.title}: rank {rank} submitted {operation_text(op)}: {expected}"
    return Failure(Status.INVALID_ARGUMENT, text, "client", op.seq, KIND_LABELS[op.kind], rank)


def first_waiting(comm: Communicator) -> dict:
    """rank: operation of the oldest collective that misses somebody, else of waiting sends and receives."""
    for item in comm.pending.values():
        return item.submitted()
    return {half.rank: half.op for queue in comm.halves.values() for half in queue}


def attempted_bytes(comm: Communicator) -> int:
    """One rank's payload of the oldest operation that the end interrupts; 0 when nothing was under way."""
    op = next(iter(first_waiting(comm).values()), None)
    if op is None:
        item = next((item for running in comm.running for item in running.values()), None)
        if item is None:
            return 0
        op = item.ops[0] if type(item) is Collective else item.send
    return op.count * SIZES[op.dtype]


def _late(item: Collective | Exchange | Half) -> str:
    return f"timed out after {item.timeout_ns // 1_000_000} ms"


def _absent(comm: Communicator, there: Iterable[int]) -> list[int]:
    return sorted(set(range(comm.nranks)).difference(there))


def _outlook(comm: Communicator, edges: Mapping) -> str:
    """What was waiting when the communicator ended, in a circle or not, for the end of a text."""
    submitted = first_waiting(comm)
    if not submitted:
        return ""
    if comm.pending:
        text, absent = grouped_submissions(submitted), _absent(comm, submitted)
    else:  # a gather of torch, say, is a group of receives: its peers may all be missing
        halves = _waiting_halves(comm)
        text = _halves_text(halves) or grouped_submissions(submitted)
        absent = sorted({half.op.root for half in halves}.difference(submitted))
    joined = f"; never joined: {rank_list(absent)}" if absent else ""
    return f"; waiting: {text}{joined}{_circle(edges)}"


def _waiting_halves(comm: Communicator) -> list[Half]:
    """Sends and receives that hold their rank up; eager sends do not."""
    halves = (half for queue in comm.halves.values() for half in queue)
    return [half for half in halves if not (half.op.kind == Kind.SEND and half.op.flags & OP_EAGER)]


def _halves_text(halves: list[Half]) -> str:
    """Each send or receive with its rank, the first ones in full."""
    shown = [grouped_submissions({half.rank: half.op}) for half in halves[:_MAX_LEFT]]
    if len(halves) > _MAX_LEFT:
        shown.append(f"and {len(halves) - _MAX_LEFT} more")
    return "; ".join(shown)


def _unfinished(comm: Communicator, rank: int) -> bool:
    return bool(
        comm.running[rank]
        or any(item.ops[rank] is not None for item in comm.pending.values())
        or any(half.rank == rank for queue in comm.halves.values() for half in queue)
    )


def _whereabouts(comm: Communicator, ranks: Iterable[int]) -> str:
    """What absent ranks did last, grouped."""
    last = {rank: comm.last[rank] for rank in ranks if comm.last[rank] is not None}
    busy = {rank: op for rank, op in last.items() if _unfinished(comm, rank)}
    idle = {rank: op for rank, op in last.items() if rank not in busy}
    silent = [rank for rank in ranks if rank not in last]
    parts = [f"{state} {grouped_submissions(ops)}" for state, ops in (("in", busy), ("last seen in", idle)) if ops]
    if silent:
        parts.append(f"{rank_list(silent)} submitted nothing so far")
    return "; ".join(parts)
