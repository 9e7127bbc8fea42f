"""The graph a communicator sees: rings and trees over its ranks, node by node. Pure: no bytes, no time.

NCCL orders a ring so that it enters and leaves each node once; so does `ring_order`. Used by timing and its traffic.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import attrs

from fakegpu.cluster import ClusterSpec


@attrs.frozen
class Placement:
    """How the ranks of one communicator lie on the nodes."""

    ring: tuple[int, ...]  # global ranks, those of one node side by side
    nodes: tuple[int, ...]  # node indices used, in ring order
    ranks_per_node: tuple[int, ...]  # beside `nodes`

    @property
    def nranks(self) -> int:
        return len(self.ring)

    @property
    def node_count(self) -> int:
        return len(self.nodes)

    @property
    def max_per_node(self) -> int:
        return max(self.ranks_per_node)


class Topology:
    """Answers questions about one cluster."""

    def __init__(self, cluster: ClusterSpec) -> None:
        self.cluster = cluster
        self.placement = functools.lru_cache(maxsize=1024)(self._placement)

    def _placement(self, ranks: tuple[int, ...]) -> Placement:
        by_node: dict[int, list[int]] = {}
        for rank in ranks:
            by_node.setdefault(self.cluster.node_index(rank), []).append(rank)
        ring = tuple(rank for members in by_node.values() for rank in members)
        return Placement(ring, tuple(by_node), tuple(len(members) for members in by_node.values()))

    def place_in_node(self, rank: int) -> int:
        """The rank's position among those of its node, which its GPU and its NIC share."""
        ranks = self.cluster.nodes[self.cluster.node_index(rank)].ranks
        return ranks.index(rank) if rank in ranks else 0

    def same_node(self, a: int, b: int) -> bool:
        return self.cluster.node_index(a) == self.cluster.node_index(b)


def ring_edges(ring: Sequence[int]) -> list[tuple[int, int]]:
    """Directed edges of the ring; none for a single rank."""
    n = len(ring)
    return [(ring[i], ring[(i + 1) % n]) for i in range(n)] if n > 1 else []


@functools.cache
def double_tree(nodes: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """NCCL's two binary trees over node positions, as edges (child, parent); one's leaves are inner in the other."""
    first = tuple(_btree_edges(nodes))
    if nodes % 2:
        second = tuple(((child + 1) % nodes, (parent + 1) % nodes) for child, parent in first)
    else:
        second = tuple((nodes - 1 - child, nodes - 1 - parent) for child, parent in first)
    return first, second


def _btree_edges(nodes: int) -> list[tuple[int, int]]:
    """Binary tree in bit order: position 0 is the root, a position's parent flips its lowest set bit upwards."""
    edges = []
    for position in range(1, nodes):
        bit = position & -position
        parent = (position ^ bit) | (bit << 1)
        edges.append((position, parent if parent < nodes else position ^ bit))
    return edges


@functools.cache
def tree_load(nodes: int) -> float:
    """Largest load of a node in one direction during a double-tree all-reduce, in units of the payload."""
    out = [0.0] * nodes
    into = [0.0] * nodes
    for tree in double_tree(nodes):
        for child, parent in tree:
            for sender, receiver in ((child, parent), (parent, child)):
                out[sender] += 0.5
                into[receiver] += 0.5
    return max(out + into)
