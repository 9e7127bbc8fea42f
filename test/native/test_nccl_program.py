"""Programs that are not Python use libnccl.so.2: the library loads the interpreter that fakegpu is installed in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import fakegpu
from fakegpu.nccl_ctypes import library_path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def shared_libpython() -> str:
    """This interpreter's shared library, or "" when it was built without one."""
    name, folder = sysconfig.get_config_var("INSTSONAME"), sysconfig.get_config_var("LIBDIR")
    path = Path(folder or "", name or "")
    return str(path) if name and ".so" in name and path.exists() else ""


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    if not shutil.which("gcc"):
        pytest.skip("no gcc")
    made = tmp_path_factory.mktemp("c") / "nccl_program"
    command = ["gcc", f"-I{ROOT}/interposer/abi", HERE / "nccl_program.c", library_path(), "-o", made,
               f"-Wl,-rpath,{library_path().parent}"]  # fmt: skip
    subprocess.run(command, check=True)
    return made


def start(program: Path, rank: int, folder: Path, *extra: str, **variables: str) -> subprocess.Popen:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FAKEGPU_")} | variables
    return subprocess.Popen([program, str(rank), "2", folder / "id", *extra], env=environment, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)  # fmt: skip


@pytest.mark.parametrize("extra", [(), ("keep",)], ids=["destroyed", "kept"])
@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_a_c_program_reduces(program, tmp_path, transport, extra):
    if not shared_libpython():
        pytest.skip("this Python has no shared library (built without --enable-shared)")
    with fakegpu.Coordinator(transport) as coordinator:
        variables = {"FAKEGPU_COORDINATOR_TRANSPORT": transport, "FAKEGPU_COORDINATOR_ADDR": coordinator.address,
                     "FAKEGPU_COORDINATOR_TIMEOUT_MS": "20000", "FAKEGPU_LIBPYTHON": shared_libpython(),
                     "FAKEGPU_PYTHON": sys.executable}  # fmt: skip
        ranks = [start(program, rank, tmp_path, *extra, **variables) for rank in range(2)]
        outputs = [process.communicate(timeout=60) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], outputs
    assert outputs == [("1999\n", "")] * 2


def test_a_missing_libpython_is_named(program, tmp_path):
    with fakegpu.Coordinator("unix") as coordinator:
        process = start(program, 0, tmp_path, FAKEGPU_COORDINATOR_ADDR=coordinator.address,
                        FAKEGPU_LIBPYTHON="/nonexistent/libpython3.so")  # fmt: skip
        _, errors = process.communicate(timeout=30)
    assert process.returncode != 0 and "/nonexistent/libpython3.so" in errors and "FAKEGPU_LIBPYTHON" in errors
