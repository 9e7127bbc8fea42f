"""Injected faults: each kind hits the operation that the plan names, in every run, and is in the report."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fakegpu
from fakegpu import errors
from fakegpu.testing import World, run_ranks

sys.path.insert(0, str(Path(__file__).parent))
from worlds import make_id, run_threads

RANK = Path(__file__).resolve().parent / "fault_rank.py"
RIGHT = [[2 * number + 3] * 4 for number in range(5)]
pytestmark = pytest.mark.resilience


def plan(folder: Path, *faults: str) -> str:
    path = folder / "plan.yaml"
    path.write_text("version: 1\nfaults:\n" + "".join(f"  - {{{fault}}}\n" for fault in faults))
    return str(path)


def job(folder: Path, *faults: str, transport: str = "unix", **settings) -> World:
    if faults:
        settings["faults"] = plan(folder, *faults)
    command = [sys.executable, str(RANK), str(folder)]
    return run_ranks(command, 2, 60, coordinator_transport=transport, **{"timeout_ms": 20000, **settings})


def values(world: World, rank: int) -> list:
    return [eval(text) for text in re.findall(r"^\d (\[.*\])$", world.outputs[rank], re.MULTILINE)]


def injected(world: World) -> list[tuple]:
    faults = world.report["resilience"]["injected_faults"]
    return [(f["kind"], f["operation"], f["seqno"], f["global_rank"], f["nodes"]) for f in faults]


def test_without_a_plan_everything_is_right(tmp_path):
    world = job(tmp_path).check()
    assert [values(world, rank) for rank in (0, 1)] == [RIGHT, RIGHT] and injected(world) == []


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_a_failing_operation_reaches_every_member(tmp_path, transport):
    world = job(tmp_path, "kind: fail, rank: 1, operation: all_reduce, seqno: 2", transport=transport)
    assert world.statuses == [7, 7]
    assert values(world, 1) == RIGHT[:2]
    assert values(world, 0) in (RIGHT[:1], RIGHT[:2])  # over sockets its second result may still be on its way
    for rank in (0, 1):
        assert f"failed {len(values(world, rank))}:" in world.outputs[rank]
        assert "injected fault: all_reduce #2 of rank 1" in world.outputs[rank]
    assert injected(world) == [("fail", "all_reduce", 2, 1, [])]
    assert world.report["resilience"]["failure_events"][0]["source"] == "injected"


def test_the_variables_fail_an_operation(tmp_path):
    world = job(tmp_path, fault_rank=1, fault_seqno=3, fault_operation="AllReduce")
    assert world.statuses == [7, 7] and values(world, 0) == RIGHT[:3]
    assert all("injected fault: all_reduce #3 of rank 1" in output for output in world.outputs)
    assert [fault[0] for fault in injected(world)] == ["fail"]


@pytest.mark.parametrize("when", ["submitted", "matched"])
def test_a_crash_ends_the_rank_and_is_named(tmp_path, when):
    world = job(tmp_path, f"kind: crash, rank: 1, skip: 1, when: {when}")
    assert world.statuses == [7, -9], world.outputs
    assert "rank 1 (global rank 1" in world.outputs[0] and "died" in world.outputs[0]
    assert "injected fault: rank 1 crashes" in world.outputs[1]
    assert injected(world) == [("crash", "all_reduce", 1, 1, [])]


@pytest.mark.parametrize("kind", ["stall", "delay_response"])
def test_a_stall_delays_and_changes_nothing(tmp_path, kind):
    world = job(tmp_path, f"kind: {kind}, rank: 0, seqno: 1, seconds: 0.3").check()
    assert [values(world, rank) for rank in (0, 1)] == [RIGHT, RIGHT]
    slow = world.report["operation_timeline"]["entries"][1]
    waited = slow["rendezvous_wait_us"] if kind == "stall" else slow["coordinator_duration_us"]
    assert waited >= 290_000 and injected(world)[0][:4] == (kind, "all_reduce", 1, 0)


@pytest.mark.parametrize("fault", ["kind: stall, rank: 1, seqno: 1, seconds: 60",
                                   "kind: drop_response, rank: 1, seqno: 1"], ids=["stall", "drop"])  # fmt: skip
def test_what_lasts_too_long_is_a_named_time_out(tmp_path, fault):
    world = job(tmp_path, fault, timeout_ms=500)
    assert world.statuses == [7, 7], world.outputs
    assert "failed 1:" in world.outputs[1] and values(world, 1) == RIGHT[:1]
    assert all("timed out after 500 ms" in output and "rank 1" in output for output in world.outputs)


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_a_flipped_bit_is_in_the_rank_s_result_only(tmp_path, transport):
    world = job(tmp_path, "kind: corrupt, rank: 1, seqno: 2, bit: 33", transport=transport).check()
    assert values(world, 0) == RIGHT
    wrong = list(RIGHT[2])
    wrong[1] ^= 2
    assert values(world, 1) == [*RIGHT[:2], wrong, *RIGHT[3:]]


def test_a_fault_may_hit_several_operations(tmp_path):
    world = job(tmp_path, "kind: corrupt, rank: 0, skip: 1, times: 3").check()
    assert values(world, 0) == [row if i in (0, 4) else [row[0] ^ 1, *row[1:]] for i, row in enumerate(RIGHT)]
    assert len(injected(world)) == 3


def test_a_slow_link_stretches_the_modelled_time(tmp_path):
    world = job(tmp_path, "kind: slow_link, nodes: [node0, node1], seqno: 1, factor: 3000", nodes=2, gpus_per_node=1)
    world.check()
    entries = world.report["operation_timeline"]["entries"]
    stretched = 2999 * entries[1]["modeled_time_us"]
    assert entries[1]["coordinator_duration_us"] >= 0.99 * stretched
    assert injected(world) == [("slow_link", "all_reduce", 1, None, ["node0", "node1"])]


def test_a_cut_link_is_a_time_out_that_names_it(tmp_path):
    world = job(tmp_path, "kind: cut_link, nodes: [node1, node0], skip: 3", nodes=2, gpus_per_node=1, timeout_ms=500)
    assert world.statuses == [7, 7] and values(world, 1) == RIGHT[:3]
    assert all("the link node1 - node0 is cut: all_reduce #3" in output for output in world.outputs)


def test_a_link_fault_leaves_one_node_alone(tmp_path):
    world = job(tmp_path, "kind: cut_link, nodes: [node0, node1]", timeout_ms=500).check()  # all on node0
    assert values(world, 0) == RIGHT and injected(world) == []


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_the_python_client_obeys_too(tmp_path, transport):
    path = plan(tmp_path, "kind: corrupt, rank: 1, bit: 8", "kind: device_error, rank: 0, seqno: 1")
    with fakegpu.Coordinator(transport, faults=path) as coordinator:
        unique = make_id(coordinator.address)

        def body(rank: int):
            with fakegpu.connect(coordinator.address, rank=rank, world_size=2, timeout_ms=20_000) as client:
                comm = client.init(2, rank, unique, "world")
                array = np.array([rank + 1], np.int32)
                out = comm.all_reduce(array)
                try:
                    comm.all_reduce(array)
                except errors.StatusError as error:
                    return out.tolist(), str(error)
                return out.tolist(), ""

        results = run_threads(2, body)
    assert results[0][0] == [3] and results[1][0] == [3 ^ 256]
    assert "injected fault" in results[0][1]


BAD = {
    "unknown kind": ("kind: explode, rank: 0", "faults[0].kind: found 'explode', expected one of fail, crash"),
    "no rank": ("kind: crash", "faults[0].rank: found nothing, expected an integer"),
    "beyond the world": ("kind: crash, rank: 2", "faults[0].rank: found 2, expected 0 to 1"),
    "no operation": ("kind: crash, rank: 0, operation: sum", "faults[0].operation: found 'sum', expected one of"),
    "no such node": ("kind: cut_link, nodes: [node0, nodeX]", "faults[0].nodes: found 'nodeX', expected one of node0"),
    "one node": ("kind: cut_link, nodes: [node0]", "faults[0].nodes: found ['node0'], expected the ids of two nodes"),
    "too slow": ("kind: stall, rank: 0, seconds: -1", "faults[0].seconds: found -1.0, expected more than 0"),
    "unknown key": ("kind: crash, rank: 0, whence: x", "faults[0].whence: found an unknown key, expected 'when'"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_plan_is_one_line(tmp_path, name):
    fault, text = BAD[name]
    with pytest.raises(errors.SpecError) as refusal:
        job(tmp_path, fault, nodes=2, gpus_per_node=1)
    assert f"plan.yaml:3: {text}" in str(refusal.value)


def test_the_bundled_plan_is_valid():
    from fakegpu.faults import load

    assert [fault.kind for fault in load(str(RANK.parents[2] / "verification/data/faults.yaml"))] == ["fail"]


@pytest.mark.parametrize(
    ("variables", "text"),
    [({"FAKEGPU_NCCL_FAULT_SEQNO": "3"}, "FAKEGPU_NCCL_FAULT_RANK"),
     ({"FAKEGPU_NCCL_FAULT_RANK": "0", "FAKEGPU_NCCL_FAULT_OPERATION": "sum"}, "expected one of all_reduce")],
    ids=["no-rank", "no-such-operation"],
)  # fmt: skip
def test_variables_that_hit_nothing_are_refused(variables, text):
    base = {key: value for key, value in os.environ.items() if not key.startswith("FAKEGPU_")}
    done = subprocess.run([sys.executable, "-m", "fakegpu", "true"], env=base | variables, capture_output=True, text=True)
    assert done.returncode == 2 and text in done.stderr
