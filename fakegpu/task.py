"""One operation of the Python client on its way: which bytes go out, where the results go, how far it is.

Made by member.py, driven by the thread that waits for it (client.py), filled by the client's receiver thread. Payloads
are byte views of the caller's arrays, one per block; a round is a slice of every block. Layer 5.
"""

from __future__ import annotations

import time

from fakegpu._core import wire
from fakegpu.collectives import round_count, round_elems
from fakegpu.dtypes import SIZES, Kind
from fakegpu.errors import Status

_P2P = (int(Kind.SEND), int(Kind.RECV))


class Task:
    """See the module's text."""

    __slots__ = (
        "comm", "count", "eager", "elem_bytes", "error", "flip", "go_ns", "inputs", "moved", "op", "outputs", "received",
        "round_elems", "rounds", "sent",
    )  # fmt: skip

    def __init__(self, comm, op, inputs: list[memoryview], outputs: list[memoryview]) -> None:
        self.comm, self.op, self.inputs, self.outputs = comm, op, inputs, outputs
        welcome, kind = comm.client.welcome, op.kind
        nranks = 1 if kind in _P2P else comm.nranks
        self.count, self.elem_bytes = op.count, SIZES[op.dtype]
        self.round_elems = round_elems(kind, nranks, self.elem_bytes, welcome.chunk_bytes)
        moves = kind != Kind.BARRIER
        self.rounds = round_count(kind, nranks, self.count, self.elem_bytes, welcome.chunk_bytes) if moves else 0
        self.eager = bool(op.flags & wire.OP_EAGER)
        self.go_ns = 0  # when GO came
        self.flip: int | None = None  # bit of the output to flip at the end
        self.sent = self.received = 0  # rounds
        self.moved = 0  # payload bytes, both ways
        self.error: tuple[int, str] | None = None  # of this operation only

    def obey(self, flags: int, now: int) -> None:
        """The operation may start; injected faults of a rank's own side come with it (see injection.py)."""
        self.go_ns = now
        if flags & wire.OP_DEVICE_ERROR:
            self.error = (Status.INJECTED, "injected fault: the device of this rank failed")
        if flags & wire.OP_CORRUPT:
            self.flip = flags >> wire.OP_BIT_SHIFT

    def corrupt(self) -> None:
        """Flip the bit of the output that an injected fault asked for."""
        size = sum(map(len, self.outputs))
        if self.flip is not None and size:
            byte, bit = divmod(self.flip % (size * 8), 8)
            for block in self.outputs:
                if byte < len(block):
                    block[byte] ^= 1 << bit
                    break
                byte -= len(block)

    @property
    def ended(self) -> bool:
        """Whether this rank's part is over."""
        if self.eager:
            return self.sent == self.rounds
        return self.go_ns > 0 and self.received == self.rounds and self._all_sent

    @property
    def _all_sent(self) -> bool:
        return not self.inputs or self.sent == self.rounds

    def may_send(self, window: int) -> bool:
        """Whether the next round may go out now."""
        if not self.inputs or self.sent == self.rounds:
            return False
        return self.eager or (self.go_ns > 0 and self.sent < self.received + window)

    def next_frame(self, handle: int) -> list:
        """The buffers of the next round's DATA frame."""
        number, self.sent = self.sent, self.sent + 1
        parts = self.slices(self.inputs, number)
        size = sum(map(len, parts))
        self.moved += size
        return [wire.encode_data_header(opid=self.op.opid, round=number, payload_bytes=size, member=handle), *parts]

    def slices(self, blocks: list[memoryview], number: int) -> list[memoryview]:
        """A round's part of each block."""
        first = number * self.round_elems * self.elem_bytes
        last = min((number + 1) * self.round_elems, self.count) * self.elem_bytes
        return [block[first:last] for block in blocks]

    def done(self):
        """The DONE record of an operation that ended."""
        self.corrupt()
        now = time.monotonic_ns()
        return wire.Done(opid=self.op.opid, exec_ns=max(now - self.go_ns, 0) if self.go_ns else 0, bytes=self.moved)
