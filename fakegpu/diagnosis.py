"""What went wrong in a communicator, put into words: a Failure for each way it can end.

Pure functions that read a communicator's state when it fails; nothing here runs while operations work. Called by
communicator.py only. Layer 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from fakegpu.dtypes import DTYPE_LABELS, KIND_LABELS, SIZES
from fakegpu.errors import Status
from fakegpu.operations import Collective, Exchange, Failure, Half
from fakegpu.wording import find_cycle, grouped_submissions, operation_name, operation_text, rank_list

if TYPE_CHECKING:
    from fakegpu.communicator import Communicator

_MAX_LEFT = 8  # ranks that left, printed one by one


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
    submitted = {half.rank: half.op}
    text = (
        f"{comm.title}: {_late(half)}: {grouped_submissions(submitted)}; rank {half.op.root} never submitted the "
        f"other side ({_whereabouts(comm, [half.op.root])})"
    )
    return _timeout(text, submitted, edges)


def _timeout(text: str, submitted: dict, edges: Mapping) -> Failure:
    """A rank is missing, or ranks wait for each other in a circle."""
    status = Status.MISSING_RANK
    circle = find_cycle(edges)
    if circle is not None:
        status = Status.DEADLOCK
        steps = (f"{a} waits in {edges[a][b]}" for a, b in zip(circle, circle[1:], strict=False))
        text += f"; circular wait of global ranks {' -> '.join(map(str, circle))}: {', '.join(steps)}"
    op = next(iter(submitted.values()))
    ranks = tuple(submitted)
    size = op.count * SIZES[op.dtype]
    return Failure(status, text, "timeout", op.seq, KIND_LABELS[op.kind], None, ranks, size, ranks)


def stalled(comm: Communicator, item: Collective | Exchange) -> Failure:
    """Everybody agreed, but the payload stopped moving."""
    late = tuple(rank for rank, running in enumerate(comm.running) if item in running.values())
    op = item.ops[0] if type(item) is Collective else item.send
    text = (
        f"{comm.title}: {_late(item)} without progress: every rank submitted {operation_text(op)}, but its payload "
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


def death(comm: Communicator, rank: int, how: str) -> Failure:
    """A rank's process is gone."""
    last = comm.last[rank]
    did, name, seq = "it had submitted nothing", None, None
    if last is not None:
        state = "unfinished" if _unfinished(comm, rank) else "finished"
        did, name, seq = f"its last operation: {operation_text(last)}, {state}", operation_name(last), last.seq
    text = f"{comm.title}: {how}; {did}{_outlook(comm)}"
    observed = tuple(first_waiting(comm))
    return Failure(Status.DEAD_RANK, text, "dead_rank", seq, name, rank, observed, attempted_bytes(comm))


def ended(comm: Communicator, rank: int, status: Status, source: str, what: str) -> Failure:
    """A rank aborted or revoked it."""
    text = f"{comm.title}: {what}{_outlook(comm)}"
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


def _outlook(comm: Communicator) -> str:
    """What was waiting when the communicator ended, for the end of a text."""
    submitted = first_waiting(comm)
    if not submitted:
        return ""
    text = f"; waiting: {grouped_submissions(submitted)}"
    absent = _absent(comm, submitted)
    return f"{text}; never joined: {rank_list(absent)}" if comm.pending and absent else text


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
