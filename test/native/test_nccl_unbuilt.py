"""libnccl refuses modes and faults that have nothing behind them, however the program was started."""

import os
import subprocess
import sys

import pytest

from fakegpu.launch.environment import PACKAGE

PROGRAM = """
import ctypes, sys
nccl = ctypes.CDLL(sys.argv[1])
nccl.ncclGetLastError.restype = ctypes.c_char_p
status = nccl.ncclGetUniqueId(ctypes.create_string_buffer(128))
print(status, nccl.ncclGetLastError(None).decode())
"""
INVALID_USAGE = 5
CASES = [
    ("FAKEGPU_MODE", "hybrid"),
    ("FAKEGPU_MODE", "passthrough"),
    ("FAKEGPU_DIST_MODE", "proxy"),
    ("FAKEGPU_DIST_MODE", "disabled"),
    ("FAKEGPU_TLS_CA", "/a/file.pem"),
]


@pytest.mark.parametrize("name, value", CASES, ids=[f"{n[8:]}={v}" for n, v in CASES])
def test_an_unbuilt_mode_is_refused_by_name(name, value):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FAKEGPU_")} | {name: value}
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(PACKAGE / "lib" / "libnccl.so.2")],
                          env=environment, capture_output=True, text=True, timeout=60, check=True)
    status, text = done.stdout.split(" ", 1)
    assert int(status) == INVALID_USAGE
    assert name.removesuffix("RANK") in text
