"""fakegpu.testing: marked tests run on N ranks, failures show each rank's output, the report is handed over."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fakegpu.testing import RankFailure

ROOT = Path(__file__).resolve().parent.parent.parent

MARKED = """
import os
import numpy as np
import pytest
from fakegpu.membership import world_id
from fakegpu.nccl_ctypes import Nccl


def sum_of_ranks():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    comm = Nccl().init(world, world_id("test"), rank)
    data = np.full(4, rank + 1, np.int32)
    comm.all_reduce(data, data)
    comm.destroy()
    return data.tolist()


@pytest.mark.fakegpu(world_size=3)
def test_right():
    assert sum_of_ranks() == [6] * 4


@pytest.mark.fakegpu
@pytest.mark.parametrize("value", ["a b", "c::d"])
def test_parameters_arrive(value):
    assert value in ("a b", "c::d") and os.environ["WORLD_SIZE"] == "2"


@pytest.mark.fakegpu(world_size=2)
def test_wrong_on_rank_1():
    print("words of rank", os.environ["RANK"])
    assert os.environ["RANK"] == "0"


def test_unmarked():
    assert "RANK" not in os.environ
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    (folder / "test_marked.py").write_text(MARKED)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", *arguments],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_marked_tests_run_on_ranks_under_xdist(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "-n", "2")
    assert "4 passed" in done.stdout and "1 failed" in done.stdout, done.stdout
    failure = done.stdout[done.stdout.index("FAILURES") :]
    assert "---- rank 1: exit status 1 ----" in failure and "words of rank 1" in failure
    assert "---- rank 0: exit status 0 ----" in failure and "words of rank 0" in failure


def add_up() -> None:
    """Runs on ranks: started by the fixture from this file."""
    import numpy as np

    from fakegpu.membership import world_id
    from fakegpu.nccl_ctypes import Nccl

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    comm = Nccl().init(world, world_id("add_up"), rank)
    data = np.full(5, rank + 1, np.float64)
    comm.all_reduce(data, data)
    print("sum", data[0])
    comm.destroy()


def fail_on_rank_0() -> None:
    raise SystemExit(int(os.environ["RANK"]) == 0)


def test_a_function_runs_on_ranks_and_the_report_comes_back(fakegpu_run) -> None:
    world = fakegpu_run(add_up, world_size=2)
    assert [text.split() for text in world.outputs] == [["sum", "3.0"]] * 2
    assert world.report["collectives"]["all_reduce"]["calls"] == 1
    assert world.report["collectives"]["all_reduce"]["bytes"] > 0


def test_a_failing_rank_fails_the_test(fakegpu_run) -> None:
    with pytest.raises(RankFailure, match="rank 0: exit status 1"):
        fakegpu_run(fail_on_rank_0)
