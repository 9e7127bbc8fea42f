"""A C program with all of a job's devices in one process, below ./fgpu: one thread for all of them, or one each."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fakegpu.nccl_ctypes import library_path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DEVICES = 4
CASES = ("one_thread", "ungrouped", "ring", "eager", "aborted", "aborted_in_reverse", "split", "shrink", "revoke",
         "windows", "nonblocking", "thread_each", "mismatch")  # fmt: skip
LIBRARIES = [library_path(), library_path().parent / "libcudart.so.13"]
pytestmark = pytest.mark.skipif(not LIBRARIES[1].exists(), reason="libcudart.so.13 is not built")


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    if not shutil.which("gcc"):
        pytest.skip("no gcc")
    made = tmp_path_factory.mktemp("c") / "nccl_devices"
    subprocess.run(["gcc", f"-I{ROOT}/interposer/abi", HERE / "nccl_devices.c", *LIBRARIES, "-lpthread", "-o", made,
                    f"-Wl,-rpath,{LIBRARIES[0].parent}"], check=True)  # fmt: skip
    return made


@pytest.fixture(scope="module", params=["unix", "tcp"])
def output(request, program) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FAKEGPU_", "NCCL_", "CUDA_"))}
    environment |= {"PYTHONPATH": str(ROOT), "FAKEGPU_COORDINATOR_TRANSPORT": request.param}
    command = [sys.executable, "-m", "fakegpu", "run", "--quiet", "--device-count", str(DEVICES), program, str(DEVICES), *CASES]
    try:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=60)  # fmt: skip
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode() + "\n[ended after 60 s]"
    return done.stdout


@pytest.mark.parametrize("case", CASES)
def test_all_devices_of_one_process(output: str, case: str) -> None:
    assert re.search(rf"^ok {case}$", output, re.MULTILINE), output


@pytest.mark.resilience
def test_a_mismatch_between_devices_of_one_process_reaches_each(output: str) -> None:
    told = re.findall(r"^rank (\d): 5: .*ranks 0,2-3: all_reduce #0 float32 count 100 .*rank 1: all_reduce #0 float32 count 90",
                      output, re.MULTILINE)  # fmt: skip
    assert told == ["0", "1", "2", "3"], output
