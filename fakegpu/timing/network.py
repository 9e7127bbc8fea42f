"""Times across nodes: rings, trees and NVLSTree over the nodes' NICs, and pairs of ranks.

The node's own links and its NICs work at the same time, so the slower of the two sets the bandwidth part; the
latency part adds hops. Costs of a hop are in units of the fabric's latency, calibrated on two-node tables.
"""

from __future__ import annotations

import math

import attrs

from fakegpu.cluster import Fabric
from fakegpu.timing.onenode import Candidate, Node
from fakegpu.timing.shapes import bus_factor, steps
from fakegpu.topology import Placement, tree_load

TREE_LINK_SHARE = 0.92  # NCCL: a tree reaches this share of a ring's bandwidth
NVLS_TREE_SHARE = 0.9
PAT_SHARE = 0.75
COLLNET_US = 30.0


@attrs.frozen
class Network:
    """What one communicator gets of the fabric between its nodes."""

    fabric: Fabric
    placement: Placement
    efficiency: float
    hop_us: float  # one-way latency between two of its nodes
    oversubscription: float
    gpus_per_nic_node: int  # GPUs of a node that share its NICs

    @property
    def nic_rate(self) -> float:
        """GB/s of payload that one NIC takes in one direction, oversubscription included."""
        return self.fabric.bandwidth_gbps / 8 * self.efficiency / self.oversubscription

    @property
    def node_rate(self) -> float:
        """GB/s of the NICs that a node's ranks of this communicator reach: those nearest to their GPUs."""
        part = min(1.0, self.placement.max_per_node / self.gpus_per_nic_node)
        return self.nic_rate * max(1.0, (self.fabric.nics or 1) * part)

    @property
    def pair_rate(self) -> float:
        """GB/s that one GPU reaches: its share of the NICs, at least one of them."""
        return self.nic_rate * max(1.0, (self.fabric.nics or 1) / self.gpus_per_nic_node)


def _finish(
    net: Network,
    algorithm: str,
    protocol: str,
    count: int,
    latency: float,
    bandwidth: float,
    inside: float,
    across: float,
) -> Candidate:
    """A candidate whose bandwidth part comes from `inside` or `across`, whichever takes longer."""
    longer = max(inside, across)
    shares = {"inside_share": inside / longer, "across_share": across / longer} if longer else {}
    total = latency + bandwidth
    if across < inside:
        return Candidate(algorithm, protocol, count, total, latency, bandwidth, **shares)
    relieved = max(inside, across / net.oversubscription) / across if across else 1.0
    penalty = bandwidth * (1 - relieved)
    return Candidate(algorithm, protocol, count, total, latency, bandwidth, "inter_node", penalty, **shares)


def candidates(node: Node, net: Network, kind: str, size: float) -> list[Candidate]:
    """Every algorithm and protocol for a collective of `size` bytes over several nodes."""
    found = [_ring(node, net, kind, size, protocol) for protocol in ("LL", "Simple")]
    if kind == "all_reduce":
        found += [_tree(node, net, size, protocol) for protocol in ("LL", "Simple")]
        if node.multicast:
            found.append(_nvls_tree(node, net, size))
        if net.fabric.sharp:
            found.append(_collnet(node, net, size))
    elif kind in ("all_gather", "reduce_scatter") and net.placement.max_per_node == 1:
        found.append(_pat(node, net, kind, size))
    return found


def _ring(node: Node, net: Network, kind: str, size: float, protocol: str) -> Candidate:
    place = net.placement
    count = steps(kind, place.nranks)
    hops = (2 if kind == "all_reduce" else 1) * (place.node_count - 1)
    traffic = size * bus_factor(kind, place.nranks) / 1e3
    inside = traffic / node.ring_rate if place.max_per_node > 1 else 0.0
    across = traffic / net.node_rate
    fill_hops = hops if kind == "all_reduce" else 2 * hops
    return _network_candidate(
        node, net, "ring", protocol, count, (count - hops, hops, fill_hops), size, inside, across
    )


def _tree(node: Node, net: Network, size: float, protocol: str) -> Candidate:
    place = net.placement
    depth = 2 * math.log2(place.node_count)
    chain = 2 * (place.max_per_node - 1)
    inside = 2 * size / 1e3 / (node.ring_rate * TREE_LINK_SHARE) if place.max_per_node > 1 else 0.0
    across = size / 1e3 * tree_load(place.node_count) / net.node_rate
    count = chain + round(depth)
    return _network_candidate(node, net, "tree", protocol, count, (chain, depth, depth), size, inside, across)


def _network_candidate(
    node: Node,
    net: Network,
    algorithm: str,
    protocol: str,
    count: int,
    hops: tuple[float, float, float],
    size: float,
    inside_us: float,
    across_us: float,
) -> Candidate:
    """`hops`: steps inside nodes, hops between nodes, and hops that a Simple pipeline fills."""
    shared, family = node.constants.shared, node.family
    inner, outer, filled = hops
    latency = family.base_us + inner * node.step_us + outer * net.hop_us
    if protocol == "LL":
        # Half of each line is flags, and what is in flight is bounded by the buffers: rate = in flight / latency.
        window = shared.net_ll_inflight_kb / max(net.hop_us, 1e-6)
        share = max(2 * max(inside_us, across_us), across_us * net.node_rate / window)
        latency += shared.net_plateau * net.hop_us * shared.plateau(size)
        bandwidth = share
    else:
        fill = shared.net_simple * net.hop_us * max(1.0, filled / 2) ** shared.net_simple_exponent
        latency += fill + family.simple_us * max(1.0, inner) ** shared.simple_step_exponent
        bandwidth = max(inside_us, across_us)
    return _finish(net, algorithm, protocol, count, latency, bandwidth, inside_us, across_us)


def _nvls_tree(node: Node, net: Network, size: float) -> Candidate:
    """The switch reduces within a node, a tree carries the sums between nodes."""
    shared, place = node.constants.shared, net.placement
    depth = 2 * math.log2(place.node_count)
    inside = size * bus_factor("all_reduce", place.max_per_node) / 1e3 / (node.nvls_rate * NVLS_TREE_SHARE)
    across = size / 1e3 * tree_load(place.node_count) / net.node_rate
    fill = shared.net_simple * net.hop_us * max(1.0, depth / 2) ** shared.net_simple_exponent
    latency = node.family.base_us + shared.nvls_latency_us + depth * net.hop_us + fill
    return _finish(net, "nvlstree", "Simple", 2 + round(depth), latency, max(inside, across), inside, across)


def _collnet(node: Node, net: Network, size: float) -> Candidate:
    """The network's switches reduce: each node sends its data once and gets the result once."""
    place = net.placement
    inside = 2 * size / 1e3 / node.ring_rate if place.max_per_node > 1 else 0.0
    across = size / 1e3 / net.node_rate
    latency = node.family.base_us + COLLNET_US + 2 * net.hop_us + 2 * (place.max_per_node - 1) * node.step_us
    return _finish(net, "collnet", "Simple", 2, latency, max(inside, across), inside, across)


def _pat(node: Node, net: Network, kind: str, size: float) -> Candidate:
    """Parallel aggregated trees, one rank per node: log2(n) hops."""
    n = net.placement.nranks
    hops = math.ceil(math.log2(n))
    latency = node.family.base_us + hops * net.hop_us + node.constants.shared.net_simple * net.hop_us
    across = size * bus_factor(kind, n) / 1e3 / (net.node_rate * PAT_SHARE)
    return _finish(net, "pat", "Simple", hops, latency, across, 0.0, across)


def all_to_all(node: Node, net: Network, size: float) -> Candidate:
    """All blocks for other nodes leave through the node's NICs; the rest stays on its links."""
    place = net.placement
    per_node, n = place.max_per_node, place.nranks
    block = size / n / 1e3
    across = block * (n - per_node) * per_node / net.node_rate
    inside = block * (per_node - 1) / node.pair_rate
    return _pairwise(node, net, n - 1, inside, across)


def rooted(node: Node, net: Network, size: float) -> Candidate:
    """Gather and scatter: the root's GPU sends or receives every block that is not its own."""
    place = net.placement
    block = size / place.nranks / 1e3
    across = block * (place.nranks - place.max_per_node) / net.pair_rate
    inside = block * (place.max_per_node - 1) / node.pair_rate
    return _pairwise(node, net, place.nranks - 1, inside, across)


def pair(node: Node, net: Network, size: float) -> Candidate:
    return _pairwise(node, net, 1, 0.0, size / 1e3 / net.pair_rate)


def _pairwise(node: Node, net: Network, peers: int, inside: float, across: float) -> Candidate:
    family = node.family
    moved = max(inside, across)
    latency = family.pair_base_us + family.pair_peer_us * peers + net.hop_us
    bandwidth = moved + family.pair_fill * math.sqrt(moved)
    return _finish(net, "p2p", "Simple", 1, latency, bandwidth, inside, across)
