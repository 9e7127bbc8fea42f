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


def send_then_receive(ctx: Context, count: int) -> bool:
    """Ungrouped, on both sides: passes because small sends do not wait."""
    send, out = np.full(count, ctx.rank, np.float32), np.zeros(count, np.float32)
    for peer in range(ctx.nranks):
        if peer != ctx.rank:
            ctx.comm.send(send, peer)
    send[:] = -1  # the payload has left the buffer
    for peer in range(ctx.nranks):
        if peer != ctx.rank:
            ctx.comm.recv(out, peer)
            if not (out == peer).all():
                return False
    return True


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


def error_in_group(ctx: Context) -> tuple[int, int]:
    out = np.zeros(3, np.float32)
    raw, handle = ctx.nccl.raw, ctx.comm.handle
    raw.ncclGroupStart()
    raw.ncclAllReduce(out.ctypes.data, out.ctypes.data, 3, 7, 0, handle, None)
    inside = raw.ncclBroadcast(out.ctypes.data, out.ctypes.data, 3, 99, 0, handle, None)
    return inside, raw.ncclGroupEnd()


def lonely_group_end(ctx: Context) -> None:
    ctx.nccl.ncclGroupEnd()


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


def raise_last(ctx: Context, name: str = "world") -> tuple[int, str]:
    """The communicator's asynchronous error and its text."""
    comm = ctx.comms[name]
    return comm.async_error(), comm.last_error()


def abort(ctx: Context, name: str = "world") -> float:
    started = time.perf_counter()
    ctx.comms.pop(name).abort()
    return time.perf_counter() - started


def submit(ctx: Context, kinds: list[tuple[str, int]]) -> None:
    """This rank's (kind, count) of a collective that need not be the others'."""
    kind, count = kinds[ctx.rank]
    send, out = np.zeros(count * ctx.nranks, np.float32), np.zeros(count * ctx.nranks, np.float32)
    call(ctx.comm, kind, send, out, 7, 0, 0, count)


def submit_with(ctx: Context, dtypes: list[int], ops: list[int], roots: list[int] | None) -> None:
    send, out = np.zeros(64, np.uint8), np.zeros(64, np.uint8)
    kind = "reduce" if roots else "all_reduce"
    call(ctx.comm, kind, send, out, dtypes[ctx.rank], ops[ctx.rank], roots[ctx.rank] if roots else 0, 4)


def skip_last_rank(ctx: Context) -> None:
    if ctx.rank != ctx.nranks - 1:
        value = np.zeros(4, np.float32)
        ctx.comm.all_reduce(value, value)


def exit_now(ctx: Context) -> None:
    """Die as kill -9 would have it: no BYE, no destroy."""
    os._exit(9)


def abort_from_another_thread(ctx: Context) -> tuple[float, int]:
    """One thread waits in an operation whose peer never comes; another aborts."""
    value, results, handle = np.zeros(4, np.float32), [], ctx.comm.handle
    raw = ctx.nccl.raw

    def wait() -> None:
        results.append(raw.ncclAllReduce(value.ctypes.data, value.ctypes.data, 4, 7, 0, handle, None))

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)  # the operation is on its way; aborting before it would be right as well
    seconds = abort(ctx)
    thread.join(20)
    return seconds, results[0] if results else -1


def large_exchange(ctx: Context, count: int, grouped: bool) -> bool:
    """Both sides send, then receive."""
    peer = 1 - ctx.rank
    send, out = np.full(count, ctx.rank, np.float32), np.zeros(count, np.float32)
    if grouped:
        ctx.nccl.ncclGroupStart()
    ctx.comm.send(send, peer)
    ctx.comm.recv(out, peer)
    if grouped:
        ctx.nccl.ncclGroupEnd()
    return bool((out == peer).all())


def uneven_pair(ctx: Context) -> None:
    """Rank 0 sends two elements, rank 1 expects three."""
    if ctx.rank == 0:
        ctx.comm.send(np.zeros(2, np.float32), 1)
        ctx.comm.recv(np.zeros(2, np.float32), 1)
    else:
        ctx.comm.recv(np.zeros(3, np.float32), 0)
        ctx.comm.send(np.zeros(2, np.float32), 0)


def opposite_communicators(ctx: Context) -> None:
    """Two communicators used in opposite order."""
    other = ctx.comms["other"] = ctx.comm.split(0, ctx.rank)
    value = np.zeros(4, np.float32)
    for comm in (ctx.comm, other) if ctx.rank == 0 else (other, ctx.comm):
        comm.all_reduce(value, value)


def split(ctx: Context, colors: list[int], keys: list[int]):
    made = ctx.comm.split(colors[ctx.rank], keys[ctx.rank])
    if made is None:
        return None
    value = np.array([ctx.rank], np.int64)
    made.all_reduce(value, value)
    answer = made.nranks, made.rank, int(value[0])
    made.destroy()
    return answer


def split_some(ctx: Context, callers: list[int]) -> None:
    if ctx.rank in callers:
        ctx.comm.split(0, ctx.rank)


def shrink(ctx: Context, exclude: list[int], abort_first: bool):
    if ctx.rank in exclude:
        return None
    made = ctx.comm.shrink(exclude, abort_first)
    value = np.array([ctx.rank + 1], np.int64)
    made.all_reduce(value, value)
    answer = made.nranks, made.rank, int(value[0])
    made.destroy()
    return answer


def revoke_then_split(ctx: Context) -> tuple[int, int, int]:
    ctx.nccl.ncclCommRevoke(ctx.comm.handle, 0)
    error = ctx.comm.async_error()
    value = np.array([1.0], np.float32)
    refused = ctx.nccl.raw.ncclAllReduce(value.ctypes.data, value.ctypes.data, 1, 7, 0, ctx.comm.handle, None)
    made = ctx.comm.split(0, ctx.rank)
    made.all_reduce(value, value)
    made.destroy()
    return error, refused, int(value[0])


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


def nonblocking_init_alone(ctx: Context, uid: bytes):
    """The peer never comes: early use is refused, then polling ends in the error."""
    raw, handle, state = ctx.nccl.raw, ctypes.c_void_p(), ctypes.c_int(IN_PROGRESS)
    config = Config(blocking=0)
    first = raw.ncclCommInitRankConfig(ctypes.byref(handle), 2, UniqueId.from_bytes(uid), 0, ctypes.byref(config))
    value = np.zeros(1, np.float32)
    early = raw.ncclAllReduce(value.ctypes.data, value.ctypes.data, 1, 7, 0, handle, None)
    early_text = ctx.nccl.last_error()
    limit = time.monotonic() + 20
    while state.value == IN_PROGRESS and time.monotonic() < limit:
        raw.ncclCommGetAsyncError(handle, ctypes.byref(state))
    text = ctx.nccl.last_error(handle.value)
    raw.ncclCommAbort(handle)
    return first, early, early_text, state.value, text


def finalize_and_destroy(ctx: Context) -> tuple[int, int]:
    ctx.comm.finalize()
    value = np.zeros(1, np.float32)
    used = ctx.nccl.raw.ncclAllReduce(value.ctypes.data, value.ctypes.data, 1, 7, 0, ctx.comm.handle, None)
    error = ctx.comm.async_error()
    destroy(ctx)
    return used, error


def forked_child(ctx: Context) -> tuple[int, str]:
    """What a child forked after init gets, and that the parent goes on."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            value = np.zeros(1, np.float32)
            result = ctx.nccl.raw.ncclAllReduce(value.ctypes.data, value.ctypes.data, 1, 7, 0, ctx.comm.handle, None)
            os.write(writing, f"{result}:{ctx.nccl.last_error()}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        result, text = pipe.read().decode().split(":", 1)
    os.waitpid(child, 0)
    value = np.ones(1, np.float32)
    ctx.comm.all_reduce(value, value)
    assert value[0] == ctx.nranks
    return int(result), text


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


def held_gil(ctx: Context) -> bool:
    """The library called with the GIL held: waiting must let other Python threads run."""
    held = ctypes.PyDLL(str(library_path()))
    value = np.full(4, 1.0, np.float32)
    if ctx.rank == 0:
        time.sleep(0.2)  # the peers wait inside a call that holds the GIL
    ticks, stop = [0], threading.Event()

    def tick() -> None:
        while not stop.wait(0.01):
            ticks[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    count, handle = ctypes.c_size_t(4), ctypes.c_void_p(ctx.comm.handle)
    address = ctypes.c_void_p(value.ctypes.data)
    result = held.ncclAllReduce(address, address, count, 7, 0, handle, None)
    stop.set()
    thread.join()
    return result == 0 and bool((value == ctx.nranks).all()) and (ctx.rank == 0 or ticks[0] > 2)


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


def put_beyond(ctx: Context, on_device: bool, offset: int) -> tuple[int, str]:
    """A put that cannot be: outside of the window, or into memory nobody else can reach."""
    buffers, window = Buffers(ctx, on_device), ctypes.c_void_p()
    memory = buffers.array(64, np.dtype("u1"))
    ctx.nccl.ncclCommWindowRegister(ctx.comm.handle, memory.ctypes.data, 64, ctypes.byref(window), 0)
    peer = (ctx.rank + 1) % ctx.nranks
    result = ctx.nccl.raw.ncclPutSignal(memory.ctypes.data, 32, 1, peer, window, offset, 0, 0, 0, ctx.comm.handle, None)
    text = ctx.nccl.last_error()
    ctx.nccl.ncclCommWindowDeregister(ctx.comm.handle, window)
    buffers.free()
    return result, text


def wait_in_vain(ctx: Context) -> None:
    wait_signals(ctx, [(2, 1 - ctx.rank, 3, 0)])


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


def abort_pending(ctx: Context) -> tuple[float, int]:
    """Abort with operations queued on a stream whose peer never comes; the stream drains."""
    cuda = Cuda()
    stream, value = cuda.stream(), cuda.array(4096, "f4")
    for _ in range(3):
        ctx.comm.all_reduce(value, value, stream=stream)
    seconds = abort(ctx)
    cuda.call("cudaStreamSynchronize", stream)
    return seconds, cuda.raw.cudaStreamQuery(stream)


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


def full_exchange(ctx: Context, count: int):
    """Everybody sends to everybody, itself included, in one group. True, or what is wrong."""
    send, received = np.full(count, ctx.rank, np.int64), np.full((ctx.nranks, count), -1, np.int64)
    with ctx.nccl.group():
        for peer in range(ctx.nranks):
            ctx.comm.send(send, peer)
            ctx.comm.recv(received[peer], peer)
    wrong = received != np.arange(ctx.nranks)[:, None]
    if not wrong.any():
        return True
    return [(peer, int(np.flatnonzero(row)[0]), int(row.sum()), int(received[peer][row][0]))
            for peer, row in enumerate(wrong) if row.any()]  # fmt: skip


def exchange_and_destroy(ctx: Context, uid: bytes, count: int) -> bool:
    """A communicator of its own for one exchange, gone as soon as this rank's part is over."""
    comm = ctx.nccl.init(ctx.nranks, uid, ctx.rank)
    send, received = np.full(count, ctx.rank, np.float32), np.full((ctx.nranks, count), -1, np.float32)
    with ctx.nccl.group():
        for peer in range(ctx.nranks):
            comm.send(send, peer)
            comm.recv(received[peer], peer)
    comm.destroy()
    return bool((received == np.arange(ctx.nranks)[:, None]).all())


def lasting_error(ctx: Context) -> list[tuple[int, str]]:
    """What a failed communicator answers: asked twice, used again, and asked once more."""
    found = [raise_last(ctx), raise_last(ctx)]
    value = np.zeros(4, np.float32)
    try:
        ctx.comm.all_reduce(value, value)
    except NcclError as error:
        found.append((error.result, str(error)))
    return [*found, raise_last(ctx)]


def wait_for_error(ctx: Context, seconds: float) -> tuple[int, str, float]:
    """An idle communicator's asynchronous error, as a watchdog polls for it, and how long that took."""
    started = time.perf_counter()
    while not ctx.comm.async_error() and time.perf_counter() - started < seconds:
        threading.Event().wait(0.002)
    return *raise_last(ctx), time.perf_counter() - started


def small_messages(ctx: Context, rounds: int) -> list[int]:
    """Many tiny operations of every kind, one after the other; the numbers of those that came out wrong."""
    left, right, wrong = (ctx.rank - 1) % ctx.nranks, (ctx.rank + 1) % ctx.nranks, []
    value, out, several = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(ctx.nranks, np.int64)
    for i in range(rounds):
        value[0] = ctx.rank + i
        if i % 4 == 0:
            ctx.comm.all_reduce(value, out)
            right_value = sum(range(ctx.nranks)) + ctx.nranks * i
        elif i % 4 == 1:
            ctx.comm.all_gather(value, several)
            out[0], right_value = several @ np.arange(1, ctx.nranks + 1), sum((r + 1) * (r + i) for r in range(ctx.nranks))
        elif i % 4 == 2:
            ctx.comm.broadcast(value, out, i % ctx.nranks)
            right_value = i % ctx.nranks + i
        else:
            with ctx.nccl.group():
                ctx.comm.send(value, right)
                ctx.comm.recv(out, left)
            right_value = left + i
        if out[0] != right_value:
            wrong.append(i)
    return wrong


from nccl_fuzz import end_program, resources, run_program  # noqa: E402, F401 - rank processes look bodies up here
