"""A rank's handle in one communicator: collectives, send and receive on numpy arrays. Made by client.py.

Arrays are C-contiguous. `dtype` names the element type where numpy only holds raw bits (bfloat16 in uint16, the fp8
types in uint8). Every call returns the output array; `out` may be the input (in place). Inside `with comm.group():`
calls only queue, and the arrays are filled when the group ends. Layer 5.
"""

from __future__ import annotations

import math
from collections import defaultdict
from contextlib import contextmanager

import numpy as np

from fakegpu._core import wire
from fakegpu.dtypes import POINT_TO_POINT, DType, Kind, ReduceOp, dtype_of, in_blocks, out_blocks
from fakegpu.errors import ArgumentError, UsageError, error_for
from fakegpu.task import Task

_RAW = (DType.BFLOAT16, DType.FLOAT8_E4M3, DType.FLOAT8_E5M2)


class Communicator:
    """See the module's text."""

    def __init__(self, client, ready) -> None:
        self.client = client
        self.rank, self.nranks, self.name = ready.rank, ready.nranks, ready.name
        self.id, self.handle = ready.comm, ready.member
        self.members = tuple(ready.members)
        self.error: tuple[int, str] | None = None  # permanent
        self.destroyed = False
        self.tasks: dict[int, Task] = {}  # submitted and not ended, by operation number
        self._next_op = 1
        self._next_collective = 0
        self._next_pair: dict[tuple[int, int], int] = defaultdict(int)

    @property
    def global_ranks(self) -> tuple[int, ...]:
        """Global rank of each rank."""
        return tuple(member.global_rank for member in self.members)

    # ---- collectives ----

    def all_reduce(self, array, out=None, op="sum", *, scalar=None, dtype=None) -> np.ndarray:
        """Every rank gets the reduction of all ranks' arrays; scalar: this rank's factor for op "premulsum"."""
        out = np.empty_like(array) if out is None else out
        return self._collective(Kind.ALL_REDUCE, array, out, array.size, dtype, op=op, scalar=scalar)

    def reduce(self, array, root=0, out=None, op="sum", *, scalar=None, dtype=None) -> np.ndarray | None:
        """The root gets the reduction of all ranks' arrays."""
        if out is None and self.rank == root:
            out = np.empty_like(array)
        return self._collective(Kind.REDUCE, array, out, array.size, dtype, op=op, scalar=scalar, root=root)

    def broadcast(self, array, root=0, out=None, *, dtype=None) -> np.ndarray:
        """Every rank's `out` (its `array` by default) gets the root's array."""
        out = array if out is None else out
        return self._collective(Kind.BROADCAST, array if self.rank == root else None, out, out.size, dtype, root=root)

    def all_gather(self, array, out=None, *, dtype=None) -> np.ndarray:
        """Every rank gets all ranks' arrays, in rank order: shape (nranks, *array.shape) by default."""
        out = np.empty((self.nranks, *array.shape), array.dtype) if out is None else out
        return self._collective(Kind.ALL_GATHER, array, out, array.size, dtype)

    def reduce_scatter(self, array, out=None, op="sum", *, scalar=None, dtype=None) -> np.ndarray:
        """Rank r gets the reduction of everybody's r-th block; array: nranks blocks."""
        count = self._block_count("reduce_scatter", array)
        out = self._block_like(array, count) if out is None else out
        return self._collective(Kind.REDUCE_SCATTER, array, out, count, dtype, op=op, scalar=scalar)

    def all_to_all(self, array, out=None, *, dtype=None) -> np.ndarray:
        """Rank r gets everybody's r-th block, in rank order."""
        count = self._block_count("all_to_all", array)
        out = np.empty_like(array) if out is None else out
        return self._collective(Kind.ALL_TO_ALL, array, out, count, dtype)

    def gather(self, array, root=0, out=None, *, dtype=None) -> np.ndarray | None:
        """The root gets all ranks' arrays, in rank order."""
        if out is None and self.rank == root:
            out = np.empty((self.nranks, *array.shape), array.dtype)
        return self._collective(Kind.GATHER, array, out, array.size, dtype, root=root)

    def scatter(self, array, root=0, out=None, *, dtype=None) -> np.ndarray:
        """Rank r gets the root's r-th block; only the root gives an array, the others need `out`."""
        if self.rank != root:
            array = None
        if out is None:
            if array is None:
                raise ArgumentError(f"scatter: rank {self.rank}: out is missing, expected an array for the block")
            out = self._block_like(array, self._block_count("scatter", array))
        return self._collective(Kind.SCATTER, array, out, out.size, dtype, root=root)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self._queue(Kind.BARRIER, None, None, 0, DType.INT8, root=-1)

    # ---- point to point ----

    def send(self, array, peer: int, *, dtype=None) -> None:
        """Send to a rank; a small array leaves without waiting for its receive."""
        self._queue(Kind.SEND, array, None, array.size, self._dtype("send", dtype, array), root=peer)

    def recv(self, out, peer: int, *, dtype=None) -> np.ndarray:
        """Fill `out` with what a rank sends."""
        self._queue(Kind.RECV, None, out, out.size, self._dtype("recv", dtype, out), root=peer)
        return out

    @contextmanager
    def group(self):
        """Operations inside are submitted together when it ends, over all communicators of the client."""
        with self.client.group():
            yield self

    # ---- other communicators, the end ----

    def split(self, color: int, key: int = 0, name: str = "") -> Communicator | None:
        """The communicator of the ranks with the same colour, in the order of key; None for colour -1."""
        return self._make(wire.encode_comm_split, color=color, key=key, name=name)

    def shrink(self, exclude, *, abort: bool = False, name: str = "") -> Communicator:
        """The communicator without some ranks; abort: end what is under way here first."""
        flags = wire.COMM_SHRINK_ABORT if abort else 0
        return self._make(wire.encode_comm_shrink, exclude=list(exclude), flags=flags, name=name)

    def _make(self, encode, **fields) -> Communicator | None:
        self._check_alive()
        reply = self.client.request(encode, member=self.handle, timeout_ms=self.client.timeout_ms, **fields)
        return self.client.made(reply)

    def finalize(self) -> None:
        """Wait until every rank said that it submits no more."""
        self._check_alive()
        self.client.request(wire.encode_comm_finalize, member=self.handle)

    def destroy(self) -> None:
        """Give the handle up; an error for the others if they still need this rank."""
        self._end(wire.encode_comm_destroy)

    def abort(self, text: str = "") -> None:
        """End the communicator for everybody, at once."""
        self._end(wire.encode_comm_abort, text=text)

    def revoke(self) -> None:
        """End the operations for everybody; split and shrink stay possible."""
        self._check_alive()
        self.client.request(wire.encode_comm_revoke, member=self.handle)

    def _end(self, encode, **fields) -> None:
        if not self.destroyed:
            self.destroyed = True
            self.client.request(encode, member=self.handle, **fields)
            self.client.forget(self)

    def check(self) -> None:
        """Raise the communicator's permanent error, if there is one."""
        if self.error is not None:
            raise error_for(*self.error)

    def _check_alive(self) -> None:
        if self.destroyed:
            raise UsageError(f"communicator '{self.name}': used after destroy or abort")

    # ---- from call to task ----

    def _collective(self, kind, array, out, count, dtype, *, op="sum", scalar=None, root=-1):
        element = self._dtype(kind.label, dtype, array if array is not None else out)
        self._queue(kind, array, out, count, element, op=op, scalar=scalar, root=root)
        return out

    def _queue(self, kind, array, out, count, dtype, *, op="sum", scalar=None, root=-1) -> None:
        """Check the arguments and hand a task to the client, which runs it or adds it to the open group."""
        self._check_alive()
        self.check()
        call = kind.label
        if root != -1 or kind in POINT_TO_POINT:
            if not 0 <= root < self.nranks:
                what = "peer" if kind in POINT_TO_POINT else "root"
                raise ArgumentError(f"{call}: {what} {root}, expected 0 to {self.nranks - 1}")
        nranks = 1 if kind in POINT_TO_POINT else self.nranks
        inputs = _blocks(call, "array", array, in_blocks(kind, nranks), count, dtype)
        outputs = _blocks(call, "out", out, out_blocks(kind, nranks), count, dtype, writable=True)
        redop = ReduceOp.parse(op)
        bits = _scalar_bits(call, redop, scalar, dtype)
        seq = self._sequence(kind, root)
        flags = 0
        if kind == Kind.SEND and count * dtype.size <= self.client.welcome.eager_bytes:
            flags = wire.OP_EAGER
        record = wire.Op(
            opid=self._next_op, seq=seq, count=count, kind=kind, dtype=dtype, redop=redop, root=root, flags=flags,
            scalar=bits,
        )  # fmt: skip
        self._next_op += 1
        self.client.add(Task(self, record, inputs, outputs))

    def _sequence(self, kind: Kind, root: int) -> int:
        if kind in POINT_TO_POINT:
            number = self._next_pair[kind, root]
            self._next_pair[kind, root] += 1
            return number
        self._next_collective += 1
        return self._next_collective - 1

    def _dtype(self, call: str, dtype, array) -> DType:
        if not isinstance(array, np.ndarray):
            raise ArgumentError(f"{call}: found {type(array).__name__}, expected a numpy array")
        if dtype is None:
            return dtype_of(array)
        named = DType.parse(dtype)
        if named.numpy != array.dtype:
            raise ArgumentError(f"{call}: dtype {named.label}: array of {array.dtype}, expected {named.numpy}")
        return named

    def _block_count(self, call: str, array) -> int:
        if array.size % self.nranks:
            raise ArgumentError(f"{call}: {array.size} elements, expected a multiple of {self.nranks} ranks")
        return array.size // self.nranks

    def _block_like(self, array, count: int) -> np.ndarray:
        shape = array.shape[1:] if array.ndim > 1 and math.prod(array.shape[1:]) == count else (count,)
        return np.empty(shape, array.dtype)


def _blocks(call, name, array, blocks, count, dtype, writable=False) -> list[memoryview]:
    """Byte views of an array's blocks; [] when the rank has no such buffer."""
    if array is None or not blocks:
        return []
    if not isinstance(array, np.ndarray) or array.dtype != dtype.numpy:
        found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise ArgumentError(f"{call}: {name}: found {found}, expected a numpy array of {dtype.numpy}")
    if array.size != blocks * count:
        raise ArgumentError(f"{call}: {name}: {array.size} elements, expected {blocks * count}")
    if not array.flags.c_contiguous or (writable and not array.flags.writeable):
        raise ArgumentError(f"{call}: {name}: expected a C-contiguous{' writable' if writable else ''} array")
    view = memoryview(array.reshape(-1).view(np.uint8)) if array.size else memoryview(bytearray())
    size = count * dtype.size
    return [view[i * size : (i + 1) * size] for i in range(blocks)]


def _scalar_bits(call: str, redop: ReduceOp, scalar, dtype: DType) -> int:
    """A pre-multiplied sum's factor as raw bits; where numpy has no such type the caller gives the bits."""
    if (scalar is None) != (redop is not ReduceOp.PREMULSUM):
        raise ArgumentError(f"{call}: op {redop.label}: scalar {scalar}, expected one with premulsum, none otherwise")
    if scalar is None:
        return 0
    if dtype in _RAW:
        return int(scalar)
    return int.from_bytes(np.array(scalar, dtype.numpy).tobytes(), "little")
