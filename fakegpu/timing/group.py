"""Operations in flight at the same time share their bandwidth where they share a link.

Latencies of concurrent operations overlap; on a link that several of them use, the times that it is busy for each
add up. Links are full duplex: the two directions are counted apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from fakegpu.timing.model import Estimate, TimeModel
from fakegpu.timing.shapes import POINT_TO_POINT, Operation

Link = tuple[str, int, int, str]


def estimate_group(model: TimeModel, operations: Sequence[Operation]) -> float:
    """Microseconds until the last of a group's operations ends (ncclGroupSimulateEnd)."""
    load: dict[Link, float] = defaultdict(float)
    latency = 0.0
    for operation in operations:
        found = model.estimate(operation)
        latency = max(latency, found.latency_us)
        for link, busy in links(model, operation, found):
            load[link] += busy
    return latency + max(load.values(), default=0.0)


def links(model: TimeModel, operation: Operation, found: Estimate) -> Iterator[tuple[Link, float]]:
    """The ends of links that an operation keeps busy, and for how many microseconds: GPUs' links and nodes' NICs."""
    if operation.kind in POINT_TO_POINT:
        if operation.src == operation.dst:
            return
        ends = [(operation.src, ("out",)), (operation.dst, ("in",))]
    else:
        ends = [(rank, ("out", "in")) for rank in operation.ranks]
    for rank, ways in ends:
        for way in ways:
            yield ("gpu", rank, 0, way), found.inside_us
    if found.across_us:
        yield from _nics(model, ends, found.across_us)


def _nics(model: TimeModel, ends: list, busy: float) -> Iterator[tuple[Link, float]]:
    """With rails a rank keeps to the NIC beside its GPU; `rails: false` spreads it over all NICs of the node."""
    cluster, topology = model.cluster, model.topology
    nics = cluster.inter_node.nics or 1
    used: dict[Link, float] = {}
    for rank, ways in ends:
        node = cluster.node_index(rank)
        gpus = len(cluster.nodes[node].ranks)
        place = topology.place_in_node(rank)
        nic = place if nics >= gpus else place * nics // gpus
        for way in ways:
            if cluster.inter_node.rails is False:
                share = min(1.0, used.get(("node", node, 0, way), 0.0) + max(1 / nics, 1 / gpus))
                used["node", node, 0, way] = share
            else:
                used["nic", node, nic, way] = 1.0
    for link, share in used.items():
        yield link, busy * share
