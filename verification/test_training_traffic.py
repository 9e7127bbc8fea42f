"""DDP, FSDP2 and tensor parallel training: bytes between the nodes follow from parameters and placement, to the byte.

usage: test_training_traffic.py [--json EVIDENCE]        needs torch; four ranks on two nodes, NCCL_ALGO=Ring
Calls, counts and node-pair bytes are worked out here from the layers' shapes; the report must say the same.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import ranks  # noqa: E402
from check_cluster_report import check  # noqa: E402
from clients import ROOT, equal, expect  # noqa: E402

from fakegpu import report  # noqa: E402

RANKS, STEPS = 4, 3
IN, HIDDEN, OUT, BATCH = 64, 100, 10, 8  # of train_traffic.py
FLOAT = 4
PARAMETERS = IN * HIDDEN + HIDDEN + HIDDEN * OUT + OUT


def shard(rows: int, columns: int) -> int:
    """Elements of one rank's part of a matrix, its rows padded to a multiple of the ranks."""
    return -(-rows // RANKS) * columns


def crossing(operation: str, count: int, root: int = 0) -> tuple[int, int]:
    """(node0 to node1, node1 to node0) bytes of a float32 operation on the ring 0 1 | 2 3."""
    part = [count // RANKS + (i < count % RANKS) for i in range(RANKS)]
    match operation:
        case "all_reduce":  # edge 1->2 misses slices 2 and 3, edge 3->0 misses slices 0 and 1
            return (2 * count - part[2] - part[3]) * FLOAT, (2 * count - part[0] - part[1]) * FLOAT
        case "all_gather" | "reduce_scatter":
            return (RANKS - 1) * count * FLOAT, (RANKS - 1) * count * FLOAT
        case "broadcast" if root == 0:  # the chain 0 1 2 3
            return count * FLOAT, 0
    raise AssertionError(f"unexpected {operation}, root {root}")


def train(kind: str) -> dict:
    """The report of a run under fgpu; the program has not one word about it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [
            str(ROOT / "fgpu"), "--device-count", str(RANKS), "--nodes", "2", "--gpus-per-node", "2",
            "--report", str(path),
            "torchrun", "--nproc-per-node", str(RANKS), "verification/train_traffic.py", kind, str(STEPS),
        ]
        search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "NCCL_ALGO": "Ring", "PATH": search}
        result = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        expect(result.returncode == 0, f"exit status {result.returncode}: {result.stderr[-1500:]}")
        document = json.loads(path.read_text(encoding="utf-8"))
    equal("the report's own checks", check(document, report.schema()), [])
    equal("nothing dropped", document["operation_timeline"]["dropped_entries"], 0)
    return document


def operations(document: dict) -> Counter:
    return Counter((entry["operation"], entry["count"]) for entry in document["operation_timeline"]["entries"])


def node_bytes(document: dict) -> tuple[int, int]:
    (pair,) = document["node_pairs"]
    return pair["a_to_b"]["total_bytes"], pair["b_to_a"]["total_bytes"]


def total(rows: list[tuple[int, int]]) -> tuple[int, int]:
    return sum(there for there, _ in rows), sum(back for _, back in rows)


def ddp() -> dict:
    """One bucket holds every gradient: one all-reduce of all parameters per step; parameters broadcast once."""
    document = train("ddp")
    found = operations(document)
    gradients = {key: calls for key, calls in found.items() if key[0] == "all_reduce"}
    equal("gradients", gradients, {("all_reduce", PARAMETERS): STEPS})
    equal("payload", document["collectives"]["all_reduce"]["bytes"], STEPS * PARAMETERS * FLOAT)
    setup = [e for e in document["operation_timeline"]["entries"] if e["operation"] != "all_reduce"]
    parameters = [e for e in setup if e["logical_payload_bytes"] == PARAMETERS * FLOAT]
    equal("parameters are broadcast once", [e["operation"] for e in parameters], ["broadcast"])
    rows = [crossing("all_reduce", PARAMETERS)] * STEPS
    for entry in setup:  # shapes, buffers, bucket order: small, torch's own
        size = entry["logical_payload_bytes"]
        count = size // FLOAT if entry["operation"] == "broadcast" else size // RANKS // FLOAT
        rows.append(crossing(entry["operation"], count, entry["root"] or 0))
    equal("bytes between the nodes", node_bytes(document), total(rows))
    return {"bytes": node_bytes(document)}


def fsdp2() -> dict:
    """Per layer and step: gathered for the forward and again for the backward, gradients reduce-scattered once."""
    document = train("fsdp2")
    layers = [shard(HIDDEN, IN) + shard(HIDDEN, 1), shard(OUT, HIDDEN) + shard(OUT, 1)]
    expected = Counter()
    for layer in layers:
        expected["all_gather", layer] += 2 * STEPS
        expected["reduce_scatter", layer] += STEPS
    equal("operations", operations(document), expected)
    rows = [crossing(kind, count) for (kind, count), calls in expected.items() for _ in range(calls)]
    equal("bytes between the nodes", node_bytes(document), total(rows))
    return {"bytes": node_bytes(document)}


def tensor_parallel() -> dict:
    """One all-reduce of the output per step; before that rank 0 hands out the shards and the bias."""
    document = train("tp")
    shards = [HIDDEN // RANKS * IN, HIDDEN // RANKS, OUT * HIDDEN // RANKS]
    expected = Counter({("send", count): RANKS - 1 for count in shards})
    expected["broadcast", OUT] = 1
    expected["all_reduce", BATCH * OUT] = STEPS
    equal("operations", operations(document), expected)
    rows = [crossing("all_reduce", BATCH * OUT)] * STEPS + [crossing("broadcast", OUT)]
    rows += [(2 * count * FLOAT, 0) for count in shards]  # to ranks 2 and 3
    equal("bytes between the nodes", node_bytes(document), total(rows))
    return {"bytes": node_bytes(document)}


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        sys.exit("training_traffic: torch is not installed: nothing was checked")
    checks = [("DDP", ddp), ("FSDP2", fsdp2), ("tensor parallel", tensor_parallel)]
    sys.exit(ranks.main("training_traffic", checks, sys.argv[1:]))
