"""Payloads that move through the coordinator: rounds come in as DATA frames, are reduced or sorted, and go out again.

No sockets: the server asks `reserve` where a round's bytes go, calls `arrived` when they are there, and gives every
member a `send_data`. Memory is bounded: a rank may be `window` rounds ahead of the results it was sent, and results
wait while an earlier round's bytes are still on their way to a slow member. Results depend on nothing but the inputs:
rounds are reduced in rank order and sent in round order. Called by coordinator.py and server.py. Layer 4.
"""

from __future__ import annotations

from collections.abc import Callable

from fakegpu._core import wire
from fakegpu._core.reduce import reduce
from fakegpu.collectives import plan_of, round_count, round_elems
from fakegpu.dtypes import SIZES, Kind, ReduceOp
from fakegpu.errors import Status, error_for
from fakegpu.operations import Collective, Exchange

_SEND, _BARRIER, _PREMULSUM = int(Kind.SEND), int(Kind.BARRIER), int(ReduceOp.PREMULSUM)
_OP_EAGER = wire.OP_EAGER
_SMALL = 4096  # payloads up to this get a buffer of their own instead of one of the pool
_POOLED_REDUCTION = 256 << 10  # input bytes from which a reduction is worth a thread


class BufferPool:
    """Chunk-sized buffers, used again; counts what is in use against a limit."""

    def __init__(self, chunk_bytes: int, limit_bytes: int) -> None:
        self.chunk_bytes, self.limit_bytes = chunk_bytes, limit_bytes
        self.used_bytes = 0
        self._free: list[memoryview] = []

    def take(self, size: int) -> memoryview:
        """A writable view of `size` bytes; LimitError when more would be in use than allowed."""
        if self.used_bytes + size > self.limit_bytes:
            raise error_for(
                Status.LIMIT, f"the coordinator holds {self.used_bytes} payload bytes, limit {self.limit_bytes}"
            )
        self.used_bytes += size
        if size <= _SMALL or size > self.chunk_bytes:
            return memoryview(bytearray(size))
        return (self._free.pop() if self._free else memoryview(bytearray(self.chunk_bytes)))[:size]

    def give(self, view: memoryview) -> None:
        """Take a view back that nobody reads any more."""
        size = len(view)
        self.used_bytes -= size
        if _SMALL < size <= self.chunk_bytes and len(self._free) * self.chunk_bytes < 64 << 20:
            self._free.append(memoryview(view.obj))

    def forget(self, views: list) -> None:
        """Views that somebody may still write to: counted as free, never used again."""
        self.used_bytes -= sum(len(view) for view in views if view is not None)


class Slot:
    """Where one rank's payload of one round goes."""

    __slots__ = ("rank", "round", "transfer", "view")

    def __init__(self, transfer, rank: int, number: int, view: memoryview) -> None:
        self.transfer, self.rank, self.round, self.view = transfer, rank, number, view


class Round:
    """The buffers of one round while they are filled, reduced and sent."""

    __slots__ = ("pending", "ready", "transfer", "unsent", "views")

    def __init__(self, transfer, nranks: int, contributors: int) -> None:
        self.transfer = transfer
        self.views: list[memoryview | None] = [None] * nranks
        self.pending = contributors  # payloads that are not there yet
        self.ready = False  # reduced, or nothing to reduce
        self.unsent = 0  # messages whose bytes are still queued

    def release(self) -> None:
        """One message of this round has left; called by the connection."""
        self.unsent -= 1
        if self.unsent == 0:
            self.transfer.released(self)


class Transfer:
    """What collectives and exchanges have in common: rounds, the window, the members to send to."""

    __slots__ = (
        "comm", "count", "dropped", "elem_bytes", "emitted", "emitting", "item", "keys", "relay", "round_elems",
        "rounds", "table", "unreleased",
    )  # fmt: skip

    def __init__(self, relay: Relay, comm, item, kind: int, nranks: int, op) -> None:
        self.relay, self.comm, self.item = relay, comm, item
        self.count, self.elem_bytes = op.count, SIZES[op.dtype]
        self.round_elems = round_elems(kind, nranks, self.elem_bytes, relay.chunk_bytes)
        self.rounds = round_count(kind, nranks, self.count, self.elem_bytes, relay.chunk_bytes)
        self.table: dict[int, Round] = {}  # rounds that are not emitted yet
        self.emitted = self.unreleased = 0
        self.dropped = self.emitting = False

    def block_bytes(self, number: int) -> int:
        """Bytes of one block that a round carries."""
        return min(self.round_elems, self.count - number * self.round_elems) * self.elem_bytes

    def check_round(self, rank: int, opid: int, number: int, size: int, expected: int) -> None:
        """A payload must be the next ones of its rank and of the right size."""
        limit = min(self.emitted + self.relay.window, self.rounds)
        if not self.emitted <= number < limit:
            found, want = f"round {number}", f"{self.emitted} to {limit - 1}"
        elif size != expected:
            found, want = f"round {number} with {size} bytes", f"{expected} bytes"
        else:
            return
        text = f"{self.comm.title}: DATA of rank {rank} for operation {opid}: found {found}, expected {want}"
        raise error_for(Status.PROTOCOL, text)

    def emit(self) -> None:
        """Send the rounds that are complete, in order, as far as slow members allow."""
        if self.emitting:
            return  # a round that left at once released itself inside send_round: the loop below goes on
        self.emitting = True
        window = self.relay.window
        while not self.dropped and self.unreleased < window:
            current = self.table.get(self.emitted)
            if current is None or not current.ready:
                break
            del self.table[self.emitted]
            number, self.emitted = self.emitted, self.emitted + 1
            self.unreleased += 1
            self.send_round(number, current)
            if self.emitted == self.rounds:
                self.relay.finished(self)
        self.emitting = False

    def send_round(self, number: int, current: Round) -> None:
        raise NotImplementedError

    def released(self, current: Round) -> None:
        """All bytes of a round have left: its buffers are free."""
        self.unreleased -= 1
        self.recycle(current)
        self.emit()

    def recycle(self, current: Round) -> None:
        for view in current.views:
            if view is not None:
                self.relay.pool.give(view)
        current.views = []

    def drop(self) -> None:
        """The communicator failed: forget what is not on its way yet."""
        self.dropped = True
        for current in self.table.values():
            if current.ready:
                self.recycle(current)
            elif current.pending:  # a connection may still be writing there; a running reduction recycles its own
                self.relay.pool.forget(current.views)
        self.table.clear()


class CollectiveTransfer(Transfer):
    """A collective's rounds: gather the inputs, reduce, send every member its blocks."""

    __slots__ = ("contributors", "opids", "plan", "scalars")

    def __init__(self, relay: Relay, comm, item: Collective) -> None:
        super().__init__(relay, comm, item, item.kind, item.nranks, item)
        self.plan = plan_of(item.kind, item.nranks, item.root)
        self.contributors = self.plan.contributors
        self.opids = [op.opid for op in item.ops]
        self.scalars = [op.scalar for op in item.ops] if item.redop == _PREMULSUM else None

    def reserve(self, rank: int, opid: int, number: int, size: int) -> Slot:
        expected = self.plan.inputs[rank] * self.block_bytes(number)
        self.check_round(rank, opid, number, size, expected)
        current = self.table.get(number)
        if current is None:
            current = self.table[number] = Round(self, len(self.opids), len(self.contributors))
        if current.views[rank] is not None or not expected:
            text = f"{self.comm.title}: DATA of rank {rank} for operation {opid}: round {number} was not expected"
            raise error_for(Status.PROTOCOL, text)
        view = current.views[rank] = self.relay.pool.take(size)
        return Slot(self, rank, number, view)

    def arrived(self, slot: Slot) -> None:
        current = self.table[slot.round]
        self.item.sent += len(slot.view)
        current.pending -= 1
        if current.pending:
            return
        if not self.plan.reduced:
            current.ready = True
            self.emit()
            return
        inputs = [current.views[rank] for rank in self.contributors]
        dtype, redop, scalars = self.item.dtype, self.item.redop, self.scalars
        if len(inputs) * len(inputs[0]) < _POOLED_REDUCTION:
            reduce(dtype, redop, inputs, inputs[:1], scalars)
            self.reduced(current)
        else:
            self.relay.in_thread(
                lambda: reduce(dtype, redop, inputs, inputs[:1], scalars), lambda: self.reduced(current)
            )

    def reduced(self, current: Round) -> None:
        """The round's first buffer holds the reduction."""
        current.ready = True
        if self.dropped:
            self.recycle(current)
        else:
            self.emit()

    def send_round(self, number: int, current: Round) -> None:
        size = self.block_bytes(number)
        members = self.comm.members
        current.unsent = 1  # held until every message is queued
        for rank, opid in enumerate(self.opids):
            member = members[rank]
            if member is None:
                continue
            parts = [current.views[r][b * size : (b + 1) * size] for r, b in self.plan.outputs[rank]]
            payload = size * len(parts)
            self.item.received += payload
            current.unsent += 1
            header = wire.encode_data_header(opid=opid, round=number, payload_bytes=payload, member=member.handle)
            member.process.send_data([header, *parts], current)
        current.release()


class Stream(Transfer):
    """A send's rounds, passed on to the receiver; an eager one is kept until its receive comes."""

    __slots__ = ("arrived_rounds", "dst", "eager", "opid", "recv_opid", "src")

    def __init__(self, relay: Relay, comm, src: int, dst: int, op) -> None:
        super().__init__(relay, comm, None, _SEND, 1, op)
        self.src, self.dst, self.opid, self.eager = src, dst, op.opid, bool(op.flags & _OP_EAGER)
        self.recv_opid = 0  # 0 = not matched yet
        self.arrived_rounds = 0

    def reserve(self, rank: int, opid: int, number: int, size: int) -> Slot:
        if not self.eager:
            self.check_round(rank, opid, number, size, self.block_bytes(number))
        if number != self.arrived_rounds or number >= self.rounds or size != self.block_bytes(number):
            text = f"{self.comm.title}: DATA of rank {rank} for operation {opid}: round {number} with {size} bytes"
            raise error_for(Status.PROTOCOL, f"{text}, expected round {self.arrived_rounds} of {self.rounds}")
        self.arrived_rounds += 1
        current = self.table[number] = Round(self, 1, 1)
        view = current.views[0] = self.relay.pool.take(size)
        return Slot(self, rank, number, view)

    def arrived(self, slot: Slot) -> None:
        current = self.table[slot.round]
        current.pending, current.ready = 0, True
        if self.recv_opid:
            self.emit()

    def match(self, item: Exchange) -> None:
        """The receive is there: pass on what has come, and everything from now on."""
        self.item, self.recv_opid = item, item.recv.opid
        self.emit()

    def send_round(self, number: int, current: Round) -> None:
        view = current.views[0]
        self.item.sent += len(view)
        self.item.received += len(view)
        src, dst = self.comm.members[self.src], self.comm.members[self.dst]
        current.unsent = 1
        if dst is not None:
            current.unsent += 1
            size = len(view)
            header = wire.encode_data_header(opid=self.recv_opid, round=number, payload_bytes=size, member=dst.handle)
            dst.process.send_data([header, view], current)
        if src is not None and not self.eager:
            current.unsent += 1
            header = wire.encode_data_header(opid=self.opid, round=number, payload_bytes=0, member=src.handle)
            src.process.send_data([header], current)
        current.release()


class Relay:
    """All transfers of one coordinator, by (member handle, operation)."""

    def __init__(self, chunk_bytes: int, window: int, limit_bytes: int, in_thread: Callable) -> None:
        self.chunk_bytes, self.window = chunk_bytes, window
        self.pool = BufferPool(chunk_bytes, limit_bytes)
        self.in_thread = in_thread  # (work, then): work in a thread, then `then` in the event loop
        self._transfers: dict[tuple[int, int], Transfer] = {}
        self._by_comm: dict[int, set[Transfer]] = {}

    def _add(self, transfer: Transfer, keys: list[tuple[int, int]]) -> None:
        transfer.keys = keys
        for key in keys:
            self._transfers[key] = transfer
        self._by_comm.setdefault(transfer.comm.id, set()).add(transfer)

    def eager(self, comm, rank: int, op) -> None:
        """An eager send was submitted: its payload may come before its receive."""
        stream = Stream(self, comm, rank, op.root, op)
        if stream.rounds:
            self._add(stream, [(comm.handle(rank), op.opid)])

    def start(self, comm, item: Collective | Exchange) -> None:
        """An operation matched: its members move the payload now."""
        if type(item) is Exchange:
            key = (comm.handle(item.src), item.send.opid)
            stream = self._transfers.get(key)
            if stream is None:
                stream = Stream(self, comm, item.src, item.dst, item.send)
                if not stream.rounds:
                    return
                self._add(stream, [key])
            stream.match(item)
        elif item.kind != _BARRIER and item.count:
            transfer = CollectiveTransfer(self, comm, item)
            self._add(transfer, [(comm.handle(r), transfer.opids[r]) for r in transfer.contributors])

    def reserve(self, comm, rank: int, handle: int, opid: int, number: int, size: int) -> Slot | None:
        """Where a DATA frame's payload goes; None: nowhere, its communicator failed. Raises for a wrong frame."""
        transfer = self._transfers.get((handle, opid))
        if transfer is None:
            if comm.failure is not None:
                return None
            text = f"{comm.title}: DATA of rank {rank} for operation {opid}, which is not under way"
            raise error_for(Status.PROTOCOL, text)
        return transfer.reserve(rank, opid, number, size)

    def arrived(self, slot: Slot, now: int) -> None:
        """A reserved payload is complete."""
        transfer = slot.transfer
        if transfer.dropped:
            return
        item = transfer.item
        if item is not None:
            item.deadline = now + item.timeout_ns
        transfer.arrived(slot)

    def finished(self, transfer: Transfer) -> None:
        """The last round was sent."""
        for key in transfer.keys:
            self._transfers.pop(key, None)
        self._by_comm[transfer.comm.id].discard(transfer)

    def drop(self, comm) -> None:
        """A communicator failed or ended."""
        dropped = self._by_comm.pop(comm.id, set())
        for transfer in dropped:
            transfer.drop()
        if dropped:
            self._transfers = {k: t for k, t in self._transfers.items() if not t.dropped}
