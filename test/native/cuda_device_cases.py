"""Cases about devices, errors and kernels through libcudart. Run by test_cuda_devices.py, one process each."""

from __future__ import annotations

import ctypes
import os
import threading

from cuda_process import Cuda

pointer_t, size_t = ctypes.c_void_p, ctypes.c_size_t


def device_count(cuda: Cuda) -> int:
    count = ctypes.c_int()
    cuda("cudaGetDeviceCount", ctypes.byref(count))
    return count.value


def attribute(cuda: Cuda, number: int, device: int = 0) -> int:
    value = ctypes.c_int()
    cuda("cudaDeviceGetAttribute", ctypes.byref(value), number, device)
    return value.value


def pci(cuda: Cuda, device: int) -> str:
    text = ctypes.create_string_buffer(16)
    cuda("cudaDeviceGetPCIBusId", text, 16, device)
    return text.value.decode()


def kernel(cuda: Cuda, name: bytes) -> ctypes.Array[ctypes.c_char]:
    """Registers a kernel as nvcc's constructor does; the buffer's address stands for the host function."""
    host = ctypes.create_string_buffer(16)
    module = cuda.lib["__cudaRegisterFatBinary"]
    module.restype = pointer_t
    label = ctypes.create_string_buffer(name)
    cuda.lib["__cudaRegisterFunction"](pointer_t(module(None)), host, None, label, -1, None, None, None, None, None)
    host.label = label
    return host


class Dim3(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]


def launch(cuda: Cuda, function: object, arguments: object = None, block: int = 32) -> int:
    return cuda.lib.cudaLaunchKernel(function, Dim3(1, 1, 1), Dim3(block, 1, 1), arguments, size_t(0), None)


def case_count_and_current_device_per_thread() -> None:
    cuda, seen = Cuda(), []
    assert device_count(cuda) == 8
    current = ctypes.c_int()
    cuda("cudaSetDevice", 3)
    thread = threading.Thread(target=lambda: seen.append((cuda.code("cudaGetDevice", ctypes.byref(current)), current.value)))
    thread.start()
    thread.join()
    cuda("cudaGetDevice", ctypes.byref(current))
    assert current.value == 3 and seen == [(0, 0)]
    assert cuda.code("cudaSetDevice", 8) == 101 == cuda.code("cudaSetDevice", -1)


def case_attributes_agree_with_the_profile() -> None:
    cuda = Cuda()
    expected = {13: 1410000, 16: 108, 36: 1593000, 37: 5120, 38: 41943040, 75: 8, 76: 0, 39: 2048, 97: 166912, 106: 32,
                120: 0, 1: 1024, 10: 32, 41: 1, 33: 1}
    assert {number: attribute(cuda, number) for number in expected} == expected
    assert cuda.code("cudaDeviceGetAttribute", ctypes.byref(ctypes.c_int()), 4000, 0) == 1
    assert cuda.code("cudaDeviceGetAttribute", ctypes.byref(ctypes.c_int()), 1, 99) == 101


def case_pci_ids_lead_back() -> None:
    cuda = Cuda()
    ids = [pci(cuda, device) for device in range(8)]
    assert len(set(ids)) == 8
    found = ctypes.c_int()
    for device, text in enumerate(ids):
        cuda("cudaDeviceGetByPCIBusId", ctypes.byref(found), text.encode())
        assert found.value == device
    assert cuda.code("cudaDeviceGetByPCIBusId", ctypes.byref(found), b"0000:77:00.0") == 101
    assert cuda.code("cudaDeviceGetByPCIBusId", ctypes.byref(found), b"nonsense") == 1


def case_peer_access_is_enabled_once() -> None:
    cuda, can = Cuda(), ctypes.c_int()
    cuda("cudaDeviceCanAccessPeer", ctypes.byref(can), 0, 1)
    assert can.value == 1
    codes = [cuda.code("cudaDeviceEnablePeerAccess", 1, 0) for _ in range(2)]
    codes += [cuda.code("cudaDeviceDisablePeerAccess", 1) for _ in range(2)]
    assert codes == [0, 704, 0, 705] and cuda.code("cudaDeviceEnablePeerAccess", 0, 0) == 101


def case_last_error_is_per_thread_and_cleared() -> None:
    cuda, seen = Cuda(), []
    assert cuda.code("cudaSetDevice", 99) == 101
    thread = threading.Thread(target=lambda: seen.append(cuda.lib.cudaGetLastError()))
    thread.start()
    thread.join()
    device_count(cuda)
    assert (cuda.lib.cudaPeekAtLastError(), cuda.lib.cudaGetLastError(), cuda.lib.cudaGetLastError()) == (101, 101, 0)
    assert seen == [0]


def case_unknown_kernels_are_named() -> None:
    cuda = Cuda()
    function = kernel(cuda, b"_Z9my_kernelPfi")
    assert launch(cuda, function) == 98
    assert b"_Z9my_kernelPfi" in cuda.lib.cudaGetErrorString(98)
    assert launch(cuda, ctypes.create_string_buffer(1)) == 98
    assert launch(cuda, function, block=2048) == 9
    name = ctypes.c_char_p()
    cuda("cudaFuncGetName", ctypes.byref(name), function)
    assert name.value == b"_Z9my_kernelPfi"


def case_substitutes_run_in_place_of_kernels() -> None:
    class Launch(ctypes.Structure):
        _fields_ = [("kernel", ctypes.c_char_p), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
                    ("shared", size_t), ("args", ctypes.POINTER(pointer_t)), ("stream", pointer_t), ("device", ctypes.c_int)]

    cuda, runtime, seen = Cuda(), ctypes.CDLL("libfakegpu_rt.so"), []
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Launch), pointer_t)

    def body(request: ctypes._Pointer, context: int) -> int:
        value = ctypes.cast(request[0].args[0], ctypes.POINTER(ctypes.c_int))[0]
        seen.append((request[0].kernel, list(request[0].block), value, context))
        return 0

    substitute = kind(body)
    runtime.fg_rt_register_kernel(b"_Z4twice*", substitute, pointer_t(5))
    value = ctypes.c_int(42)
    arguments = (pointer_t * 1)(ctypes.addressof(value))
    assert launch(cuda, kernel(cuda, b"_Z5twicePf"), arguments) == 98  # the pattern does not match
    runtime.fg_rt_register_kernel(b"_Z5twice*", substitute, pointer_t(6))
    assert launch(cuda, kernel(cuda, b"_Z5twicePf"), arguments) == 0
    assert seen == [(b"_Z5twicePf", [32, 1, 1], 42, 6)]


def case_refused_calls_name_themselves() -> None:
    cuda = Cuda()
    assert cuda.code("cudaGraphicsUnregisterResource", None) == 801
    assert b"cudaGraphicsUnregisterResource is not supported by fakegpu" in cuda.lib.cudaGetErrorString(801)


def case_occupancy_follows_the_architecture() -> None:
    cuda, blocks = Cuda(), ctypes.c_int()
    found = []
    for threads, shared in ((32, 0), (256, 0), (1024, 0), (256, 100_000)):
        cuda("cudaOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(blocks), None, threads, size_t(shared))
        found.append(blocks.value)
    assert found == [32, 8, 2, 1]


def case_empty_visible_list() -> None:
    cuda, count = Cuda(), ctypes.c_int(7)
    assert cuda.code("cudaGetDeviceCount", ctypes.byref(count)) == 100 and count.value == 0
    assert cuda.code("cudaMalloc", ctypes.byref(pointer_t()), size_t(8)) == 100


def case_bad_configuration_is_refused() -> None:
    cuda, count = Cuda(), ctypes.c_int(7)
    assert cuda.code("cudaGetDeviceCount", ctypes.byref(count)) == 3 and count.value == 0
    assert os.environ["EXPECTED"].encode() in cuda.lib.cudaGetErrorString(3)


def case_print_visible() -> None:
    cuda = Cuda()
    print(" ".join(str(attribute(cuda, 33, device) - 1) for device in range(device_count(cuda))))


def case_mixed_profiles() -> None:
    cuda = Cuda()
    assert [attribute(cuda, 75, d) * 10 + attribute(cuda, 76, d) for d in range(device_count(cuda))] == [80, 80, 86]
    totals = []
    for device in range(3):
        cuda("cudaSetDevice", device)
        free, total = size_t(), size_t()
        cuda("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        totals.append(total.value >> 30)
    assert totals == [80, 80, 24]
