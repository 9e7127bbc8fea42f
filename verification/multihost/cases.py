"""The controller's cases: what every node runs, and what the ranks' records and the cluster report must then show."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

VERIFICATION = Path(__file__).resolve().parents[1]
for folder in (VERIFICATION, VERIFICATION.parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from check_cluster_report import check  # noqa: E402

from fakegpu import report as cluster_report  # noqa: E402

DDP, FSDP, FSDP2 = "test/test_ddp_hybrid_numerics.py", "verification/hybrid/fsdp.py", "verification/hybrid/fsdp2.py"
FAULTS = "verification/multihost/faults.py"
PARAMETER = ("--reduce-precision", "parameter")


@dataclass(frozen=True)
class Case:
    name: str
    worker: str
    arguments: tuple[str, ...] = ()
    failure: str = ""  # the failure that the report must name; "" = none may be there
    torchrun: bool = True
    timeout_ms: int = 60_000


CASES = (
    Case("ddp", DDP, ("--variant", "basic")),
    Case("ddp_options", DDP, ("--variant", "all")),
    Case("fsdp", FSDP),
    Case("fsdp2_fp32", FSDP2, ("--precision", "fp32")),
    Case("fsdp2_fp16", FSDP2, ("--precision", "fp16")),
    Case("fsdp2_bf16", FSDP2, ("--precision", "bf16")),
    Case("fsdp2_fp16_reduce", FSDP2, ("--precision", "fp16", *PARAMETER)),
    Case("fsdp2_bf16_reduce", FSDP2, ("--precision", "bf16", *PARAMETER)),
    Case("mismatch", FAULTS, ("mismatch",), failure="mismatch", torchrun=False),
    Case("missing_peer", FAULTS, ("missing",), failure="timeout", torchrun=False, timeout_ms=5_000),
)


def command(case: Case, rank: int, world: int, place: dict, mode: str) -> list[str]:
    """A node's command: fgpu with the common coordinator, then torchrun or the program itself."""
    fgpu = [
        "{python}", "-m", "fakegpu", "run", "--mode", mode, "--device-count", "1", "--timeout-ms", str(case.timeout_ms),
        "--coordinator-transport", "tcp", "--coordinator-addr", place["coordinator"],
    ]  # fmt: skip
    program = [case.worker, *case.arguments, "--report-dir", "{dir}"]
    if not case.torchrun:
        return [*fgpu, "{python}", *program]
    return [
        *fgpu, "{python}", "-m", "torch.distributed.run", "--nnodes", str(world), "--nproc-per-node", "1", "--node-rank",
        str(rank), "--master-addr", place["master"], "--master-port", place["master_port"], "--max-restarts", "0", *program,
    ]  # fmt: skip


def plain_variables(rank: int, world: int) -> dict[str, str]:
    """What a program without a launcher needs to know where it is."""
    return {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": str(rank)}


def _records(case: Case, records: list[dict | None]) -> list[str]:
    missing = [f"no record of rank {rank}" for rank, record in enumerate(records) if record is None]
    if missing or case.failure:
        return missing
    return [
        f"{key} of rank {rank} differs from rank 0's"
        for rank, record in enumerate(records[1:], 1)
        for key in ("parameters", "variants", "state_dict")
        if record.get(key) != records[0].get(key)
    ]


def _failures(case: Case, report: dict) -> list[str]:
    kinds = [event["source"] for event in report["resilience"]["failure_events"]]
    if not case.failure:
        late = [row["rank"] for row in report["ranks"] if row["timeouts"]]
        texts = [event["error_detail"] for event in report["resilience"]["failure_events"]]
        return texts + ([f"time-outs on ranks {late}"] if late else [])
    return [] if kinds and set(kinds) == {case.failure} else [f"failures in the report are {kinds}, expected {case.failure}"]


def problems(case: Case, records: list[dict | None], report: dict | None) -> list[str]:
    """What is wrong with a case whose commands all ended well; [] if nothing is."""
    if report is None:
        return ["no cluster report came back"]
    found = _records(case, records) + check(report, cluster_report.schema()) + _failures(case, report)
    if report["cluster"]["node_count"] != len(records):
        found.append(f"the report has {report['cluster']['node_count']} nodes, expected {len(records)}")
    pairs = report["node_pairs"]
    if not case.failure and not all(any(pair[way]["total_bytes"] for pair in pairs) for way in ("a_to_b", "b_to_a")):
        found.append("no traffic in both directions between the nodes")
    return found
