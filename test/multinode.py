#!/usr/bin/env python3
"""Runs a torchrun program as two `--nnodes 2` halves on this machine, joined by one coordinator over TCP.

    test/multinode.py RANKS PROGRAM [ARGUMENTS]    half of RANKS on each node; RANKS even

Each half is its own `fgpu` job, as on two hosts. Passes when both halves exit 0 and the coordinator's report shows two
nodes, traffic between them in both directions and no failure. Used by run_multinode_sim.sh and run_ddp_multinode.sh.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAKEGPU = [sys.executable, "-m", "fakegpu"]
SECONDS = 600


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def check_report(path: Path, ranks: int) -> str:
    """What is wrong with the report, '' if nothing is."""
    report = json.loads(path.read_text(encoding="utf-8"))
    cluster, pairs = report["cluster"], report["node_pairs"]
    if (cluster["world_size"], cluster["node_count"]) != (ranks, 2):
        return f"the report describes {cluster['world_size']} ranks on {cluster['node_count']} nodes"
    if report["resilience"]["failure_count"]:
        return f"failures: {report['resilience']['failure_events'][0]['error_detail']}"
    if not all(pairs[0][way]["total_bytes"] for way in ("a_to_b", "b_to_a")):
        return f"no traffic in both directions between the nodes: {pairs}"
    return ""


def start_halves(address: str, ranks: int, program: list[str], environment: dict[str, str]) -> list[subprocess.Popen]:
    port = free_port()
    return [
        subprocess.Popen(
            [
                *FAKEGPU,
                "run",
                "--coordinator-transport",
                "tcp",
                "--coordinator-addr",
                address,
                "--timeout-ms",
                "120000",
                "--device-count",
                str(ranks // 2),
                "torchrun",
                "--nnodes",
                "2",
                "--node-rank",
                str(node),
                "--nproc-per-node",
                str(ranks // 2),
                "--master-addr",
                "127.0.0.1",
                "--master-port",
                str(port),
                *program,
            ],
            env=environment,
        )
        for node in range(2)
    ]


def run(ranks: int, program: list[str], folder: Path) -> str:
    """Coordinator, two halves, shutdown; what went wrong, '' if nothing did."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    report = folder / "report.json"
    coordinator = subprocess.Popen(
        [
            *FAKEGPU,
            "coordinator",
            "--listen",
            "127.0.0.1:0",
            "--nodes",
            "2",
            "--gpus-per-node",
            str(ranks // 2),
            "--report",
            str(report),
        ],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    halves: list[subprocess.Popen] = []
    try:
        address = coordinator.stdout.readline().split()[-1]
        halves = start_halves(address, ranks, program, environment)
        statuses = [half.wait(SECONDS) for half in halves]
        subprocess.run(
            [*FAKEGPU, "coordinator", "--shutdown", address], env=environment, check=True, stdout=subprocess.DEVNULL
        )
        coordinator.communicate(timeout=60)
    finally:
        for process in [*halves, coordinator]:
            process.terminate()
            process.wait()
    if any(statuses):
        return f"exit statuses of the two halves: {statuses}"
    return check_report(report, ranks)


def main() -> int:
    if len(sys.argv) < 3 or not sys.argv[1].isdigit() or int(sys.argv[1]) < 2 or int(sys.argv[1]) % 2:
        print("usage: multinode.py RANKS PROGRAM [ARGUMENTS], RANKS even and at least 2", file=sys.stderr)
        return 2
    ranks, program = int(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        problem = run(ranks, program, Path(folder))
    print(f"{Path(program[0]).name} on {ranks} ranks, two nodes over TCP: {'FAILED: ' + problem if problem else 'OK'}")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
