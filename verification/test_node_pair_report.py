"""Bytes per node pair in the report of a real coordinator, to the byte, against arithmetic done here.

usage: test_node_pair_report.py [--json EVIDENCE]
Three nodes of two ranks; every collective, transfers, a split; ring traffic unless a check says otherwise.
"""

import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import numpy as np  # noqa: E402
import ranks  # noqa: E402
from check_cluster_report import check  # noqa: E402
from clients import equal, expect, world  # noqa: E402

from fakegpu import report  # noqa: E402
from fakegpu.cluster import ClusterSpec  # noqa: E402

NODES, PER_NODE = 3, 2
N = NODES * PER_NODE
CLUSTER = ClusterSpec.default(NODES, PER_NODE, "h100")
COUNT = 1001


def crossing_edges(members: list[int]) -> list[tuple[int, int]]:
    """The ring's edges between nodes; members are in node order here."""
    edges = [(members[i], members[(i + 1) % len(members)]) for i in range(len(members))]
    return [(a, b) for a, b in edges if a // PER_NODE != b // PER_NODE]


def directed(document: dict) -> dict[tuple[str, str], int]:
    found = {}
    for pair in document["node_pairs"]:
        found[pair["node_a"], pair["node_b"]] = pair["a_to_b"]["total_bytes"]
        found[pair["node_b"], pair["node_a"]] = pair["b_to_a"]["total_bytes"]
    return found


def expected_of(edges: dict[tuple[int, int], int]) -> dict[tuple[str, str], int]:
    """Rank-to-rank bytes -> bytes of every directed node pair, zeros too."""
    found = {(f"node{a}", f"node{b}"): 0 for a in range(NODES) for b in range(NODES) if a != b}
    for (src, dst), size in edges.items():
        found[f"node{src // PER_NODE}", f"node{dst // PER_NODE}"] += size
    return found


def checked(body, **options) -> dict:
    document = world(N, body, cluster=CLUSTER, **options)
    equal("the report's own checks", check(document, report.schema()), [])
    equal("pairs", len(document["node_pairs"]), NODES * (NODES - 1) // 2)
    return document


def ring_all_reduce_bytes(members: list[int], count: int, size: int) -> dict[tuple[int, int], int]:
    n = len(members)
    part = [count // n + (i < count % n) for i in range(n)]
    position = {rank: i for i, rank in enumerate(members)}
    return {
        (a, b): (2 * count - part[(position[a] + 1) % n] - part[(position[a] + 2) % n]) * size
        for a, b in crossing_edges(members)
    }


def all_reduce() -> dict:
    document = checked(lambda comm, rank: [comm.all_reduce(np.ones(COUNT, np.float32)) for _ in range(3)])
    once = ring_all_reduce_bytes(list(range(N)), COUNT, 4)
    equal("bytes", directed(document), expected_of({edge: 3 * size for edge, size in once.items()}))
    equal("operations", [pair["operations"] for pair in document["node_pairs"]], [3, 3, 3])
    return {}


def all_gather_and_reduce_scatter() -> dict:
    def body(comm, rank):
        comm.all_gather(np.ones(COUNT, np.int8))
        comm.reduce_scatter(np.ones(COUNT * N, np.float64))

    size = (N - 1) * COUNT * (1 + 8)
    equal("bytes", directed(checked(body)), expected_of({edge: size for edge in crossing_edges(list(range(N)))}))
    return {}


def rooted() -> dict:
    """Broadcast and reduce from and to rank 3: the chain 3 4 5 0 1 2; gather and scatter straight to rank 3."""

    def body(comm, rank):
        comm.broadcast(np.ones(10, np.float32), root=3)
        comm.reduce(np.ones(20, np.float32), root=3)
        comm.gather(np.ones(3, np.float32), root=3)
        comm.scatter(np.ones(5 * N, np.float32), root=3, out=np.zeros(5, np.float32))

    edges: dict[tuple[int, int], int] = defaultdict(int)
    chain = [3, 4, 5, 0, 1, 2]
    for a, b in zip(chain, chain[1:], strict=False):
        edges[a, b] += 40
        edges[b, a] += 80
    for rank in {0, 1, 2, 4, 5}:
        edges[rank, 3] += 12
        edges[3, rank] += 20
    crossing = {edge: size for edge, size in edges.items() if edge[0] // PER_NODE != edge[1] // PER_NODE}
    equal("bytes", directed(checked(body)), expected_of(crossing))
    return {}


def all_to_all() -> dict:
    document = checked(lambda comm, rank: comm.all_to_all(np.ones(7 * N, np.float16)))
    block = 7 * 2 * PER_NODE * PER_NODE
    equal("bytes", set(directed(document).values()), {block})
    equal("transfers", {pair["a_to_b"]["transfers"] for pair in document["node_pairs"]}, {PER_NODE * PER_NODE})
    return {}


def transfers() -> dict:
    """Rank 0 sends to 5 twice, 5 to 0 once; 0 to 1 stays on its node."""

    def body(comm, rank):
        if rank == 0:
            comm.send(np.ones(100, np.int8), 5)
            comm.send(np.ones(50, np.int8), 5)
            comm.send(np.ones(9, np.int8), 1)
            comm.recv(np.zeros(7, np.int8), 5)
        elif rank == 5:
            comm.recv(np.zeros(100, np.int8), 0)
            comm.recv(np.zeros(50, np.int8), 0)
            comm.send(np.ones(7, np.int8), 0)
        elif rank == 1:
            comm.recv(np.zeros(9, np.int8), 0)

    document = checked(body)
    equal("bytes", directed(document), expected_of({(0, 5): 150, (5, 0): 7}))
    pair = next(p for p in document["node_pairs"] if (p["node_a"], p["node_b"]) == ("node0", "node2"))
    equal("transfers", (pair["a_to_b"]["transfers"], pair["b_to_a"]["transfers"]), (2, 1))
    equal("peak", (pair["a_to_b"]["peak_bytes_per_operation"], pair["peak_combined_bytes_per_operation"]), (100, 100))
    equal("kinds", (pair["collective_operations"], pair["point_to_point_operations"]), (0, 3))
    return {}


def splits() -> dict:
    """Even ranks and odd ranks; then the halves 0..1 and 2..5: the first half crosses nothing."""

    def body(comm, rank):
        half = comm.split(0 if rank < 2 else 1, rank)
        half.all_reduce(np.ones(COUNT, np.float32))
        half.destroy()

    document = checked(body)
    equal("bytes", directed(document), expected_of(ring_all_reduce_bytes([2, 3, 4, 5], COUNT, 4)))
    untouched = [p for p in document["node_pairs"] if p["node_a"] == "node0"]
    expect(all(p["operations"] == 0 and p["total_bytes"] == 0 for p in untouched), "node0 was charged for the others")
    return {}


def trees() -> dict:
    """NCCL_ALGO=Tree: half of the elements over each tree, there and back."""
    document = checked(lambda comm, rank: comm.all_reduce(np.ones(COUNT, np.float32)), algorithm="tree")
    total = sum(pair["total_bytes"] for pair in document["node_pairs"])
    equal("crossed in all", total, 2 * (NODES - 1) * COUNT * 4)
    return {}


if __name__ == "__main__":
    parts = (all_reduce, all_gather_and_reduce_scatter, rooted, all_to_all, transfers, splits, trees)
    sys.exit(ranks.main("node_pair_report", [(part.__name__, part) for part in parts], sys.argv[1:]))
