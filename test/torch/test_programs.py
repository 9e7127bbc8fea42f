"""Whole programs as a user starts them: the demo, and torchrun over two nodes that are joined by TCP."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.timeout(600)
def test_demo_trains_the_same_with_four_ranks(tmp_path: Path) -> None:
    out = run(sys.executable, "-m", "fakegpu", "demo", "--keep", str(tmp_path))
    assert "The same training, without a GPU." in out
    assert "- World size: 4" in out and "- Nodes: 2" in out


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_collective_over_two_nodes(ranks: int) -> None:
    assert ", two nodes over TCP: OK" in run("test/run_multinode_sim.sh", str(ranks))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ddp_over_two_nodes() -> None:
    assert ", two nodes over TCP: OK" in run("test/run_ddp_multinode.sh", "4")
