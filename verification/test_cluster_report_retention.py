"""What the report keeps: nothing, the newest entries, all; and that it is whole after failures and with ranks alive.

usage: test_cluster_report_retention.py [--json EVIDENCE]
"""

import json
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import numpy as np  # noqa: E402
import ranks  # noqa: E402
from check_cluster_report import check  # noqa: E402
from clients import equal, expect, world  # noqa: E402

import fakegpu  # noqa: E402
from fakegpu import report  # noqa: E402

CALLS = 10


def run(max_operations: int) -> dict:
    def body(comm, rank):
        for count in range(1, CALLS + 1):
            comm.all_reduce(np.ones(count, np.float32))

    document = world(2, body, max_operations=max_operations)
    equal("the report's own checks", check(document, report.schema()), [])
    equal("calls are counted whatever is kept", document["collectives"]["all_reduce"]["calls"], CALLS)
    equal("bytes too", document["collectives"]["all_reduce"]["bytes"], 4 * CALLS * (CALLS + 1) // 2)
    return document["operation_timeline"]


def retention(kept: int, limit: int) -> dict:
    timeline = run(limit)
    equal("retained", timeline["retained_entries"], kept)
    equal("dropped", timeline["dropped_entries"], CALLS - kept)
    equal("the newest", [entry["seqno"] for entry in timeline["entries"]], list(range(CALLS - kept, CALLS)))
    return {"limit": limit, "kept": kept}


def after_a_mismatch() -> dict:
    """Rank 1 calls another collective: the failure is in the report, with both sides, and so is what went before."""

    def body(comm, rank):
        comm.all_reduce(np.ones(4, np.float32))
        if rank == 0:
            comm.all_reduce(np.ones(4, np.float32))
        else:
            comm.all_gather(np.ones(4, np.float32))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        document = world(2, body, expect_errors=True, report=path)
        equal("the file", json.loads(path.read_text(encoding="utf-8")), document)
        expect("all_gather" in path.with_suffix(".md").read_text(encoding="utf-8"), "the page misses the failure")
        equal("no temporary file is left", sorted(p.name for p in Path(folder).iterdir()), ["report.json", "report.md"])
    equal("the report's own checks", check(document, report.schema()), [])
    equal("failures", document["resilience"]["failure_count"], 1)
    (event,) = document["resilience"]["failure_events"]
    expect("all_reduce" in event["error_detail"] and "all_gather" in event["error_detail"], event["error_detail"])
    equal("calls before", document["collectives"]["all_reduce"]["calls"], 1)
    return {"detail": event["error_detail"]}


def after_a_missing_rank() -> dict:
    """Rank 1 stays away: the time-out is recorded with who had joined and what was attempted."""
    over = threading.Event()

    def body(comm, rank):
        comm.barrier()
        if rank == 1:
            over.wait(30)
            return
        try:
            comm.all_reduce(np.ones(4, np.float32))
        finally:
            over.set()

    document = world(2, body, expect_errors=True)
    equal("failures", document["resilience"]["failure_count"], 1)
    (event,) = document["resilience"]["failure_events"]
    equal("source", event["source"], "timeout")
    equal("time-outs", [row["timeouts"] for row in document["ranks"]], [1, 0])
    equal("who had joined", event["observed_ranks"], [0])
    expect(event["attempted_payload_bytes"] == 16, f"attempted {event['attempted_payload_bytes']} bytes")
    return {"detail": event["error_detail"]}


def with_ranks_alive() -> dict:
    """The coordinator stops while a rank is connected: the report is written and counts its operation."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        with fakegpu.Coordinator(report=path) as coordinator:
            client = fakegpu.connect(coordinator.address, rank=0, world_size=1, timeout_ms=2000)
            comm = client.init(1, 0, client.unique_id(), "alone")
            comm.all_reduce(np.ones(4, np.float32))
            comm.barrier()  # its submission follows the word that the all-reduce is done
            coordinator.stop()
            try:
                client.close()
            except fakegpu.FakeGPUError:
                pass  # the coordinator is gone: that is the point
        document = json.loads(path.read_text(encoding="utf-8"))
    equal("the report's own checks", check(document, report.schema()), [])
    equal("calls", document["collectives"]["all_reduce"]["calls"], 1)
    return {}


if __name__ == "__main__":
    checks = [
        ("nothing", lambda: retention(0, 0)),
        ("the newest three", lambda: retention(3, 3)),
        ("all", lambda: retention(CALLS, 4096)),
        ("after a mismatch", after_a_mismatch),
        ("after a missing rank", after_a_missing_rank),
        ("with ranks alive", with_ranks_alive),
    ]
    sys.exit(ranks.main("cluster_report_retention", checks, sys.argv[1:]))
