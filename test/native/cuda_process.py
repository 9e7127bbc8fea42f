"""Runs a case of cuda_*_cases.py in a process of its own that has our CUDA libraries preloaded, as `fgpu` does it.

A case is a function without arguments; it fails by raising. Cuda wraps libcudart for the cases: a call that answers an
error raises CudaError with the code.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIB = ROOT / "fakegpu" / "lib"
LIBRARIES = ("libcudart.so.13", "libcuda.so.1", "libnvidia-ml.so.1")


def environment(**variables: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FAKEGPU_", "CUDA_", "LD_PRELOAD"))}
    preload = ":".join(str(LIB / name) for name in LIBRARIES)
    return {**kept, "LD_PRELOAD": preload, "PYTHONPATH": f"{HERE}:{ROOT}", **variables}


def run_python(arguments: list[str], timeout: float = 120, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env=environment(**variables), capture_output=True, text=True, timeout=timeout
    )


def run_case(module: str, name: str, **variables: str) -> None:
    done = run_python([str(Path(__file__)), module, name], **variables)
    assert done.returncode == 0, f"{module}.{name}: exit {done.returncode}\n{done.stdout}{done.stderr}"


def case_names(module: str) -> list[str]:
    return sorted(n for n in vars(importlib.import_module(module)) if n.startswith("case_"))


class CudaError(Exception):
    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: error {code}")
        self.code = code


class Cuda:
    """libcudart by ctypes. hold_gil: calls keep the GIL, as an extension module would that does not release it."""

    def __init__(self, hold_gil: bool = False) -> None:
        self.lib = (ctypes.PyDLL if hold_gil else ctypes.CDLL)("libcudart.so.13")
        self.lib.cudaGetErrorString.restype = self.lib.cudaGetErrorName.restype = ctypes.c_char_p

    def __call__(self, name: str, *arguments: object) -> None:
        code = getattr(self.lib, name)(*arguments)
        if code:
            raise CudaError(name, code)

    def code(self, name: str, *arguments: object) -> int:
        return getattr(self.lib, name)(*arguments)

    def handle(self, name: str, *arguments: object) -> ctypes.c_void_p:
        """A call whose first argument is where the handle goes."""
        out = ctypes.c_void_p()
        self(name, ctypes.byref(out), *arguments)
        return out

    def malloc(self, size: int) -> int:
        return self.handle("cudaMalloc", ctypes.c_size_t(size)).value or 0

    def free(self, pointer: int) -> None:
        self("cudaFree", ctypes.c_void_p(pointer))

    def used(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value

    def write(self, pointer: int, data: bytes) -> None:
        self("cudaMemcpy", ctypes.c_void_p(pointer), data, ctypes.c_size_t(len(data)), 1)

    def read(self, pointer: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self("cudaMemcpy", buffer, ctypes.c_void_p(pointer), ctypes.c_size_t(size), 2)
        return buffer.raw


if __name__ == "__main__":
    getattr(importlib.import_module(sys.argv[1]), sys.argv[2])()
