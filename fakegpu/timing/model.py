"""TimeModel: picks the candidates that fit an operation's placement, applies restrictions, explains the result."""

from __future__ import annotations

import functools

import attrs

from fakegpu.cluster import ClusterSpec, Fabric
from fakegpu.profiles import GpuProfile
from fakegpu.timing import constants as model_constants
from fakegpu.timing import network, onenode, traffic
from fakegpu.timing.network import Network
from fakegpu.timing.onenode import Candidate, Node
from fakegpu.timing.restrict import Restriction
from fakegpu.timing.shapes import PAIRWISE, POINT_TO_POINT, Operation
from fakegpu.topology import Placement, Topology


@attrs.frozen
class Estimate:
    time_us: float
    algorithm: str  # ring | tree | nvls | nvlstree | collnet | pat | p2p | none
    protocol: str  # LL | LL128 | Simple | none
    steps: int
    latency_us: float
    bandwidth_us: float
    contention_us: float  # part of bandwidth_us that oversubscription costs
    bottleneck: str  # the link that sets the bandwidth part
    inside_us: float = 0.0  # how long links within the nodes are busy
    across_us: float = 0.0  # how long the NICs are busy


# DGX-1's cube mesh: links that the rings of the first 2, 3, ... 8 GPUs use of each GPU's six.
CUBE_MESH_LINKS = (1, 2, 4, 4, 4, 4, 6)
NOTHING = Estimate(0.0, "none", "none", 0, 0.0, 0.0, 0.0, "")


class TimeModel:
    """Estimates on one cluster. `restriction` is what NCCL_ALGO and NCCL_PROTO allow."""

    def __init__(
        self,
        cluster: ClusterSpec,
        restriction: Restriction | None = None,
        constants: model_constants.Constants | None = None,
    ) -> None:
        self.cluster = cluster
        self.topology = Topology(cluster)
        self.constants = constants or model_constants.load()
        self.restriction = restriction or Restriction()
        if not self.restriction.algorithms and not self.restriction.protocols:
            self.restriction = Restriction.parse(cluster.algorithm, cluster.protocol)
        self._node = functools.lru_cache(maxsize=256)(self._make_node)
        self._network = functools.lru_cache(maxsize=256)(self._make_network)

    def estimate(self, operation: Operation) -> Estimate:
        """Time of one operation alone on its links."""
        chosen = self.candidates(operation)
        if not chosen:
            return NOTHING
        best = min(chosen, key=lambda c: c.expected_us)
        return self._explain(best)

    def candidates(self, operation: Operation) -> list[Candidate]:
        """What NCCL could use here, restricted; empty for an operation that moves nothing between ranks."""
        if operation.kind in POINT_TO_POINT:
            return self._pair(operation)
        ranks = operation.ranks
        if len(ranks) < 2:
            return []
        place, size = self.topology.placement(ranks), operation.size_bytes
        node = self._node(ranks)
        kind = "all_reduce" if operation.kind == "barrier" else operation.kind
        if place.node_count == 1:
            if kind in PAIRWISE:
                return [(onenode.all_to_all if kind == "all_to_all" else onenode.rooted)(node, size)]
            found = onenode.candidates(node, kind, size)
        else:
            net = self._network(ranks)
            if kind in PAIRWISE:
                net = self._network(ranks, self._leaves_rail(node, ranks))
                return [(network.all_to_all if kind == "all_to_all" else network.rooted)(node, net, size)]
            found = network.candidates(node, net, kind, size)
        return self.restriction.apply(found, kind)

    def _pair(self, operation: Operation) -> list[Candidate]:
        src, dst = operation.src, operation.dst
        if src == dst:
            return []
        node, size = self._node((src, dst)), operation.size_bytes
        if self.topology.same_node(src, dst):
            return [onenode.pair(node, size)]
        return [network.pair(node, self._network((src, dst), self._leaves_rail(node, (src, dst))), size)]

    def _leaves_rail(self, node: Node, ranks: tuple[int, ...]) -> bool:
        """Whether ranks at different places of their nodes talk directly: NVLink would carry that to the right rail."""
        places = {self.topology.place_in_node(rank) for rank in ranks}
        return bool(self.cluster.inter_node.rails) and node.family.is_pcie and len(places) > 1

    def _explain(self, best: Candidate) -> Estimate:
        across = best.scope == "inter_node"
        fabric = self.cluster.inter_node if across else self.cluster.intra_node
        rate = fabric.bandwidth_gbps * (fabric.nics or 1 if across else 1)
        bottleneck = f"{best.scope} {fabric.type} {rate:g} Gbit/s"
        contention = best.contention_us
        if not across:
            contention = best.bandwidth_us * (1 - 1 / fabric.oversubscription)
        return Estimate(
            time_us=best.time_us,
            algorithm=best.algorithm,
            protocol=best.protocol,
            steps=best.steps,
            latency_us=best.latency_us,
            bandwidth_us=best.bandwidth_us,
            contention_us=contention,
            bottleneck=bottleneck,
            inside_us=best.bandwidth_us * best.inside_share,
            across_us=best.bandwidth_us * best.across_share,
        )

    def traffic(self, operation: Operation, algorithm: str) -> dict[tuple[int, int], int]:
        """Bytes from rank to rank under the algorithm that an estimate chose."""
        return traffic.of(operation, self.topology.placement(operation.ranks), algorithm)

    def _make_node(self, ranks: tuple[int, ...]) -> Node:
        place = self.topology.placement(ranks)
        gpus = [self.cluster.profile_of(rank) for rank in ranks]
        fabric = self.cluster.intra_node
        families = {self.constants.family(gpu, fabric) for gpu in gpus}
        family = max(families, key=lambda f: (f.base_us, f.name))
        link = fabric.bandwidth_gbps / 8 / fabric.oversubscription
        if fabric.topology == "mesh":
            link *= _mesh_share(place.max_per_node, max(len(node.ranks) for node in self.cluster.nodes))
        if family.is_pcie and fabric.efficiency is None and any(_is_staged(gpu) for gpu in gpus):
            link *= family.staged_share
        return Node(
            constants=self.constants,
            family=family,
            ranks=place.max_per_node,
            link_gbps=link,
            step_us=fabric.latency_us + family.host_step_us * max(0, place.max_per_node - 2),
            step_extra_us=max(0.0, fabric.latency_us - family.step_us),
            efficiency=fabric.efficiency,
            multicast=_multicast(gpus, fabric, family),
        )

    def _make_network(self, ranks: tuple[int, ...], leaves_rail: bool = False) -> Network:
        place, fabric = self.topology.placement(ranks), self.cluster.inter_node
        levels, over = _switch_levels(place, fabric, leaves_rail)
        return Network(
            fabric=fabric,
            placement=place,
            efficiency=fabric.efficiency or self.constants.network_efficiency[fabric.type],
            hop_us=fabric.latency_us + levels,
            oversubscription=over,
            gpus_per_nic_node=max(len(node.ranks) for node in self.cluster.nodes),
        )


def _mesh_share(ranks: int, gpus: int) -> float:
    """Share of a GPU's links that lead to other ranks of the communicator where links join pairs of GPUs."""
    if gpus == 8 and ranks > 1:
        return CUBE_MESH_LINKS[ranks - 2] / CUBE_MESH_LINKS[-1]
    return (ranks - 1) / (gpus - 1) if ranks > 1 else 1.0


def _is_staged(gpu: GpuProfile) -> bool:
    """GeForce cards since Turing do not reach each other over PCIe: NCCL copies through the host's memory."""
    return gpu.market == "consumer" and gpu.generation != "volta"


def _multicast(gpus: list[GpuProfile], fabric: Fabric, family: model_constants.Family) -> bool:
    """NVLS: an NVSwitch that reduces, and every GPU able to use it."""
    if not family.nvls_efficiency or not all(gpu.compute_capability >= (9, 0) for gpu in gpus):
        return False
    return fabric.topology in (None, "switch") if fabric.multicast is None else fabric.multicast


def _switch_levels(place: Placement, fabric: Fabric, leaves_rail: bool) -> tuple[float, float]:
    """Latency of the switch levels that a communicator crosses, and the worst oversubscription on the way.

    With rails, the first level joins the NICs of one rail only: what leaves the rail crosses its uplinks as well.
    """
    latency, over = 0.0, fabric.oversubscription
    for depth, level in enumerate(fabric.switches):
        latency += level.latency_us
        if len({node // level.nodes for node in place.nodes}) == 1 and not (leaves_rail and depth == 0):
            break
        over = max(over, level.oversubscription)
    return latency, over
