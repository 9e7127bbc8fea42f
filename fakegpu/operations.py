"""The records of one communicator's operations: a collective, a waiting half, a met pair, a failure.

Made and changed by communicator.py; the socket data path (relay.py) reads them. No validators: these are made on the
hot path. Layer 3.
"""

from __future__ import annotations

import attrs

from fakegpu.dtypes import DTYPE_LABELS, KIND_LABELS, REDOP_LABELS, REDUCING, ROOTED, SIZES, Kind
from fakegpu.errors import Status
from fakegpu.recorder import OperationEvent, logical_payload_bytes

ROOTED_KINDS = frozenset(map(int, ROOTED))
REDUCING_KINDS = frozenset(map(int, REDUCING))
BARRIER = int(Kind.BARRIER)
OP_STAGED, OP_EAGER, OP_SOCKET = 2, 4, 8  # FG_OP_* flags of fg_wire.h


@attrs.frozen
class Failure:
    """Why a communicator failed, as members are told and the report keeps it."""

    status: Status
    text: str
    source: str  # mismatch | timeout | dead_rank | abort | injected | client | protocol
    seq: int | None = None
    operation: str | None = None
    rank: int | None = None  # in the communicator; None = no single one
    observed: tuple[int, ...] = ()  # ranks in the communicator that had submitted
    payload_bytes: int = 0
    waiting: tuple[int, ...] = ()  # ranks that a time-out hit


class Collective:
    """A collective on its way: who submitted what, and then who is done."""

    __slots__ = (
        "arrival_ns", "count", "deadline", "differs", "dtype", "exec_ns", "first_ns", "flags", "kind", "last_ns",
        "missing", "nranks", "ops", "received", "redop", "root", "sent", "seq", "timeout_ns",
    )  # fmt: skip

    def __init__(self, op, nranks: int, now: int, timeout_ns: int) -> None:
        self.seq, self.kind, self.dtype, self.redop = op.seq, op.kind, op.dtype, op.redop
        self.count, self.root = op.count, op.root
        self.nranks = self.missing = nranks
        self.ops: list = [None] * nranks
        self.arrival_ns = [0] * nranks
        self.first_ns = self.last_ns = now
        self.timeout_ns = timeout_ns
        self.deadline = now + timeout_ns
        self.differs = False
        self.flags = self.exec_ns = 0
        self.sent = self.received = 0  # socket payload bytes, by way of the coordinator

    def submitted(self) -> dict:
        """rank: operation, of those that submitted."""
        return {rank: op for rank, op in enumerate(self.ops) if op is not None}


class Half:
    """A send or a receive whose other side is not there yet."""

    __slots__ = ("deadline", "first_ns", "op", "rank", "timeout_ns")

    def __init__(self, op, rank: int, now: int, timeout_ns: int) -> None:
        self.op, self.rank, self.first_ns, self.timeout_ns = op, rank, now, timeout_ns
        self.deadline = now + timeout_ns


class Exchange:
    """A send and a receive that met."""

    __slots__ = ("deadline", "dst", "first_ns", "last_ns", "received", "recv", "send", "sent", "src", "timeout_ns")

    def __init__(self, send: Half, recv: Half, now: int) -> None:
        self.send, self.recv = send.op, recv.op
        self.src, self.dst = send.rank, recv.rank
        self.first_ns, self.last_ns = min(send.first_ns, recv.first_ns), now
        self.timeout_ns = max(send.timeout_ns, recv.timeout_ns)
        self.deadline = now + self.timeout_ns
        self.sent = self.received = 0


def same(item: Collective, op, kind: int) -> bool:
    """Whether an operation equals the one that a collective started with; reduction and root where they matter."""
    if kind != item.kind:
        return False
    if kind == BARRIER:
        return True
    return (
        op.dtype == item.dtype
        and op.count == item.count
        and (op.redop == item.redop or kind not in REDUCING_KINDS)
        and (op.root == item.root or kind not in ROOTED_KINDS)
    )


def collective_event(comm, item: Collective, now: int) -> OperationEvent:
    """A finished collective, for the recorder."""
    kind, size = KIND_LABELS[item.kind], SIZES[item.dtype]
    transport = "control" if item.kind == BARRIER else "shared_memory" if comm.shm else "socket_payload"
    return OperationEvent(
        comm_id=comm.id,
        seqno=item.seq,
        kind=kind,
        data_type=DTYPE_LABELS[item.dtype],
        reduce_op=REDOP_LABELS[item.redop] if item.kind in REDUCING_KINDS else None,
        buffer_transport=transport,
        ranks=comm.global_ranks,
        count=item.count,
        element_bytes=size,
        logical_payload_bytes=logical_payload_bytes(kind, comm.nranks, item.count, size),
        root=comm.global_ranks[item.root] if item.kind in ROOTED_KINDS else None,
        socket_request_payload_bytes=item.sent,
        socket_response_payload_bytes=item.received,
        rendezvous_wait_us=(item.last_ns - item.first_ns) / 1000,
        execution_time_us=item.exec_ns / 1000,
        coordinator_duration_us=(now - item.last_ns) / 1000,
        start_ns=item.first_ns,
    )


def exchange_event(comm, item: Exchange, now: int) -> OperationEvent:
    """A finished send and receive, for the recorder."""
    src, dst = comm.global_ranks[item.src], comm.global_ranks[item.dst]
    op, size = item.send, SIZES[item.send.dtype]
    return OperationEvent(
        comm_id=comm.id,
        seqno=op.seq,
        kind="send",
        data_type=DTYPE_LABELS[op.dtype],
        reduce_op=None,
        buffer_transport="shared_memory" if comm.shm else "socket_payload",
        ranks=(src, dst),
        count=op.count,
        element_bytes=size,
        logical_payload_bytes=op.count * size,
        src=src,
        dst=dst,
        socket_request_payload_bytes=item.sent,
        socket_response_payload_bytes=item.received,
        rendezvous_wait_us=(item.last_ns - item.first_ns) / 1000,
        execution_time_us=(now - item.last_ns) / 1000,
        coordinator_duration_us=(now - item.last_ns) / 1000,
        start_ns=item.first_ns,
    )
