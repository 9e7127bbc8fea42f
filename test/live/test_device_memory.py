"""One memory limit per device: processes below one fgpu share it, in cudaMalloc, cudaMemGetInfo and NVML."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PRELUDE = """
import ctypes, os, signal, subprocess, sys
from cuda_process import Cuda
GIB = 1 << 30
class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("instance", ctypes.c_uint * 2)]
def processes(index=0):
    nvml, device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
    assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0
    memory, count = (ctypes.c_ulonglong * 3)(), ctypes.c_uint(0)
    assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
    nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), None)
    found = (Process * count.value)()
    assert nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), found) == 0
    return memory[2], {p.pid: p.used for p in found}
def other(body, **variables):
    return subprocess.Popen([sys.executable, "-c", os.environ["PRELUDE"] + body], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True, env={**os.environ, **variables})
"""


def job(body: str, *flags: str) -> str:
    """Run `body` below fgpu with two A100 of 80 GiB; memory is not touched, so the host's own size does not matter."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'test' / 'native'}:{ROOT}",
        "PRELUDE": PRELUDE,
        "FAKEGPU_OOM_POLICY": "device",
    }
    done = subprocess.run(
        [sys.executable, "-m", "fakegpu", "--device-count", "2", *flags, sys.executable, "-c", PRELUDE + body],
        env=environment,
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_two_processes_share_a_devices_limit() -> None:
    job("""
cuda = Cuda()
cuda.malloc(50 * GIB)
child = other('''
cuda = Cuda()
assert cuda.used() == 50 * GIB
assert cuda.code("cudaMalloc", ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(50 * GIB)) == 2
runtime = ctypes.CDLL("libfakegpu_rt.so")
runtime.fg_rt_last_error.restype = ctypes.c_char_p
text = runtime.fg_rt_last_error().decode()
assert f"{50 * GIB} of them by other processes" in text, text
small = cuda.malloc(20 * GIB)
assert cuda.used() == 70 * GIB
used, held = processes()
assert used == 70 * GIB and held == {os.getppid(): 50 * GIB, os.getpid(): 20 * GIB}, (used, held)
assert processes(1) == (0, {})
cuda("cudaSetDevice", 1)
cuda.free(cuda.malloc(70 * GIB))
cuda.free(small)
''')
assert child.wait() == 0
assert cuda.used() == 50 * GIB
""")


def test_what_a_killed_process_held_is_free_again() -> None:
    job("""
cuda = Cuda()
cuda.malloc(GIB)
for _ in range(3):
    child = other("Cuda().malloc(70 * GIB); print('held', flush=True); sys.stdin.read()")
    assert child.stdout.readline().strip() == "held"
    assert cuda.used() == 71 * GIB and child.pid in processes()[1]
    assert cuda.code("cudaMalloc", ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(20 * GIB)) == 2
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie: its memory is gone, its process id is not
    assert cuda.used() == GIB and processes() == (GIB, {os.getpid(): GIB})
    cuda.free(cuda.malloc(70 * GIB))
    child.wait()
""")


def test_devices_of_another_node_are_others() -> None:
    job("""
Cuda().malloc(50 * GIB)
child = other("assert Cuda().used() == 0; Cuda().malloc(50 * GIB); assert processes()[0] == 50 * GIB",
              RANK="1", WORLD_SIZE="2", LOCAL_RANK="0", GROUP_RANK="1")
assert child.wait() == 0
""")


def test_many_processes_never_pass_the_limit_together() -> None:
    """Four processes grab 1 GiB pieces until refused: the pieces are the device's memory, no more and no less."""
    text = job("""
children = [other('''
cuda, pieces = Cuda(), 0
sys.stdin.readline()
while not cuda.code("cudaMalloc", ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(GIB)):
    pieces += 1
print(pieces, flush=True)
sys.stdin.readline()
''') for _ in range(4)]
def go():
    for child in children:
        print("go", file=child.stdin, flush=True)
go()
counts = [int(child.stdout.readline()) for child in children]
go()
assert [child.wait() for child in children] == [0] * 4
print(sum(counts))
""")
    assert text.split() == ["80"]


def test_nvidia_smi_lists_the_process_that_holds_memory() -> None:
    text = job("""
Cuda().malloc(10 * GIB)
print(os.getpid(), flush=True)
subprocess.run(["nvidia-smi"], check=True)
""")
    pid, *table = text.splitlines()
    assert "10240MiB / 81920MiB" in text
    assert [line for line in table if f" {pid} " in line and line.endswith(" 10240 MiB |")]
    assert {len(line) for line in table if line.startswith(("|", "+"))} == {91}
