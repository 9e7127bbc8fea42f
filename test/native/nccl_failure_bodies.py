"""What the rank processes of the libnccl tests run when something goes wrong on purpose: mistakes, aborts, deaths, waits
that last. Part of nccl_bodies.py, where rank processes look bodies up.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time

import numpy as np
from nccl_bodies import Buffers, Context, Cuda, call, wait_signals

from fakegpu.nccl_ctypes import IN_PROGRESS, Config, NcclError, UniqueId, library_path


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


def error_in_group(ctx: Context) -> tuple[int, int]:
    out = np.zeros(3, np.float32)
    raw, handle = ctx.nccl.raw, ctx.comm.handle
    raw.ncclGroupStart()
    raw.ncclAllReduce(out.ctypes.data, out.ctypes.data, 3, 7, 0, handle, None)
    inside = raw.ncclBroadcast(out.ctypes.data, out.ctypes.data, 3, 99, 0, handle, None)
    return inside, raw.ncclGroupEnd()


def lonely_group_end(ctx: Context) -> None:
    ctx.nccl.ncclGroupEnd()


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


def split_some(ctx: Context, callers: list[int]) -> None:
    if ctx.rank in callers:
        ctx.comm.split(0, ctx.rank)


def revoke_then_split(ctx: Context) -> tuple[int, int, int]:
    ctx.nccl.ncclCommRevoke(ctx.comm.handle, 0)
    error = ctx.comm.async_error()
    value = np.array([1.0], np.float32)
    refused = ctx.nccl.raw.ncclAllReduce(value.ctypes.data, value.ctypes.data, 1, 7, 0, ctx.comm.handle, None)
    made = ctx.comm.split(0, ctx.rank)
    made.all_reduce(value, value)
    made.destroy()
    return error, refused, int(value[0])


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


def abort_pending(ctx: Context) -> tuple[float, int]:
    """Abort with operations queued on a stream whose peer never comes; the stream drains."""
    cuda = Cuda()
    stream, value = cuda.stream(), cuda.array(4096, "f4")
    for _ in range(3):
        ctx.comm.all_reduce(value, value, stream=stream)
    seconds = abort(ctx)
    cuda.call("cudaStreamSynchronize", stream)
    return seconds, cuda.raw.cudaStreamQuery(stream)


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
