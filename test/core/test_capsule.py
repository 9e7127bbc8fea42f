"""The capsule's functions work from threads without the GIL, even while somebody else keeps it."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fakegpu._core import capi

HERE = Path(__file__).parent
INCLUDE = Path(capi.__file__).parent / "include"


def table_address() -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capi.C_API, b"fakegpu._core.capi.C_API")


@pytest.fixture(scope="module")
def checker(tmp_path_factory) -> ctypes.PyDLL:
    compiler = os.environ.get("CC", "").split() or [shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")]
    if compiler == [None]:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("capsule") / "capsule_threads.so"
    subprocess.run(
        [*compiler, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", f"-I{INCLUDE}",
         str(HERE / "capsule_threads.c"), "-o", str(library)],
        check=True,
    )  # fmt: skip
    return ctypes.PyDLL(str(library))  # PyDLL: the GIL stays with the caller for the whole call


@pytest.mark.timeout(60)
@pytest.mark.parametrize("threads", [1, 8])
def test_every_function_works_without_the_gil(checker, threads):
    checker.capsule_check.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    assert checker.capsule_check(table_address(), threads, 200) == 0


def test_the_capsule_is_found_by_its_name():
    find = ctypes.pythonapi.PyCapsule_Import
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_int]
    assert find(b"fakegpu._core.capi.C_API", 0) == table_address()
    assert capi.ABI_VERSION == ctypes.c_uint32.from_address(table_address()).value == 1
