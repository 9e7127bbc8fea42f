"""Host substitutes, written in Python, for CUDA kernels that a program brings along.

    @fakegpu.register_kernel("_Z4axpyPffi*")
    def axpy(launch):
        x, a, n = launch.argument(0, ctypes.c_void_p), launch.argument(1, ctypes.c_float), launch.argument(2, ctypes.c_int)
        launch.array(x, (n,), "float32")[:] *= a

Without one a launch is refused with the kernel's mangled name. The function runs once per launch, for the whole grid, on
the launching thread, after everything before it on the stream has finished. In C the same is fg_rt_register_kernel of
libfakegpu_rt.so (interposer/runtime/fg_runtime.h).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

from fakegpu.errors import FakeGPUError

_CUDA_LAUNCH_FAILURE = 1000 + 719  # fg_rt status of cudaErrorLaunchFailure


class _Request(ctypes.Structure):  # fg_launch_t
    _fields_ = [("kernel", ctypes.c_char_p), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
                ("shared_bytes", ctypes.c_size_t), ("args", ctypes.POINTER(ctypes.c_void_p)),
                ("stream", ctypes.c_void_p), ("device", ctypes.c_int)]  # fmt: skip


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Request), ctypes.c_void_p)
_kept: list = []  # a substitute is never unregistered


class Launch:
    """One launch: kernel (mangled name), grid and block (x, y, z), shared_bytes, device. Valid during the call only."""

    def __init__(self, request: _Request) -> None:
        self.kernel = request.kernel.decode(errors="replace")
        self.grid, self.block = tuple(request.grid), tuple(request.block)
        self.shared_bytes, self.device = request.shared_bytes, request.device
        self._args = request.args

    def argument(self, index: int, kind: type):
        """The kernel's parameter `index` as a ctypes type: a number, an address (c_void_p), or a Structure passed by value."""
        found = kind.from_address(self._args[index])
        return found.value if hasattr(found, "value") else kind.from_buffer_copy(found)

    @staticmethod
    def array(address: int, shape: tuple[int, ...], dtype) -> np.ndarray:
        """Device memory at `address` as a numpy array that shares it."""
        dtype = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        if not count:
            return np.empty(shape, dtype)
        if not address:
            raise ValueError(f"array of shape {shape}: found a NULL address")
        return np.frombuffer((ctypes.c_byte * (count * dtype.itemsize)).from_address(address), dtype).reshape(shape)


def _runtime() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    if not hasattr(library, "fg_rt_register_kernel"):
        raise FakeGPUError("register_kernel: no fake GPU in this process; start the program below ./fgpu")
    library.fg_rt_stream_sync.argtypes = [ctypes.c_void_p]
    return library


def register_kernel(pattern: str, function: Callable[[Launch], None] | None = None):
    """Run function(launch) in place of kernels whose mangled name matches `pattern` (* and ? as in file names).

    Also a decorator. The last registration that matches wins. An exception becomes the launch's error
    (cudaErrorLaunchFailure with its text). FakeGPUError where no fakegpu runtime is loaded.
    """
    if function is None:
        return lambda given: register_kernel(pattern, given)
    library = _runtime()

    def run(request, _context) -> int:
        status = library.fg_rt_stream_sync(request[0].stream)
        if status:
            return status
        try:
            function(Launch(request[0]))
            return 0
        except Exception as error:  # whatever it is, the program gets it from its launch
            text = f"{type(error).__name__}: {error}".encode()
            return library.fg_rt_set_error(_CUDA_LAUNCH_FAILURE, b"host substitute of %s: %.600s", request[0].kernel, text)

    callback = _CALLBACK(run)
    status = library.fg_rt_register_kernel(pattern.encode(), callback, None)
    if status:
        raise FakeGPUError(f"register_kernel({pattern!r}): status {status}")
    _kept.append(callback)
    return function
