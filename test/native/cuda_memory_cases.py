"""Cases about memory: allocation, limits, look-up, copies and fills. Run by test_cuda_memory.py, one process each."""

from __future__ import annotations

import ctypes
import os
import random

import numpy as np
from cuda_process import Cuda, CudaError

size_t, pointer_t = ctypes.c_size_t, ctypes.c_void_p
UNREGISTERED, HOST, DEVICE, MANAGED = range(4)


class PointerAttributes(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("device", ctypes.c_int), ("device_pointer", pointer_t),
                ("host_pointer", pointer_t), ("reserved", ctypes.c_long * 8)]


def attributes(cuda: Cuda, pointer: int) -> PointerAttributes:
    out = PointerAttributes()
    cuda("cudaPointerGetAttributes", ctypes.byref(out), pointer_t(pointer))
    return out


def refused(code: int, cuda: Cuda, name: str, *arguments: object) -> None:
    found = cuda.code(name, *arguments)
    assert found == code, f"{name}: expected error {code}, found {found}"


def segment_blocks(name: str) -> int:
    """Bytes of memory behind our segments of that name."""
    total = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            if name in os.readlink(f"/proc/self/fd/{fd}"):
                total += os.stat(f"/proc/self/fd/{fd}").st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def case_fresh_memory_reads_zero() -> None:
    cuda = Cuda()
    for _ in range(3):
        pointer = cuda.malloc(1 << 20)
        assert cuda.read(pointer, 1 << 20) == bytes(1 << 20)
        cuda("cudaMemset", pointer_t(pointer), 255, size_t(1 << 20))
        cuda.free(pointer)


def case_zero_bytes_is_null() -> None:
    cuda = Cuda()
    assert cuda.malloc(0) == 0
    cuda.free(0)


def case_allocations_are_aligned_apart_and_found() -> None:
    cuda = Cuda()
    blocks = [(cuda.malloc(size), size) for size in (1, 511, 512, 4096, 5000, 2 << 20, (20 << 20) + 1)]
    for pointer, size in blocks:
        assert pointer % 512 == 0
        for inside in (0, size - 1):
            found = attributes(cuda, pointer + inside)
            assert (found.type, found.device, found.device_pointer) == (DEVICE, 0, pointer + inside)
    ends = sorted((p, p + s) for p, s in blocks)
    assert all(end <= start for (_, end), (start, _) in zip(ends, ends[1:], strict=False))
    assert attributes(cuda, id(blocks)).type == UNREGISTERED


def case_random_life_keeps_contents_and_accounts() -> None:
    cuda, draw = Cuda(), random.Random(1)
    alive: dict[int, bytes] = {}
    for _ in range(800):
        if alive and draw.random() < 0.48:
            pointer = draw.choice(list(alive))
            data = alive.pop(pointer)
            assert cuda.read(pointer, len(data)) == data
            cuda.free(pointer)
        else:
            data = draw.randbytes(draw.choice([8, 600, 4096, 70_000]))
            pointer = cuda.malloc(len(data))
            cuda.write(pointer, data)
            alive[pointer] = data
        assert cuda.used() == sum(-(-len(d) // 4096) * 4096 for d in alive.values())
    for pointer in alive:
        cuda.free(pointer)
    assert cuda.used() == 0
    assert segment_blocks("fakegpu-device") == 0, "freed memory was not given back"


def case_limit_is_the_profiles() -> None:
    cuda = Cuda()
    free, total = size_t(), size_t()
    cuda("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    assert total.value == free.value == 85899345920
    refused(2, cuda, "cudaMalloc", ctypes.byref(pointer_t()), size_t(total.value + 1))
    assert cuda.lib.cudaGetLastError() == 2 and cuda.lib.cudaGetLastError() == 0
    pointers = [cuda.malloc(20 << 30) for _ in range(4)]
    refused(2, cuda, "cudaMalloc", ctypes.byref(pointer_t()), size_t(4096))
    cuda.free(pointers.pop())
    cuda.malloc(20 << 30)
    cuda("cudaSetDevice", 1)
    assert cuda.used() == 0


def case_host_guard_answers_before_the_killer() -> None:
    cuda = Cuda()
    available = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemAvailable")) * 1024
    refused(2, cuda, "cudaMalloc", ctypes.byref(pointer_t()), size_t(min(available + (8 << 30), 79 << 30)))
    cuda.malloc(64 << 20)


def case_wrong_frees() -> None:
    cuda = Cuda()
    pointer = cuda.malloc(10_000)
    refused(1, cuda, "cudaFree", pointer_t(pointer + 512))
    refused(1, cuda, "cudaFreeHost", pointer_t(pointer))
    cuda.free(pointer)
    refused(1, cuda, "cudaFree", pointer_t(pointer))
    host = cuda.handle("cudaHostAlloc", size_t(100), 0).value
    refused(1, cuda, "cudaFree", pointer_t(host))
    cuda("cudaFreeHost", pointer_t(host))


def case_host_registered_and_managed() -> None:
    cuda = Cuda()
    host = cuda.handle("cudaHostAlloc", size_t(5000), 0).value
    found = attributes(cuda, host + 9)
    assert (found.type, found.host_pointer, found.device_pointer) == (HOST, host + 9, host + 9)
    ctypes.memset(host, 7, 5000)
    managed = cuda.handle("cudaMallocManaged", size_t(5000), 1).value
    assert attributes(cuda, managed).type == MANAGED
    plain = ctypes.create_string_buffer(10_000)
    address = ctypes.addressof(plain)
    cuda("cudaHostRegister", pointer_t(address), size_t(10_000), 0)
    assert attributes(cuda, address + 1).type == HOST
    refused(712, cuda, "cudaHostRegister", pointer_t(address + 100), size_t(50), 0)
    refused(713, cuda, "cudaHostUnregister", pointer_t(address + 100))
    cuda("cudaHostUnregister", pointer_t(address))
    assert attributes(cuda, address).type == UNREGISTERED
    assert cuda.used() == 0


def case_buffer_of_one_process_is_mappable_by_another() -> None:
    runtime = ctypes.CDLL("libfakegpu_rt.so")

    class Ref(ctypes.Structure):
        _fields_ = [("pid", ctypes.c_uint32), ("fd", ctypes.c_int32), ("inode", ctypes.c_uint64),
                    ("offset", ctypes.c_uint64), ("bytes", ctypes.c_uint64)]

    cuda = Cuda()
    pointer, host = cuda.malloc(100_000), cuda.handle("cudaMallocHost", size_t(100_000)).value
    for address in (pointer + 5000, host + 5000):
        ctypes.memmove(address, b"shared", 6)
        ref = Ref()
        runtime.fg_rt_memory_ref(pointer_t(address), ctypes.c_uint64(6), ctypes.byref(ref))
        assert ref.pid == os.getpid() and os.fstat(ref.fd).st_ino == ref.inode
        assert os.pread(ref.fd, 6, ref.offset) == b"shared"
    for address, size in ((pointer, 200_000), (id(cuda), 8)):
        ref = Ref()
        runtime.fg_rt_memory_ref(pointer_t(address), ctypes.c_uint64(size), ctypes.byref(ref))
        assert ref.pid == 0


def case_copies_in_every_direction() -> None:
    cuda = Cuda()
    data = bytes(range(256)) * 40
    first, second = cuda.malloc(len(data)), cuda.malloc(len(data))
    cuda.write(first, data)
    cuda("cudaMemcpy", pointer_t(second), pointer_t(first), size_t(len(data)), 3)
    assert cuda.read(second, len(data)) == data
    out = ctypes.create_string_buffer(len(data))
    cuda("cudaMemcpy", out, data, size_t(len(data)), 0)
    assert out.raw == data
    cuda("cudaMemcpyPeer", pointer_t(second), 0, pointer_t(first + 256), 0, size_t(256))
    cuda("cudaMemcpy", out, pointer_t(second), size_t(256), 4)
    assert out.raw[:256] == data[256:512]


def case_copies_check_their_sides() -> None:
    cuda = Cuda()
    pointer, host = cuda.malloc(4096), ctypes.create_string_buffer(8192)
    refused(1, cuda, "cudaMemcpy", pointer_t(pointer), host, size_t(8192), 1)
    refused(1, cuda, "cudaMemcpy", host, pointer_t(pointer), size_t(16), 1)
    refused(1, cuda, "cudaMemcpy", host, host, size_t(16), 3)
    refused(1, cuda, "cudaMemcpy", pointer_t(0), host, size_t(16), 1)
    refused(21, cuda, "cudaMemcpy", pointer_t(pointer), host, size_t(16), 9)
    refused(1, cuda, "cudaMemset", host, 0, size_t(16))
    cuda("cudaMemcpy", pointer_t(pointer), host, size_t(0), 1)


def case_pitched_copies_and_fills_match_numpy() -> None:
    cuda, draw = Cuda(), np.random.default_rng(2)
    for _ in range(20):
        width, height = (int(n) for n in draw.integers(1, 40, 2))
        source = draw.integers(0, 255, (height, width + int(draw.integers(0, 9))), dtype=np.uint8)
        pitch = size_t()
        pointer = pointer_t()
        cuda("cudaMallocPitch", ctypes.byref(pointer), ctypes.byref(pitch), size_t(width), size_t(height))
        assert pitch.value >= width and pitch.value % 512 == 0
        cuda("cudaMemcpy2D", pointer, pitch, source.ctypes.data_as(pointer_t), size_t(source.shape[1]), size_t(width),
             size_t(height), 1)
        value = int(draw.integers(0, 255))
        cuda("cudaMemset2D", pointer, pitch, value, size_t(width // 2), size_t(height))
        back = np.zeros((height, width), np.uint8)
        cuda("cudaMemcpy2D", back.ctypes.data_as(pointer_t), size_t(width), pointer, pitch, size_t(width), size_t(height), 2)
        expected = source[:, :width].copy()
        expected[:, : width // 2] = value
        assert (back == expected).all()
        cuda("cudaFree", pointer)
    refused(12, cuda, "cudaMemcpy2D", pointer, size_t(4), pointer, size_t(4), size_t(8), size_t(2), 3)


def case_volumes_match_numpy() -> None:
    class Pitched(ctypes.Structure):
        _fields_ = [("ptr", pointer_t), ("pitch", size_t), ("xsize", size_t), ("ysize", size_t)]

    class Triple(ctypes.Structure):
        _fields_ = [("x", size_t), ("y", size_t), ("z", size_t)]

    class Parms(ctypes.Structure):
        _fields_ = [("src_array", pointer_t), ("src_pos", Triple), ("src", Pitched), ("dst_array", pointer_t),
                    ("dst_pos", Triple), ("dst", Pitched), ("extent", Triple), ("kind", ctypes.c_int)]

    cuda = Cuda()
    source = np.arange(5 * 6 * 7, dtype=np.uint8).reshape(5, 6, 7)
    volume = Pitched()
    cuda("cudaMalloc3D", ctypes.byref(volume), Triple(7, 6, 5))
    cuda("cudaMemset3D", volume, 9, Triple(7, 6, 5))
    host = Pitched(source.ctypes.data, 7, 7, 6)
    parms = Parms(src=host, src_pos=Triple(1, 2, 3), dst=volume, dst_pos=Triple(2, 1, 0), extent=Triple(4, 3, 2), kind=1)
    cuda("cudaMemcpy3D", ctypes.byref(parms))
    back = np.zeros_like(source)
    parms = Parms(src=volume, dst=Pitched(back.ctypes.data, 7, 7, 6), extent=Triple(7, 6, 5), kind=2)
    cuda("cudaMemcpy3D", ctypes.byref(parms))
    expected = np.full_like(source, 9)
    expected[0:2, 1:4, 2:6] = source[3:5, 2:5, 1:5]
    assert (back == expected).all()


def case_pools_count_and_free_in_order() -> None:
    cuda = Cuda()
    pool = cuda.handle("cudaDeviceGetDefaultMemPool", 0)
    pointer = cuda.handle("cudaMallocAsync", size_t(10_000), None)

    def attribute(number: int) -> int:
        value = ctypes.c_uint64()
        cuda("cudaMemPoolGetAttribute", pool, number, ctypes.byref(value))
        return value.value

    assert attribute(7) == 12288 and cuda.used() == 12288
    cuda("cudaFreeAsync", pointer, None)
    assert (attribute(7), attribute(8), cuda.used()) == (0, 12288, 0)
    cuda("cudaMemPoolSetAttribute", pool, 8, ctypes.byref(ctypes.c_uint64(0)))
    assert attribute(8) == 0
    refused(1, cuda, "cudaMemPoolDestroy", pool)
    refused(1, cuda, "cudaMemPoolGetAttribute", pointer_t(12345), 7, ctypes.byref(ctypes.c_uint64()))


def case_reset_frees_the_device() -> None:
    cuda = Cuda()
    cuda.malloc(1 << 20)
    cuda("cudaDeviceReset")
    assert cuda.used() == 0


def case_symbols_have_memory_per_device() -> None:
    cuda = Cuda()
    host = ctypes.create_string_buffer(16)
    cuda.lib["__cudaRegisterVar"](None, host, b"", b"table", 0, size_t(16), 0, 0)
    cuda("cudaMemcpyToSymbol", host, b"0123456789abcdef", size_t(16), size_t(0), 1)
    out = ctypes.create_string_buffer(4)
    cuda("cudaMemcpyFromSymbol", out, host, size_t(4), size_t(8), 2)
    assert out.raw == b"89ab"
    refused(13, cuda, "cudaGetSymbolAddress", ctypes.byref(pointer_t()), pointer_t(8))
    try:
        cuda("cudaMemcpyToSymbol", host, b"x", size_t(1), size_t(16), 1)
    except CudaError as error:
        assert error.code == 1
    else:
        raise AssertionError("a copy past the end of a symbol")
