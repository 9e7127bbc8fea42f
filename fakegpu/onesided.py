"""Signals of one communicator: puts and signals count for their target, waits take what they ask for. Layer 3.

A signal is counted per (from, to, index and context); a wait that finds too few joins the communicator's unmatched
halves, so that deadlines, departures and circular waits treat it like a receive. Called by communicator.py only.
"""

from __future__ import annotations

from collections import deque

from fakegpu import diagnosis
from fakegpu.dtypes import SIZES, DType, Kind
from fakegpu.operations import Failure, Half
from fakegpu.recorder import OperationEvent

GO, FINISHED = 1, 4  # effect codes of communicator.py
_WAIT = int(Kind.WAIT_SIGNAL)


def submit(comm, rank: int, op, timeout_ns: int, now: int, effects: list) -> Failure | None:
    """Take a put, signal or wait of a rank; a Failure when it cannot be right."""
    peer = op.root
    if not 0 <= peer < comm.nranks:
        return diagnosis.misuse(comm, rank, op, f"peer {peer}, expected 0 to {comm.nranks - 1}")
    waits = op.kind == _WAIT
    key = (peer, rank, op.scalar) if waits else (rank, peer, op.scalar)
    if waits:
        half = Half(op, rank, now, timeout_ns)
        comm.halves.setdefault(key, deque()).append(half)
        comm.deadline = min(comm.deadline, half.deadline)
    else:
        comm.signals[key] = comm.signals.get(key, 0) + 1
        effects.append((FINISHED, _event(comm, rank, op, now)))
    _serve(comm, key, now, effects)
    if waits and peer in comm.left and comm.halves.get(key):
        return diagnosis.needed(comm, {rank: op})
    return None


def _serve(comm, key: tuple[int, int, int], now: int, effects: list) -> None:
    """Let the oldest waits go while there are signals for them."""
    queue = comm.halves.get(key)
    while queue and queue[0].op.peer_offset <= comm.signals.get(key, 0):
        half = queue.popleft()
        comm.signals[key] = comm.signals.get(key, 0) - half.op.peer_offset
        comm.wait_ns[half.rank] += now - half.first_ns
        effects.append((GO, half.rank, half.op.opid, 0, half.op.root, 0, 0, None))
    if queue is not None and not queue:
        del comm.halves[key]


def _event(comm, rank: int, op, now: int) -> OperationEvent:
    """A put or signal, for the recorder; its payload was written before it was submitted."""
    kind, size = Kind(op.kind), SIZES[op.dtype]
    src, dst = comm.global_ranks[rank], comm.global_ranks[op.root]
    return OperationEvent(
        comm_id=comm.id,
        seqno=op.seq,
        kind=kind.label,
        data_type=DType(op.dtype).label,
        reduce_op=None,
        buffer_transport="shared_memory" if kind is Kind.PUT_SIGNAL else "control",
        ranks=(src, dst),
        count=op.count,
        element_bytes=size,
        logical_payload_bytes=op.count * size,
        src=src,
        dst=dst,
        start_ns=now,
    )
