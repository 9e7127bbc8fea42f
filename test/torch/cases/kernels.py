"""Kernels of the program's own: refused by name, and run by a substitute written in Python. The library is what nvcc makes of

    __global__ void axpy(float *x, float a, int n) { ... x[i] *= a ... }
    void scale(float *x, float a, int n, cudaStream_t stream) { axpy<<<(n + 255) / 256, 256, 0, stream>>>(x, a, n); }

on the host's side: a constructor that registers the fat binary and the kernel, and a launch.
"""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

import fakegpu

SOURCE = r"""
typedef struct { unsigned x, y, z; } dim3;
extern void **__cudaRegisterFatBinary(void *);
extern void __cudaRegisterFatBinaryEnd(void **);
extern void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
extern int cudaLaunchKernel(const void *, dim3, dim3, void **, unsigned long, void *);
static struct { int magic, version; const void *image; void *unused; } fatbin = {0x466243b1, 1, &fatbin, 0};
static void axpy_stub(void) {}
__attribute__((constructor)) static void module(void) {
    void **handle = __cudaRegisterFatBinary(&fatbin);
    __cudaRegisterFunction(handle, (const char *)axpy_stub, "_Z4axpyPffi", "_Z4axpyPffi", -1, 0, 0, 0, 0, 0);
    __cudaRegisterFatBinaryEnd(handle);
}
int scale(float *x, float a, int n, void *stream) {
    void *args[] = {&x, &a, &n};
    return cudaLaunchKernel((const void *)axpy_stub, (dim3){(n + 255) / 256, 1, 1}, (dim3){256, 1, 1}, args, 0, stream);
}
"""


def library():
    folder = Path(tempfile.mkdtemp(prefix="kernels-"))
    (folder / "user.c").write_text(SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libuser.so", folder / "user.c"], check=True)
    return ctypes.CDLL(str(folder / "libuser.so"))


def scale(user, x, a):
    stream = torch.cuda.current_stream().cuda_stream
    return user.scale(ctypes.c_void_p(x.data_ptr()), ctypes.c_float(a), x.numel(), ctypes.c_void_p(stream))


def case_a_kernel_is_refused_until_a_substitute_is_registered():
    user, x, seen = library(), torch.arange(300.0, device="cuda"), []
    assert scale(user, x, 3.0) == 98 and x[2].item() == 2.0
    with pytest.raises(RuntimeError, match=r"_Z4axpyPffi = axpy\(float\*, float, int\) cannot run without a GPU"):
        torch.cuda.check_error(98)
    assert ctypes.CDLL(None).cudaGetLastError() == 98  # else the next launch would be told

    @fakegpu.register_kernel("_Z4axpyPf*")
    def axpy(launch):
        seen.append((launch.kernel, launch.grid, launch.block, launch.device))
        address, a, n = (launch.argument(i, kind) for i, kind in enumerate((ctypes.c_void_p, ctypes.c_float, ctypes.c_int)))
        launch.array(address, (n,), "float32")[:] *= a

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)  # what is before it on the stream comes first
        x.add_(1)
        assert scale(user, x, 2.0) == 0
    side.synchronize()
    assert torch.equal(x.cpu(), (torch.arange(300.0) + 1) * 2)
    assert seen == [("_Z4axpyPffi", (2, 1, 1), (256, 1, 1), 0)]


def case_an_exception_is_the_launchs_error():
    user = library()

    def broken(launch):
        raise ValueError("no such table")

    fakegpu.register_kernel("_Z4axpy*", broken)
    assert scale(user, torch.ones(3, device="cuda"), 2.0) == 719
    with pytest.raises(RuntimeError, match="host substitute of _Z4axpyPffi: ValueError: no such table"):
        torch.cuda.check_error(719)
    assert ctypes.CDLL(None).cudaGetLastError() == 719
