"""Cases about streams, events and host functions. A host function that waits for a threading.Event keeps its stream
busy for as long as the case wants. Run by test_cuda_streams.py, one process each.
"""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Callable

from cuda_process import Cuda

size_t, pointer_t = ctypes.c_size_t, ctypes.c_void_p
HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
NOT_READY, NON_BLOCKING = 600, 1
_kept: list[object] = []  # callbacks must outlive their calls


def later(cuda: Cuda, stream: object, what: Callable[[], None]) -> None:
    call = HostFunction(lambda _: what())
    _kept.append(call)
    cuda("cudaLaunchHostFunc", stream, call, None)


def blocked(cuda: Cuda, stream: object) -> threading.Event:
    """Keeps the stream busy until the returned event is set."""
    release = threading.Event()
    later(cuda, stream, lambda: release.wait(60) or None)
    return release


def new_stream(cuda: Cuda, flags: int = 0) -> ctypes.c_void_p:
    return cuda.handle("cudaStreamCreateWithFlags", flags)


def pending() -> int:
    return ctypes.c_int.in_dll(ctypes.CDLL("libfakegpu_rt.so"), "fg_rt_pending").value


def case_an_idle_stream_works_at_once() -> None:
    cuda = Cuda()
    stream, pointer = new_stream(cuda), cuda.malloc(16)
    cuda("cudaMemsetAsync", pointer_t(pointer), 3, size_t(16), stream)
    assert ctypes.string_at(pointer, 16) == bytes([3]) * 16
    assert cuda.code("cudaStreamQuery", stream) == 0 and pending() == 0


def case_queries_tell_the_truth() -> None:
    cuda = Cuda()
    stream, event = new_stream(cuda), cuda.handle("cudaEventCreate")
    release = blocked(cuda, stream)
    cuda("cudaEventRecord", event, stream)
    assert cuda.code("cudaStreamQuery", stream) == NOT_READY == cuda.code("cudaEventQuery", event)
    assert pending() == 2
    release.set()
    cuda("cudaEventSynchronize", event)
    cuda("cudaStreamSynchronize", stream)
    assert cuda.code("cudaStreamQuery", stream) == 0 == cuda.code("cudaEventQuery", event) and pending() == 0


def case_copies_queue_behind_pending_work() -> None:
    cuda = Cuda()
    stream, pointer = new_stream(cuda), cuda.malloc(64)
    source = ctypes.create_string_buffer(b"first value", 64)
    release = blocked(cuda, stream)
    cuda("cudaMemcpyAsync", pointer_t(pointer), source, size_t(64), 1, stream)
    source.value = b"changed after the call"
    assert ctypes.string_at(pointer, 5) == bytes(5)
    release.set()
    cuda("cudaStreamSynchronize", stream)
    assert ctypes.string_at(pointer) == b"first value", "a pageable source must have been read before the call returned"


def case_pinned_source_is_read_in_stream_order() -> None:
    cuda = Cuda()
    stream, pointer, host = new_stream(cuda), cuda.malloc(64), cuda.handle("cudaMallocHost", size_t(64)).value
    ctypes.memmove(host, b"before\0", 7)
    release = blocked(cuda, stream)
    cuda("cudaMemcpyAsync", pointer_t(pointer), pointer_t(host), size_t(64), 1, stream)
    ctypes.memmove(host, b"after\0", 6)
    release.set()
    cuda("cudaStreamSynchronize", stream)
    assert ctypes.string_at(pointer) == b"after"


def case_pageable_destination_is_written_on_return() -> None:
    cuda = Cuda()
    stream, pointer = new_stream(cuda), cuda.malloc(8)
    cuda.write(pointer, b"12345678")
    release = blocked(cuda, stream)
    threading.Timer(0.05, release.set).start()
    out = ctypes.create_string_buffer(8)
    cuda("cudaMemcpyAsync", out, pointer_t(pointer), size_t(8), 2, stream)
    assert out.raw == b"12345678"


def case_events_order_streams() -> None:
    cuda = Cuda()
    first, second, event = new_stream(cuda, 1), new_stream(cuda, 1), cuda.handle("cudaEventCreateWithFlags", 2)
    order: list[str] = []
    release = blocked(cuda, first)
    later(cuda, first, lambda: order.append("first"))
    cuda("cudaEventRecord", event, first)
    cuda("cudaStreamWaitEvent", second, event, 0)
    later(cuda, second, lambda: order.append("second"))
    cuda("cudaEventRecord", event, second)  # recording again does not move the wait
    release.set()
    cuda("cudaEventSynchronize", event)
    assert order == ["first", "second"]


def case_null_stream_joins_blocking_streams() -> None:
    cuda = Cuda()
    blocking, free = new_stream(cuda), new_stream(cuda, NON_BLOCKING)
    pointer = cuda.malloc(4)
    release = blocked(cuda, blocking)
    cuda("cudaMemsetAsync", pointer_t(pointer), 1, size_t(4), None)
    assert cuda.code("cudaStreamQuery", None) == NOT_READY
    assert cuda.code("cudaStreamQuery", free) == 0
    cuda("cudaMemsetAsync", pointer_t(pointer), 2, size_t(4), free)
    assert ctypes.string_at(pointer, 1) == b"\2", "a non-blocking stream must not wait for the NULL stream"
    release.set()
    cuda("cudaStreamSynchronize", None)
    assert ctypes.string_at(pointer, 1) == b"\1"


def case_blocking_streams_follow_the_null_stream() -> None:
    cuda = Cuda()
    blocking, pointer = new_stream(cuda), cuda.malloc(4)
    release = blocked(cuda, None)
    cuda("cudaMemsetAsync", pointer_t(pointer), 5, size_t(4), blocking)
    assert ctypes.string_at(pointer, 1) == b"\0"
    release.set()
    cuda("cudaStreamSynchronize", blocking)
    assert ctypes.string_at(pointer, 1) == b"\5"


def case_null_streams_of_devices_are_apart() -> None:
    cuda = Cuda()
    release = blocked(cuda, None)
    cuda("cudaSetDevice", 1)
    assert cuda.code("cudaStreamQuery", None) == 0
    cuda("cudaDeviceSynchronize")
    cuda("cudaSetDevice", 0)
    assert cuda.code("cudaStreamQuery", None) == NOT_READY
    release.set()
    cuda("cudaDeviceSynchronize")


def case_per_thread_streams_are_apart() -> None:
    cuda, mine = Cuda(), ctypes.c_void_p(2)
    release = blocked(cuda, mine)
    answers: list[int] = []
    other = threading.Thread(target=lambda: answers.append(cuda.code("cudaStreamQuery", mine)))
    other.start()
    other.join()
    assert answers == [0] and cuda.code("cudaStreamQuery", mine) == NOT_READY
    release.set()
    cuda("cudaStreamSynchronize", mine)


def case_destroying_a_busy_stream_finishes_its_work() -> None:
    cuda = Cuda()
    stream, done = new_stream(cuda), threading.Event()
    release = blocked(cuda, stream)
    later(cuda, stream, done.set)
    cuda("cudaStreamDestroy", stream)
    assert cuda.code("cudaStreamQuery", stream) == 400 == cuda.code("cudaStreamDestroy", stream)
    release.set()
    assert done.wait(60)


def case_waits_release_the_gil() -> None:
    """The host function needs the GIL that the waiting thread came in with."""
    cuda = Cuda(hold_gil=True)
    stream, event, ran = new_stream(cuda), cuda.handle("cudaEventCreate"), []
    for wait in ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize"):
        later(cuda, stream, lambda: ran.append(1))
        cuda("cudaEventRecord", event, stream)
        cuda(wait, *{"cudaStreamSynchronize": [stream], "cudaEventSynchronize": [event]}.get(wait, []))
    assert len(ran) == 3


def case_host_functions_may_not_wait() -> None:
    cuda, answers = Cuda(), []
    stream = new_stream(cuda)
    later(cuda, stream, lambda: answers.append(cuda.code("cudaStreamSynchronize", stream)))
    cuda("cudaStreamSynchronize", stream)
    assert answers == [800]


def case_callbacks_get_their_stream() -> None:
    cuda, seen = Cuda(), []
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    callback = kind(lambda stream, status, data: seen.append((stream, status, data)))
    stream = new_stream(cuda)
    cuda("cudaStreamAddCallback", stream, callback, pointer_t(77), 0)
    cuda("cudaStreamSynchronize", stream)
    assert seen == [(stream.value, 0, 77)]


def case_elapsed_time_is_the_hosts() -> None:
    cuda, stream = Cuda(), None
    start, end, bare = (cuda.handle("cudaEventCreateWithFlags", flags) for flags in (0, 0, 2))
    span = ctypes.c_float()
    assert cuda.code("cudaEventElapsedTime", ctypes.byref(span), start, end) == 400
    cuda("cudaEventRecord", start, stream)
    release = blocked(cuda, stream)
    cuda("cudaEventRecord", end, stream)
    assert cuda.code("cudaEventElapsedTime", ctypes.byref(span), start, end) == NOT_READY
    threading.Timer(0.05, release.set).start()
    cuda("cudaEventSynchronize", end)
    cuda("cudaEventElapsedTime", ctypes.byref(span), start, end)
    assert 49 <= span.value < 30_000
    cuda("cudaEventRecord", bare, stream)
    assert cuda.code("cudaEventElapsedTime", ctypes.byref(span), start, bare) == 400


def case_stale_handles_are_named() -> None:
    cuda = Cuda()
    event = cuda.handle("cudaEventCreate")
    cuda("cudaEventDestroy", event)
    for name, *arguments in (("cudaEventQuery", event), ("cudaEventRecord", event, None), ("cudaEventDestroy", event),
                             ("cudaStreamQuery", pointer_t(0x1234)), ("cudaStreamWaitEvent", None, pointer_t(0x99), 0)):
        assert cuda.code(name, *arguments) == 400, name


def case_random_programs_keep_every_order() -> None:
    """Streams and events as a partial order: an item sees the marks of everything it has to follow."""
    cuda, draw = Cuda(), random.Random(3)
    streams = [new_stream(cuda, NON_BLOCKING) for _ in range(4)]
    done: set[int] = set()
    before: dict[object, set[int]] = {s.value: set() for s in streams}  # what a stream's next item has to follow
    events: list[tuple[ctypes.c_void_p, set[int]]] = []
    wrong: list[int] = []
    release = blocked(cuda, streams[0])

    def mark(number: int, needs: set[int]) -> Callable[[], None]:
        return lambda: (wrong.append(number) if not needs <= done else None, done.add(number), None)[2]

    for number in range(400):
        stream = draw.choice(streams)
        choice = draw.random()
        if choice < 0.6:
            later(cuda, stream, mark(number, set(before[stream.value])))
            before[stream.value].add(number)
        elif choice < 0.8 or not events:
            event = cuda.handle("cudaEventCreateWithFlags", 2)
            cuda("cudaEventRecord", event, stream)
            events.append((event, set(before[stream.value])))
        else:
            event, seen = draw.choice(events)
            cuda("cudaStreamWaitEvent", stream, event, 0)
            before[stream.value] |= seen
        if number == 200:
            release.set()
    cuda("cudaDeviceSynchronize")
    assert not wrong and len(done) == len({n for s in before.values() for n in s}) and pending() == 0


def case_priorities_flags_and_ids() -> None:
    cuda = Cuda()
    least, greatest, value = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    cuda("cudaDeviceGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
    assert (least.value, greatest.value) == (0, -5)
    for asked, kept in ((-3, -3), (-99, -5), (7, 0)):
        stream = cuda.handle("cudaStreamCreateWithPriority", 1, asked)
        cuda("cudaStreamGetPriority", stream, ctypes.byref(value))
        assert value.value == kept
        cuda("cudaStreamGetFlags", stream, ctypes.byref(value))
        assert value.value == 1
    ids = []
    for stream in (new_stream(cuda), new_stream(cuda), None, ctypes.c_void_p(2)):
        number = ctypes.c_ulonglong()
        cuda("cudaStreamGetId", stream, ctypes.byref(number))
        ids.append(number.value)
    assert len(set(ids)) == 4
