"""Operations in flight at the same time: what shares a rank, or a node's NICs, shares their bandwidth.

Latencies of concurrent operations overlap, their bandwidth parts on a shared link add up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from fakegpu.timing.model import TimeModel
from fakegpu.timing.shapes import POINT_TO_POINT, Operation


def estimate_group(model: TimeModel, operations: Sequence[Operation]) -> float:
    """Microseconds until the last of a group's operations ends (ncclGroupSimulateEnd)."""
    load: dict[tuple[str, int, str], float] = defaultdict(float)
    latency = 0.0
    for operation in operations:
        found = model.estimate(operation)
        latency = max(latency, found.latency_us)
        for link in _links(model, operation):
            load[link] += found.bandwidth_us
    return latency + max(load.values(), default=0.0)


def _links(model: TimeModel, operation: Operation) -> list[tuple[str, int, str]]:
    """The full-duplex ends that an operation keeps busy: GPUs' links and, across nodes, nodes' NICs."""
    node = model.topology.cluster.node_index
    if operation.kind in POINT_TO_POINT:
        src, dst = operation.src, operation.dst
        if src == dst:
            return []
        return [("gpu", src, "out"), ("gpu", dst, "in")]
    links = [("gpu", rank, way) for rank in operation.ranks for way in ("out", "in")]
    nodes = {node(rank) for rank in operation.ranks}
    if len(nodes) > 1:
        links += [("node", index, way) for index in nodes for way in ("out", "in")]
    return links
