"""What the rank processes of the libnccl tests run; see nccl_world.py. Imports nothing heavy but numpy."""

from __future__ import annotations

import ctypes

import numpy as np

from fakegpu.nccl_ctypes import Comm, Nccl


class Context:
    """One rank's process: the library, and the communicators that bodies leave behind."""

    def __init__(self, rank: int, nranks: int) -> None:
        self.rank, self.nranks = rank, nranks
        self.comms: dict[str, Comm] = {}
        self._nccl: Nccl | None = None

    @property
    def nccl(self) -> Nccl:
        if self._nccl is None:
            self._nccl = Nccl()
        return self._nccl

    @property
    def comm(self) -> Comm:
        return self.comms["world"]


def unique_id(ctx: Context) -> bytes:
    return ctx.nccl.unique_id()


def init(ctx: Context, uid: bytes, name: str = "world") -> tuple[int, int]:
    comm = ctx.comms[name] = ctx.nccl.init(ctx.nranks, uid, ctx.rank)
    return comm.nranks, comm.rank


def destroy(ctx: Context, name: str = "world") -> None:
    ctx.comms.pop(name).destroy()


class Buffers:
    """Memory for one rank's operation: numpy arrays on the host, or ncclMemAlloc'ed device memory."""

    def __init__(self, ctx: Context, device: bool) -> None:
        self.nccl, self.device, self.held = ctx.nccl, device, []

    def array(self, nbytes: int, dtype: np.dtype) -> np.ndarray:
        if not self.device or nbytes == 0:
            return np.zeros(nbytes // dtype.itemsize, dtype)
        pointer = ctypes.c_void_p()
        self.nccl.ncclMemAlloc(ctypes.byref(pointer), nbytes)
        self.held.append(pointer)
        memory = (ctypes.c_uint8 * nbytes).from_address(pointer.value)
        return np.frombuffer(memory, dtype)

    def free(self) -> None:
        for pointer in self.held:
            self.nccl.ncclMemFree(pointer)


def collective(ctx: Context, kind: str, data: list[np.ndarray], dtype: int, op: int, root: int, count: int,
               out_blocks: int, in_place: bool, device: bool, premul: list[np.ndarray] | None = None) -> np.ndarray:
    """One collective with rank's input data[rank]; answers its output buffer. `count` as the NCCL call wants it."""
    comm, buffers = ctx.comm, Buffers(ctx, device)
    mine = data[ctx.rank]
    if premul is not None:
        op = comm.premul_sum(premul[ctx.rank], dtype)
    try:
        item = mine.dtype.itemsize
        out = buffers.array(out_blocks * count * item, mine.dtype)
        send = None
        if in_place:
            send, out = place(kind, buffers, mine, out, comm.rank, root, count)
        else:
            send = buffers.array(mine.nbytes, mine.dtype)
            send[:] = mine
        call(comm, kind, send, out, dtype, op, root, count)
        return np.array(out)
    finally:
        buffers.free()
        if premul is not None:
            ctx.nccl.ncclRedOpDestroy(op, comm.handle)


def place(kind, buffers, mine, out, rank, root, count):
    """The in-place form: (send, recv) views of one buffer."""
    if kind in ("all_gather", "gather"):
        at = slice(rank * count, (rank + 1) * count)
        if kind == "gather" and rank != root:
            return mine.copy(), out
        out[at] = mine
        return out[at], out
    if kind in ("reduce_scatter", "scatter"):
        whole = buffers.array(mine.nbytes, mine.dtype)
        whole[:] = mine
        if kind == "scatter" and rank != root:
            return whole, out
        return whole, whole[rank * count : (rank + 1) * count]
    whole = buffers.array(mine.nbytes, mine.dtype)
    whole[:] = mine
    return whole, whole


def call(comm: Comm, kind: str, send, out, dtype: int, op: int, root: int, count: int) -> None:
    if kind == "all_reduce":
        comm.all_reduce(send, out, op, count, dtype)
    elif kind == "reduce":
        comm.reduce(send, out if comm.rank == root or send is out else None, root, op, count, dtype)
    elif kind == "broadcast":
        comm.broadcast(send, out, root, count, dtype)
    elif kind == "all_gather":
        comm.all_gather(send, out, count, dtype)
    elif kind == "reduce_scatter":
        comm.reduce_scatter(send, out, op, count, dtype)
    elif kind == "all_to_all":
        comm.all_to_all(send, out, count, dtype)
    elif kind == "gather":
        comm.gather(send, out if comm.rank == root else None, root, count, dtype)
    elif kind == "scatter":
        comm.scatter(send if comm.rank == root else None, out, root, count, dtype)
    else:
        raise ValueError(kind)
