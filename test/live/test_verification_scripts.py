"""The seed's quick checks of coordinator, collectives and the TCP path, run as a user runs them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["coordinator_smoke", "allgather_correctness", "group_semantics", "tcp_bandwidth"])
def test_script_passes(name: str) -> None:
    done = subprocess.run([sys.executable, f"verification/test_{name}.py"], cwd=ROOT, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=390, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.strip()


@pytest.mark.parametrize("collective", ["reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather",
                                        "scatter", "send_recv"])
def test_bandwidth_moves_every_collective(collective: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fakegpu", "bandwidth", "--listen", "127.0.0.1:0", "--nodes", "3", "--collective", collective,
         "-b", "12K", "-e", "120K", "-f", "10", "-n", "2", "-w", "1", "-r", "2", "-d", "half", "--in-place", "--format", "osu"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert len(rows) == 2 and all(float(row[1]) > 0 for row in rows), done.stdout


def test_bandwidth_refuses_an_address_in_use() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run([sys.executable, "-m", "fakegpu", "bandwidth", "--listen", where], cwd=ROOT, capture_output=True,
                              text=True, timeout=60, check=False)
    assert done.returncode == 2 and f"cannot listen on {where}" in done.stderr
