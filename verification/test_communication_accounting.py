"""Calls, bytes, waits and communicators in the report of a real coordinator, per collective and per rank.

usage: test_communication_accounting.py [--json EVIDENCE]
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import numpy as np  # noqa: E402
import ranks  # noqa: E402
from check_cluster_report import check  # noqa: E402
from clients import equal, expect, world  # noqa: E402

from fakegpu import report  # noqa: E402
from fakegpu.cluster import ClusterSpec  # noqa: E402

N = 4
LATE_S = 1.0
CLUSTER = ClusterSpec.default(2, 2, "a100")
EXPECTED = {  # kind: calls, logical bytes (the larger of one rank's two buffers)
    "all_reduce": (2, 2 * 100 * 4),
    "reduce": (1, 30 * 8),
    "broadcast": (1, 11 * 2),
    "all_gather": (1, 7 * N * 4),
    "reduce_scatter": (1, 5 * N * 4),
    "all_to_all": (1, 3 * N),
    "barrier": (3, 0),
    "gather": (1, 2 * N * 4),
    "scatter": (1, 6 * N * 4),
}


def everything(comm, rank) -> None:
    comm.all_reduce(np.ones(100, np.float32))
    comm.all_reduce(np.ones(100, np.int32), op="max")
    comm.reduce(np.ones(30, np.float64), root=1)
    comm.broadcast(np.ones(11, np.float16), root=2)
    comm.all_gather(np.ones(7, np.float32))
    comm.reduce_scatter(np.ones(5 * N, np.float32))
    comm.all_to_all(np.ones(3 * N, np.uint8))
    for _ in range(3):
        comm.barrier()
    comm.gather(np.ones(2, np.float32), root=0)
    comm.scatter(np.ones(6 * N, np.float32), root=3, out=np.zeros(6, np.float32))
    if rank == 0:
        comm.send(np.ones(1000, np.float32), 2)
    if rank == 2:
        comm.recv(np.zeros(1000, np.float32), 0)


def collectives(transport: str) -> dict:
    document = world(N, everything, cluster=CLUSTER, transport=transport)
    equal("the report's own checks", check(document, report.schema()), [])
    for kind, expected in EXPECTED.items():
        row = document["collectives"][kind]
        equal(kind, (row["calls"], row["bytes"]), expected)
        expect(kind == "barrier" or row["estimated_time_us_total"] > 0, f"{kind}: no modelled time")
    direct = document["point_to_point"]
    equal("transfers", (direct["operations"], direct["sends"], direct["bytes"]), (1, 1, 4000))
    calls = sum(count for count, _ in EXPECTED.values())
    for row in document["ranks"]:
        found = row["collective_calls"], row["barrier_calls"], row["point_to_point_calls"], row["communicator_inits"]
        equal(f"rank {row['rank']}", found, (calls, 3, 1 if row["rank"] in (0, 2) else 0, 1))
        equal(f"rank {row['rank']} time-outs", row["timeouts"], 0)
    return {"transport": transport, "operations": document["operation_timeline"]["retained_entries"]}


def socket_payload() -> dict:
    """Through TCP every rank's payload passes the coordinator: an all-reduce of S on N ranks is N x S each way."""
    document = world(N, lambda comm, rank: comm.all_reduce(np.ones(1000, np.float32)), cluster=CLUSTER, transport="tcp")
    (entry,) = document["operation_timeline"]["entries"]
    equal("transport", entry["buffer_transport"], "socket_payload")
    found = entry["socket_request_payload_bytes"], entry["socket_response_payload_bytes"]
    equal("in and out", found, (N * 4000, N * 4000))
    equal("logical payload", entry["logical_payload_bytes"], 4000)
    return {}


def timeline_details() -> dict:
    document = world(N, everything, cluster=CLUSTER)
    entries = document["operation_timeline"]["entries"]
    first, second = entries[0], entries[1]
    equal("types and reductions", [(e["data_type"], e["reduce_op"]) for e in (first, second)],
          [("float32", "sum"), ("int32", "max")])
    equal("ranks", first["ranks"], [0, 1, 2, 3])
    equal("sequence numbers", [e["seqno"] for e in entries if e["kind"] == "collective"][:5], [0, 1, 2, 3, 4])
    sent = next(entry for entry in entries if entry["operation"] == "send")
    equal("a transfer's ranks", sent["ranks"], [0, 2])
    expect(all(entry["modeled_time_us"] > 0 for entry in entries), "an operation without modelled time")
    return {}


def waiting() -> dict:
    """Rank 3 comes a second late: the others waited that long, rank 3 did not."""

    def body(comm, rank):
        comm.barrier()
        if rank == 3:
            time.sleep(LATE_S)
        comm.all_reduce(np.ones(1, np.float32))

    document = world(N, body, cluster=CLUSTER)
    waits = [row["wait_time_ms"] for row in document["ranks"]]
    # the barrier before only evens out the start; half of the delay is room for a busy machine
    expect(min(waits[:3]) >= 0.9e3 * LATE_S, f"the early ranks waited {waits[:3]} ms")
    expect(waits[3] < min(waits[:3]) - 0.5e3 * LATE_S, f"the late rank waited {waits[3]} ms, the others {waits[:3]}")
    late = document["operation_timeline"]["entries"][-1]
    expect(late["rendezvous_wait_us"] >= 0.9e6 * LATE_S, f"rendezvous {late['rendezvous_wait_us']} us")
    return {"waits_ms": waits}


def split_membership() -> dict:
    """Odd and even ranks: two communicators, each counted for its own members."""

    def body(comm, rank):
        part = comm.split(rank % 2, rank, name="parity")
        for _ in range(1 + rank % 2):
            part.all_reduce(np.ones(10, np.float32))
        part.destroy()

    document = world(N, body, cluster=CLUSTER)
    equal("calls", [row["collective_calls"] for row in document["ranks"]], [1, 2, 1, 2])
    equal("inits", [row["communicator_inits"] for row in document["ranks"]], [2, 2, 2, 2])
    children = [row for row in document["communicators"] if row["parent"] is not None]
    found = sorted((row["ranks"], row["collective_calls"], row["bytes"]) for row in children)
    equal("communicators", found, [([0, 2], 1, 40), ([1, 3], 2, 80)])
    equal("timeline ranks", sorted(e["ranks"] for e in document["operation_timeline"]["entries"]),
          [[0, 2], [1, 3], [1, 3]])
    return {}


if __name__ == "__main__":
    checks = [
        ("every collective, Unix socket", lambda: collectives("unix")),
        ("every collective, TCP", lambda: collectives("tcp")),
        ("socket payload", socket_payload),
        ("timeline details", timeline_details),
        ("waiting", waiting),
        ("split membership", split_membership),
    ]
    sys.exit(ranks.main("communication_accounting", checks, sys.argv[1:]))
