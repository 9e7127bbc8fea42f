"""The time of an operation: ring steps, latency and bandwidth of the slowest link in the ring."""

from __future__ import annotations

import attrs

from fakegpu.cluster import ClusterSpec
from fakegpu.timing import traffic
from fakegpu.topology import Topology


@attrs.frozen
class Operation:
    """What is modelled. `count` is in elements, as the NCCL call of that kind defines it; ranks are global."""

    kind: str
    ranks: tuple[int, ...]
    count: int
    element_bytes: int
    root: int | None = None
    src: int | None = None
    dst: int | None = None


@attrs.frozen
class Estimate:
    time_us: float
    algorithm: str  # ring | p2p | none
    protocol: str
    steps: int
    latency_us: float
    bandwidth_us: float
    contention_us: float  # part of bandwidth_us that oversubscription costs
    bottleneck: str  # the link that sets the bandwidth part


_NOTHING = Estimate(0.0, "none", "none", 0, 0.0, 0.0, 0.0, "")


class TimeModel:
    def __init__(self, cluster: ClusterSpec) -> None:
        self.cluster = cluster
        self.topology = Topology(cluster)

    def estimate(self, operation: Operation) -> Estimate:
        if operation.kind in ("send", "put_signal", "signal"):
            return self._point_to_point(operation)
        placement = self.topology.placement(operation.ranks)
        n = placement.nranks
        if n < 2:
            return _NOTHING
        size, steps = _ring_shape(operation, n)
        crossing = placement.node_count > 1
        fabric = self.cluster.inter_node if crossing else self.cluster.intra_node
        inter_steps = steps * placement.node_count / n if crossing else 0
        intra = self.cluster.intra_node.latency_us
        latency = (steps - inter_steps) * intra + inter_steps * self.cluster.inter_node.latency_us
        return self._result(size, fabric, latency, "ring", steps, "inter_node" if crossing else "intra_node")

    def _point_to_point(self, operation: Operation) -> Estimate:
        if operation.src == operation.dst:
            return _NOTHING
        same = self.topology.same_node(operation.src, operation.dst)
        fabric = self.cluster.intra_node if same else self.cluster.inter_node
        size = operation.count * operation.element_bytes
        return self._result(size, fabric, fabric.latency_us, "p2p", 1, "intra_node" if same else "inter_node")

    @staticmethod
    def _result(size: float, fabric, latency: float, algorithm: str, steps: int, bottleneck: str) -> Estimate:
        plain = size * 8 / (fabric.bandwidth_gbps * 1e3)
        bandwidth = plain * fabric.oversubscription
        return Estimate(
            latency + bandwidth, algorithm, "simple", steps, latency, bandwidth, bandwidth - plain, bottleneck
        )

    def traffic(self, operation: Operation, estimate: Estimate) -> dict[tuple[int, int], int]:
        """Bytes from rank to rank under the algorithm that `estimate` chose."""
        return traffic.of(operation, self.topology.placement(operation.ranks))


def _ring_shape(operation: Operation, n: int) -> tuple[float, int]:
    """Bytes over each edge of the ring and steps one after the other."""
    size = operation.count * operation.element_bytes
    match operation.kind:
        case "all_reduce":
            return size * 2 * (n - 1) / n, 2 * (n - 1)
        case "all_gather" | "reduce_scatter" | "all_to_all" | "gather" | "scatter":
            return size * (n - 1), n - 1
        case "barrier":
            return 0, 2 * (n - 1)
        case _:
            return size, n - 1
