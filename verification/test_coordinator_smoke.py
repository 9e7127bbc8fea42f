"""The coordinator's life by its command line: listens within seconds, answers, serves two ranks, ends, leaves nothing.

`python3 verification/test_coordinator_smoke.py [--json FILE]`. Every process it starts ends with it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import ranks  # noqa: E402

COMMAND = [sys.executable, "-m", "fakegpu", "coordinator"]
RANK = """
import sys, numpy
from fakegpu.nccl_ctypes import Nccl
nccl, rank = Nccl(), int(sys.argv[1])
uid = bytes.fromhex(sys.argv[2]) if len(sys.argv) > 2 else None
if uid is None:
    print(nccl.unique_id().hex())
else:
    comm = nccl.init(2, uid, rank)
    value = numpy.full(3, rank + 1.0, numpy.float32)
    comm.all_reduce(value, value)
    print(value.tolist())
    comm.destroy()
"""


def environment(transport: str = "", address: str = "") -> dict:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FAKEGPU_")}
    clean["PYTHONPATH"] = f"{ranks.ROOT}{os.pathsep}{clean.get('PYTHONPATH', '')}"
    if transport:
        clean |= {"FAKEGPU_COORDINATOR_TRANSPORT": transport, "FAKEGPU_COORDINATOR_ADDR": address,
                  "FAKEGPU_COORDINATOR_TIMEOUT_MS": "20000"}  # fmt: skip
    return clean


def ask(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([*COMMAND, *arguments], env=environment(), capture_output=True, text=True, timeout=30)


def expect(condition: bool, text: str) -> None:
    if not condition:
        raise AssertionError(text)


def wait_until_it_answers(address: str, process: subprocess.Popen) -> float:
    started = time.monotonic()
    while time.monotonic() - started < 20:
        if ask("--ping", address).returncode == 0:
            return time.monotonic() - started
        expect(process.poll() is None, f"the coordinator ended with {process.returncode}")
    raise AssertionError(f"no answer at {address}")


def serve_two_ranks(transport: str, address: str) -> None:
    run = [sys.executable, "-c", RANK]
    settings = environment(transport, address)
    uid = subprocess.run([*run, "0"], env=settings, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    processes = [subprocess.Popen([*run, str(rank), uid], env=settings, stdout=subprocess.PIPE, text=True) for rank in (0, 1)]
    outputs = [process.communicate(timeout=30)[0].strip() for process in processes]
    expect(outputs == ["[3.0, 3.0, 3.0]"] * 2, f"the ranks printed {outputs}, expected [3.0, 3.0, 3.0] twice")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def send_garbage(transport: str, address: str) -> None:
    """A stranger on the socket must not disturb anybody."""
    if transport == "unix":
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address)
    else:
        host, port = address.rsplit(":", 1)
        sock = socket.create_connection((host, int(port)))
    with sock:
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n" + b"\xff" * 64)
        sock.settimeout(10)
        try:
            while sock.recv(4096):
                pass
        except ConnectionError:
            pass


def life(transport: str) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/c.sock" if transport == "unix" else f"127.0.0.1:{free_port()}"
        report = Path(folder, "report.json")
        command = [*COMMAND, "--transport", transport, "--address", address, "--report", str(report)]
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL)
        try:
            seconds = wait_until_it_answers(address, process)
            expect(isinstance(json.loads(ask("--status", address).stdout), dict), "--status is no JSON object")
            send_garbage(transport, address)
            serve_two_ranks(transport, address)
            second = ask("--transport", transport, "--address", address)
            expect(second.returncode != 0 and len(second.stderr.strip().splitlines()) <= 2,
                   f"a second coordinator at the address: status {second.returncode}, {second.stderr!r}")  # fmt: skip
            expect(ask("--shutdown", address).returncode == 0, "--shutdown failed")
            expect(process.wait(20) == 0, f"the coordinator ended with {process.returncode}")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        expect(json.loads(report.read_text())["collectives"]["all_reduce"]["calls"] == 1, "the report misses the all-reduce")
        expect(transport != "unix" or not Path(address).exists(), "the socket file is still there")
        gone = ask("--ping", address)
        expect(gone.returncode != 0 and "Traceback" not in gone.stderr, f"--ping of nobody: {gone.stderr!r}")
    return {"transport": transport, "seconds_until_first_answer": round(seconds, 2)}


CHECKS = [("life on a Unix socket", partial(life, "unix")), ("life on TCP", partial(life, "tcp"))]

if __name__ == "__main__":
    sys.exit(ranks.main("coordinator_smoke", CHECKS, sys.argv[1:]))
