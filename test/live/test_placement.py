"""Where ranks really run against what the cluster file says, and hosts as nodes when a launcher numbers none."""

import json
import socket
from pathlib import Path

import pytest
import worlds

import fakegpu

CLUSTER = """
version: 1
cluster: {name: placed, default_backend: nccl}
nodes:
  - {id: left, host: HOST, ranks: [0], gpus: [{profile: a100}]}
  - {id: right, host: 127.0.0.1, ranks: [1], gpus: [{profile: a100}]}
fabric:
  intra_node: {type: nvlink, bandwidth_gbps: 300, latency_us: 3}
  inter_node: {type: tcp, bandwidth_gbps: 10, latency_us: 100}
"""


def notes(folder: Path, transport: str, host: str) -> list[str]:
    """The report's notes after two ranks of this machine."""
    (folder / "cluster.yaml").write_text(CLUSTER.replace("HOST", host), encoding="utf-8")
    report = folder / "report.json"
    with fakegpu.Coordinator(transport, cluster=folder / "cluster.yaml", report=report) as coordinator:
        worlds.values(worlds.run_ranks(coordinator.address, 2, lambda comm: comm.barrier()))
    return [note["text"] for note in json.loads(report.read_text(encoding="utf-8"))["notes"]]


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_a_rank_on_another_host_is_noted(tmp_path: Path, transport: str) -> None:
    """Nobody is refused: a cluster file may describe hosts that are not there."""
    (text,) = set(notes(tmp_path, transport, "10.9.8.7"))
    assert text.startswith(f"rank 0 runs on {socket.gethostname()}") and "node 'left', host 10.9.8.7" in text
    assert ("(127.0.0.1)" in text) == (transport == "tcp")


@pytest.mark.parametrize("host", [socket.gethostname(), f"{socket.gethostname().partition('.')[0].upper()}.example", "127.0.0.2"])
def test_its_own_host_and_loopback_are_fine(tmp_path: Path, host: str) -> None:
    assert notes(tmp_path, "tcp", host) == []
