"""What the rank processes of the libnccl tests run; see nccl_world.py. Imports nothing heavy but numpy."""

from __future__ import annotations

import ctypes
import os
import threading
import time

import numpy as np

from fakegpu.nccl_ctypes import IN_PROGRESS, Comm, Config, Nccl, NcclError, SimInfo, UniqueId, library_path


class Context:
    """One rank's process: the library, and the communicators that bodies leave behind."""

    def __init__(self, rank: int, nranks: int) -> None:
        self.rank, self.nranks = rank, nranks
        self.comms: dict[str, Comm] = {}
        self._nccl: Nccl | None = None

    @property
    def nccl(self) -> Nccl:
        if self._nccl is None:
            self._nccl = Nccl(os.environ.get("TEST_NCCL_LIBRARY"))  # a sanitized build
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


def abort_all(ctx: Context) -> None:
    """Leave nothing behind for the next test."""
    while ctx.comms:
        _, comm = ctx.comms.popitem()
        if comm.handle:
            comm.abort()


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


def bench(ctx: Context, nbytes: int, iterations: int, device: bool) -> list[float]:
    """Seconds of each of several all-reduces."""
    buffers = Buffers(ctx, device)
    send, out = buffers.array(nbytes, np.dtype("f4")), buffers.array(nbytes, np.dtype("f4"))
    send[:] = 1
    times = []
    for _ in range(iterations + 3):
        started = time.perf_counter()
        ctx.comm.all_reduce(send, out)
        times.append(time.perf_counter() - started)
    assert (out == ctx.nranks).all()
    buffers.free()
    return times[3:]


def ring(ctx: Context, count: int, device: bool) -> np.ndarray:
    """Everybody sends to the right and receives from the left in one group."""
    buffers = Buffers(ctx, device)
    send, out = buffers.array(4 * count, np.dtype("i4")), buffers.array(4 * count, np.dtype("i4"))
    send[:] = np.arange(count) + ctx.rank * 1000
    with ctx.nccl.group():
        ctx.comm.send(send, (ctx.rank + 1) % ctx.nranks)
        ctx.comm.recv(out, (ctx.rank - 1) % ctx.nranks)
    result = out.copy()
    buffers.free()
    return result


def self_send(ctx: Context, count: int) -> bool:
    send, out = np.arange(count, dtype=np.int64) + ctx.rank, np.zeros(count, np.int64)
    with ctx.nccl.group():
        ctx.comm.send(send, ctx.rank)
        ctx.comm.recv(out, ctx.rank)
    return bool((out == send).all())


def ordered_pairs(ctx: Context, count: int) -> list[int]:
    """Rank 0 sends numbered messages to the last rank."""
    last, found = ctx.nranks - 1, []
    for i in range(count):
        value = np.full(1 + i * 37, i, np.int32)
        if ctx.rank == 0:
            ctx.comm.send(value, last)
        elif ctx.rank == last:
            value[:] = -1
            ctx.comm.recv(value, 0)
            found.append(int(value[-1]) if (value == value[0]).all() else -1)
    return found


def many_operations(ctx: Context, count: int):
    values, outs = [np.array([ctx.rank + i], np.int64) for i in range(count)], np.zeros(count, np.int64)
    big, got = np.full(50_000, ctx.rank, np.int32), np.zeros(50_000, np.int32)
    left, right = (ctx.rank - 1) % ctx.nranks, (ctx.rank + 1) % ctx.nranks
    with ctx.nccl.group():
        if ctx.rank % 2:
            ctx.comm.send(big, right)
        for i in range(count):
            ctx.comm.all_reduce(values[i], outs[i : i + 1])
        if not ctx.rank % 2:
            ctx.comm.send(big, right)
        ctx.comm.recv(got, left)
    return outs, bool((got == left).all())


def two_communicators(ctx: Context) -> bool:
    other = ctx.comm.split(0, ctx.nranks - ctx.rank)
    assert other.rank == ctx.nranks - 1 - ctx.rank
    a, b = np.full(1000, ctx.rank, np.float64), np.full(1000, other.rank, np.float64)
    out_a, out_b = np.zeros(1000), np.zeros(1000)
    pairs = [(ctx.comm, a, out_a), (other, b, out_b)]
    with ctx.nccl.group():
        for comm, send, out in pairs if ctx.rank % 2 else reversed(pairs):
            comm.all_reduce(send, out)
    other.destroy()
    total = sum(range(ctx.nranks))
    return bool((out_a == total).all() and (out_b == total).all())


def nested_group(ctx: Context) -> bool:
    ones, out, gathered = np.ones(3, np.float32), np.zeros(3, np.float32), np.zeros(ctx.nranks * 3, np.float32)
    with ctx.nccl.group():
        with ctx.nccl.group():
            ctx.comm.all_reduce(ones, out)
        before = out.copy()
        mine = np.full(3, ctx.rank, np.float32)
        ctx.comm.all_gather(mine, gathered)
    return bool((before == 0).all() and (out == ctx.nranks).all() and (gathered.reshape(-1, 3)[:, 0] == range(ctx.nranks)).all())


def init_all(ctx: Context, ndev: int) -> list[float]:
    handles = (ctypes.c_void_p * ndev)()
    ctx.nccl.ncclCommInitAll(handles, ndev, None)
    comms = [Comm(ctx.nccl, handle, ndev, rank) for rank, handle in enumerate(handles)]
    values = [np.array([float(rank)]) for rank in range(ndev)]
    with ctx.nccl.group():
        for comm, value in zip(comms, values):
            comm.all_reduce(value, value)
    for comm in comms:
        comm.destroy()
    return [float(value[0]) for value in values]


def finalize_one_by_one(ctx: Context, uid: bytes, per_process: int) -> list[int]:
    """One thread ends its devices in turn, as single-process programs do; another process's are among the members."""
    handles, unique = [ctypes.c_void_p() for _ in range(per_process)], UniqueId.from_bytes(uid)
    with ctx.nccl.group():
        for i, handle in enumerate(handles):
            rank = ctx.rank * per_process + i
            ctx.nccl.ncclCommInitRank(ctypes.byref(handle), ctx.nranks * per_process, unique, rank)
    for handle in handles:
        ctx.nccl.ncclCommFinalize(handle)
    for handle in handles:
        ctx.nccl.ncclCommDestroy(handle)
    return [ctx.rank * per_process + i for i in range(per_process)]


def split(ctx: Context, colors: list[int], keys: list[int]):
    made = ctx.comm.split(colors[ctx.rank], keys[ctx.rank])
    if made is None:
        return None
    value = np.array([ctx.rank], np.int64)
    made.all_reduce(value, value)
    answer = made.nranks, made.rank, int(value[0])
    made.destroy()
    return answer


def shrink(ctx: Context, exclude: list[int], abort_first: bool):
    if ctx.rank in exclude:
        return None
    made = ctx.comm.shrink(exclude, abort_first)
    value = np.array([ctx.rank + 1], np.int64)
    made.all_reduce(value, value)
    answer = made.nranks, made.rank, int(value[0])
    made.destroy()
    return answer


def nonblocking_init(ctx: Context, uid: bytes):
    """What early use, polling and a collective afterwards answer."""
    raw, handle, state = ctx.nccl.raw, ctypes.c_void_p(), ctypes.c_int()
    first = raw.ncclCommInitRankConfig(ctypes.byref(handle), ctx.nranks, UniqueId.from_bytes(uid), ctx.rank,
                                       ctypes.byref(Config(blocking=0)))  # fmt: skip
    value, early = np.array([1.0], np.float32), None
    address = value.ctypes.data
    raw.ncclCommGetAsyncError(handle, ctypes.byref(state))
    if state.value == IN_PROGRESS:
        early = raw.ncclAllReduce(address, address, 1, 7, 0, handle, None)
    limit = time.monotonic() + 20
    while state.value == IN_PROGRESS and time.monotonic() < limit:
        raw.ncclCommGetAsyncError(handle, ctypes.byref(state))
    comm = ctx.comms["nonblocking"] = Comm(ctx.nccl, handle.value, ctx.nranks, ctx.rank)
    comm.all_reduce(value, value)
    return first, early, state.value, float(value[0])


def finalize_and_destroy(ctx: Context) -> tuple[int, int]:
    ctx.comm.finalize()
    value = np.zeros(1, np.float32)
    used = ctx.nccl.raw.ncclAllReduce(value.ctypes.data, value.ctypes.data, 1, 7, 0, ctx.comm.handle, None)
    error = ctx.comm.async_error()
    destroy(ctx)
    return used, error


def raw_call(ctx: Context, name: str, *arguments) -> tuple[int, str]:
    """A call with plain numbers; "comm" stands for the handle, "buffer" for an address with room for 4 KiB."""
    room = np.zeros(4096, np.uint8)
    special = {"comm": ctx.comm.handle, "buffer": room.ctypes.data, "buffer+4": room.ctypes.data + 4}
    given = [special.get(a, a) if isinstance(a, str) else a for a in arguments]
    return getattr(ctx.nccl.raw, name)(*given), ctx.nccl.last_error()


def premul_from_device(ctx: Context) -> float:
    """The scalar lies in device memory and changes after the operator was made."""
    buffers = Buffers(ctx, True)
    scalar = buffers.array(4, np.dtype("f4"))
    scalar[0] = 100
    op = ctx.comm.premul_sum(scalar, 7, on_device=scalar.ctypes.data)
    scalar[0] = ctx.rank + 2
    value = np.array([10.0], np.float32)
    ctx.comm.all_reduce(value, value, op)
    ctx.nccl.ncclRedOpDestroy(op, ctx.comm.handle)
    buffers.free()
    return float(value[0])


def describe(ctx: Context) -> dict:
    """Facts of the communicator through the small calls."""
    device, stats, handle, room = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p(), np.zeros(64)
    ctx.nccl.ncclCommCuDevice(ctx.comm.handle, ctypes.byref(device))
    ctx.nccl.ncclCommMemStats(ctx.comm.handle, 3, ctypes.byref(stats))
    ctx.nccl.ncclCommRegister(ctx.comm.handle, room.ctypes.data, room.nbytes, ctypes.byref(handle))
    ctx.nccl.ncclCommDeregister(ctx.comm.handle, handle)
    again = ctx.nccl.raw.ncclCommDeregister(ctx.comm.handle, handle)
    return {"device": device.value, "bytes": stats.value, "registered": bool(handle.value), "again": again,
            "error_string": ctx.nccl.raw.ncclGetErrorString(4).decode()}


def simulate_group(ctx: Context, count: int) -> tuple[float, bool]:
    """The modelled time of a queued all-reduce, and that it did not run."""
    info, value = SimInfo(), np.ones(count, np.float32)
    ctx.nccl.ncclGroupStart()
    ctx.comm.all_reduce(value, value)
    ctx.nccl.ncclGroupSimulateEnd(ctypes.byref(info))
    return info.estimatedTime, bool((value == 1).all())


def put_ring(ctx: Context, count: int, rounds: int) -> bool:
    """Each rank puts into its right neighbour's window, which waits for the signal and answers with one."""
    buffers, window = Buffers(ctx, True), ctypes.c_void_p()
    memory, source = buffers.array(8 * 2 * count, np.dtype("i8")), buffers.array(8 * count, np.dtype("i8"))
    memory[:] = -1
    nccl, comm = ctx.nccl, ctx.comm
    left, right = (ctx.rank - 1) % ctx.nranks, (ctx.rank + 1) % ctx.nranks
    nccl.ncclCommWindowRegister(comm.handle, memory.ctypes.data, memory.nbytes, ctypes.byref(window), 0)
    fine = True
    for number in range(rounds):
        source[:] = ctx.rank * 100 + number
        nccl.ncclPutSignal(source.ctypes.data, count, 4, right, window, 8 * count, 0, 0, 0, comm.handle, None)
        wait_signals(ctx, [(1, left, 0, 0)])
        fine &= bool((memory[count:] == left * 100 + number).all() and (memory[:count] == -1).all())
        nccl.ncclSignal(left, 1, 0, 0, comm.handle, None)
        wait_signals(ctx, [(1, right, 1, 0)])
    nccl.ncclCommWindowDeregister(comm.handle, window)
    buffers.free()
    return fine


def wait_signals(ctx: Context, descriptors: list[tuple[int, int, int, int]]) -> None:
    array = (ctypes.c_int * (4 * len(descriptors)))(*(value for d in descriptors for value in d))
    ctx.nccl.ncclWaitSignal(len(descriptors), array, ctx.comm.handle, None)


def peer_pointers(ctx: Context) -> list[int]:
    """The first element of every rank's window, read through its pointer in this process."""
    buffers, window, pointer = Buffers(ctx, True), ctypes.c_void_p(), ctypes.c_void_p()
    memory = buffers.array(4096, np.dtype("i8"))
    memory[0] = 40 + ctx.rank
    ctx.nccl.ncclCommWindowRegister(ctx.comm.handle, memory.ctypes.data, memory.nbytes, ctypes.byref(window), 1)
    found = []
    for peer in range(ctx.nranks):
        ctx.nccl.ncclGetPeerDevicePointer(window, 0, peer, ctypes.byref(pointer))
        found.append(ctypes.c_int64.from_address(pointer.value).value if pointer.value else None)
    wait = np.zeros(1, np.int32)
    ctx.comm.all_reduce(wait, wait)  # nobody frees before everybody has read
    ctx.nccl.ncclCommWindowDeregister(ctx.comm.handle, window)
    buffers.free()
    return found


class Cuda:
    """The little of libcudart.so.13 that stream tests need."""

    NOT_READY = 600

    def __init__(self) -> None:
        self.raw = ctypes.CDLL(str(library_path().parent / "libcudart.so.13"))

    def call(self, name: str, *arguments) -> None:
        result = getattr(self.raw, name)(*arguments)
        if result:
            raise RuntimeError(f"{name}: {result}")

    def stream(self) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.call("cudaStreamCreateWithFlags", ctypes.byref(made), 1)
        return made

    def array(self, nbytes: int, dtype: str) -> np.ndarray:
        pointer = ctypes.c_void_p()
        self.call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(nbytes))
        return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(pointer.value), dtype)


def issue_async(ctx: Context, count: int) -> tuple[float, int]:
    """Issue an all-reduce on a stream: seconds that took, and what cudaStreamQuery answers right after."""
    ctx.cuda = Cuda()
    ctx.stream, ctx.value = ctx.cuda.stream(), ctx.cuda.array(4 * count, "f4")
    ctx.value[:] = ctx.rank + 1
    started = time.perf_counter()
    ctx.comm.all_reduce(ctx.value, ctx.value, stream=ctx.stream)
    return time.perf_counter() - started, ctx.cuda.raw.cudaStreamQuery(ctx.stream)


def finish_async(ctx: Context) -> float:
    ctx.cuda.call("cudaStreamSynchronize", ctx.stream)
    return float(ctx.value[-1])


def several_streams(ctx: Context, count: int) -> list[float]:
    """Operations of one communicator on several streams, ungrouped and in one group that names two of them."""
    cuda = Cuda()
    streams, values = [cuda.stream() for _ in range(3)], [cuda.array(8 * count, "f8") for _ in range(3)]
    for number, (stream, value) in enumerate(zip(streams, values)):
        value[:] = ctx.rank + number
        ctx.comm.all_reduce(value, value, stream=stream)
    with ctx.nccl.group():
        ctx.comm.all_reduce(values[0], values[0], stream=streams[0])
        ctx.comm.all_reduce(values[1], values[1], stream=streams[1])
    for stream in streams:
        cuda.call("cudaStreamSynchronize", stream)
    return [float(value[-1]) for value in values]


def init_some(ctx: Context, uid: bytes, nranks: int, name: str) -> None:
    """A communicator of the first ranks only."""
    ctx.comms[name] = ctx.nccl.init(nranks, uid, ctx.rank)


def grow_id(ctx: Context, name: str) -> bytes:
    made = UniqueId()
    ctx.nccl.ncclCommGetUniqueId(ctx.comms[name].handle, ctypes.byref(made))
    return bytes(made)


def grow(ctx: Context, uid: bytes, parents: int, nranks: int, name: str) -> tuple[int, int, int]:
    """Ranks below `parents` grow their communicator; the others join. Answers size, rank and a sum over all."""
    handle, given = ctypes.c_void_p(), UniqueId.from_bytes(uid)
    member = ctx.rank < parents
    parent = ctx.comms[name].handle if member else None
    id_of = ctypes.byref(given) if not member or ctx.rank == 0 else None
    ctx.nccl.ncclCommGrow(parent, nranks, id_of, -1 if member else ctx.rank, ctypes.byref(handle), None)
    made = ctx.comms["grown"] = Comm(ctx.nccl, handle.value, nranks, ctx.rank)._made(handle)
    value = np.array([ctx.rank + 1], np.int64)
    made.all_reduce(value, value)
    return made.nranks, made.rank, int(value[0])


def huge_all_gather(ctx: Context, count: int) -> list[tuple[int, int]]:
    """In place, on device memory: (first, last) of every block, as bytes."""
    buffers = Buffers(ctx, True)
    out = buffers.array(ctx.nranks * count, np.dtype("u1"))
    mine = out[ctx.rank * count : (ctx.rank + 1) * count]
    mine[0], mine[-1] = 10 + ctx.rank, 20 + ctx.rank
    ctx.comm.all_gather(mine, out)
    found = [(int(out[r * count]), int(out[(r + 1) * count - 1])) for r in range(ctx.nranks)]
    buffers.free()
    return found


from nccl_failure_bodies import *  # noqa: E402, F403 - rank processes look bodies up here
from nccl_fuzz import end_program, resources, run_program  # noqa: E402, F401 - rank processes look bodies up here
