"""Times within one node: NCCL's constants choose algorithm and protocol, calibrated curves say how long they take.

Choosing with the calibrated times instead would smooth out the jumps that real tables show where NCCL switches
too early or too late.
"""

from __future__ import annotations

import math

import attrs

from fakegpu.timing.constants import Constants, Family
from fakegpu.timing.shapes import bus_factor, steps

PROTOCOLS = ("LL", "LL128", "Simple")


@attrs.frozen
class Candidate:
    """One algorithm and protocol: what NCCL expects of it, and what it takes."""

    algorithm: str
    protocol: str
    steps: int
    expected_us: float
    latency_us: float
    bandwidth_us: float
    scope: str = "intra_node"  # of the link that sets the bandwidth part
    contention_us: float = 0.0  # part of bandwidth_us that oversubscription between nodes costs
    inside_share: float = 1.0  # of bandwidth_us, that the links within a node are busy for
    across_share: float = 0.0  # of bandwidth_us, that the NICs are busy for

    @property
    def time_us(self) -> float:
        return self.latency_us + self.bandwidth_us


@attrs.frozen
class Node:
    """The links of one GPU as one communicator sees them."""

    constants: Constants
    family: Family
    ranks: int
    link_gbps: float  # nominal, GB/s, one direction
    step_us: float  # one LL step
    step_extra_us: float  # what the cluster file's latency exceeds the family's step by
    efficiency: float | None  # of the cluster file
    multicast: bool

    def rate(self, share: float, host_us_per_kb: float) -> float:
        """GB/s of the link at an efficiency, with the host's bridges in series beyond two GPUs."""
        return 1 / (1 / (self.link_gbps * share) + max(0, self.ranks - 2) * host_us_per_kb)

    @property
    def ring_rate(self) -> float:
        return self.rate(self.efficiency or self.family.link_efficiency, self.family.host_ring_us_per_kb)

    @property
    def ll_rate(self) -> float:
        family = self.family
        if family.is_pcie:
            return self.rate(family.ll_efficiency, family.host_ll_us_per_kb)
        return min(family.ll_gbps, 0.7 * self.ring_rate)

    @property
    def pair_rate(self) -> float:
        family = self.family
        share = family.pair_link_efficiency or family.link_efficiency
        return self.rate(self.efficiency or share, family.host_pair_us_per_kb) * family.pair_efficiency

    @property
    def nvls_rate(self) -> float:
        return self.link_gbps * (self.family.nvls_efficiency if self.efficiency is None else 1.26 * self.efficiency)


def candidates(node: Node, kind: str, size: float) -> list[Candidate]:
    """Every algorithm and protocol that the node offers for a collective of `size` bytes."""
    protocols = [p for p in PROTOCOLS if p != "LL128" or not node.family.is_pcie]
    found = [_ring(node, kind, size, protocol) for protocol in protocols]
    if kind == "all_reduce":
        found += [_tree(node, size, protocol) for protocol in protocols]
        if node.multicast:
            found.append(_nvls(node, size))
    return found


def _ring(node: Node, kind: str, size: float, protocol: str) -> Candidate:
    n, shared, family = node.ranks, node.constants.shared, node.family
    count = steps(kind, n)
    traffic = size * bus_factor(kind, n) / 1e3
    plateau = family.plateau_us * (n - 1) ** shared.plateau_exponent
    if kind == "reduce_scatter":
        plateau *= shared.plateau_reduce_scatter
    copied = traffic / node.ring_rate * (n + shared.copy(kind)) / n
    if protocol == "LL":
        # Early steps of a long ring hide the transfer of later ones, until the transfer takes longer.
        hidden = shared.ll_overlap * count * node.step_us
        moved = traffic / node.ll_rate * (n + shared.copy(kind)) / n
        latency = family.base_us + count * node.step_us + plateau * shared.plateau(size)
        bandwidth = math.hypot(hidden, moved) - hidden
    elif protocol == "LL128":
        latency = family.base_us + count * node.step_us * shared.ll128_step_ratio + plateau
        bandwidth = copied / shared.ll128_efficiency
    else:
        extra = count * node.step_extra_us
        latency = family.base_us + family.simple_us * count**shared.simple_step_exponent + extra
        bandwidth = copied + shared.simple_fill * count**shared.simple_fill_exponent * copied**shared.simple_fill_power
    expected = _expected(node, "ring", count, traffic, protocol)
    return Candidate("ring", protocol, count, expected, latency, bandwidth)


def _tree(node: Node, size: float, protocol: str) -> Candidate:
    """On one node NCCL's tree is a chain: the ring's steps, both directions over each link."""
    ring = _ring(node, "all_reduce", size, protocol)
    traffic = 2 * size / 1e3 / 0.92
    factor = traffic / (size * bus_factor("all_reduce", node.ranks) / 1e3) if size else 1.0
    expected = _expected(node, "tree", ring.steps, traffic, protocol)
    return Candidate("tree", protocol, ring.steps, expected, ring.latency_us, ring.bandwidth_us * factor)


def _nvls(node: Node, size: float) -> Candidate:
    shared = node.constants.shared
    moved = size * bus_factor("all_reduce", node.ranks) / 1e3 / node.nvls_rate
    latency = node.family.base_us + shared.nvls_latency_us
    bandwidth = moved + shared.nvls_fill * math.sqrt(moved)
    nominal = node.family.choice.nvls * node.link_gbps
    expected = node.constants.nccl.nvls_latency_us + size / 1e3 / nominal
    return Candidate("nvls", "Simple", 2, expected, latency, bandwidth)


def _expected(node: Node, algorithm: str, count: int, traffic: float, protocol: str) -> float:
    """NCCL's uncalibrated time, microseconds."""
    nccl, choice, index = node.constants.nccl, node.family.choice, PROTOCOLS.index(protocol)
    if node.family.is_pcie:
        step, rate = nccl.step_pcie, choice.ll_share * node.ll_rate
        ll_rate, ll128_rate = rate * 0.5, 0.0
    else:
        step, rate = nccl.step_nvlink, node.link_gbps * choice.link_gbps / choice.nominal_link_gbps
        ll_rate = min(choice.ll_cap_gbps, rate * 0.5)
        ll128_rate = min(rate * nccl.ll128_efficiency, choice.channels * choice.ll128_channel_gbps)
    bandwidth = (ll_rate, ll128_rate, rate)[index]
    return nccl.base[algorithm][index] + count * step[algorithm][index] + traffic / bandwidth


def all_to_all(node: Node, size: float) -> Candidate:
    """Every GPU with every other at once; `size` is one rank's whole buffer."""
    n, shared, family = node.ranks, node.constants.shared, node.family
    moved = size * (n - 1) / n / 1e3 / node.pair_rate * (n + shared.copy_all_to_all) / n
    return _pairwise(node, size, n - 1, moved)


def rooted(node: Node, size: float) -> Candidate:
    """Gather and scatter: the root's link carries all blocks but its own."""
    n = node.ranks
    return _pairwise(node, size, n - 1, size * (n - 1) / n / 1e3 / node.pair_rate)


def pair(node: Node, size: float) -> Candidate:
    """One send and its receive."""
    return _pairwise(node, size, 1, size / 1e3 / node.pair_rate)


def _pairwise(node: Node, size: float, peers: int, moved: float) -> Candidate:
    shared, family = node.constants.shared, node.family
    share = size / (size + shared.pair_half_bytes)
    extra = node.step_extra_us
    latency = family.pair_base_us + family.pair_peer_us * peers + family.pair_plateau_us * share + extra
    bandwidth = moved + family.pair_fill * math.sqrt(moved * family.pair_efficiency)
    return Candidate("p2p", "Simple", 1, latency + bandwidth, latency, bandwidth)
