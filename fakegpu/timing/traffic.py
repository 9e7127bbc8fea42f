"""Who sends how many bytes to whom, to the byte, for one operation under one algorithm.

Slices of a count that the number of ranks does not divide are one element larger at the front. A rank's copy to
itself is no traffic. Where NCCL spreads an edge over several GPUs of a node, the node's first rank stands for them.
"""

from __future__ import annotations

from collections import defaultdict

import attrs

from fakegpu.timing.shapes import Operation
from fakegpu.topology import Placement, double_tree, ring_edges

Traffic = dict[tuple[int, int], int]


def of(operation: Operation, placement: Placement, algorithm: str = "ring") -> Traffic:
    kind, block = operation.kind, operation.count * operation.element_bytes
    if kind in ("send", "put_signal"):
        return {(operation.src, operation.dst): block} if operation.src != operation.dst else {}
    ring, n = placement.ring, placement.nranks
    if n < 2 or not block or kind in ("barrier", "signal"):
        return {}
    match kind:
        case "all_reduce":
            return _ALL_REDUCE[algorithm](operation, placement)
        case "all_gather" | "reduce_scatter" if algorithm == "pat":
            return _doubling(ring, block, forward=kind == "all_gather")
        case "all_gather" | "reduce_scatter":
            return {edge: (n - 1) * block for edge in ring_edges(ring)}
        case "broadcast":
            return {edge: block for edge in _chain(ring, operation.root)}
        case "reduce":
            return {(dst, src): block for src, dst in _chain(ring, operation.root)}
        case "all_to_all":
            return {(a, b): block for a in ring for b in ring if a != b}
        case "gather":
            return {(rank, operation.root): block for rank in ring if rank != operation.root}
        case "scatter":
            return {(operation.root, rank): block for rank in ring if rank != operation.root}
    raise ValueError(f"kind: found {kind!r}, expected an operation that the model knows")


def unit(operation: Operation) -> tuple[Operation, int]:
    """The smallest operation with this one's pattern, and what its bytes are multiplied by to get this one's.

    Only the slices of an all-reduce depend on the count itself; everything else moves whole blocks.
    """
    if operation.kind == "all_reduce":
        return attrs.evolve(operation, element_bytes=1), operation.element_bytes if operation.count else 0
    return attrs.evolve(operation, count=1, element_bytes=1), operation.count * operation.element_bytes


def slices(count: int, parts: int) -> list[int]:
    """Elements of each part; the first count % parts parts hold one more."""
    share, more = divmod(count, parts)
    return [share + (i < more) for i in range(parts)]


def members(placement: Placement) -> list[tuple[int, ...]]:
    """The ranks of each node, in ring order."""
    groups, start = [], 0
    for size in placement.ranks_per_node:
        groups.append(placement.ring[start : start + size])
        start += size
    return groups


def _ring_all_reduce(operation: Operation, placement: Placement) -> Traffic:
    """The edge out of position i carries every slice but i+1 while reducing, every slice but i+2 while gathering."""
    ring = placement.ring
    n = len(ring)
    part = slices(operation.count, n)
    return {
        edge: (2 * operation.count - part[(i + 1) % n] - part[(i + 2) % n]) * operation.element_bytes
        for i, edge in enumerate(ring_edges(ring))
    }


def _tree_all_reduce(operation: Operation, placement: Placement) -> Traffic:
    """A chain inside each node, two trees with half of the elements each between the nodes' first ranks."""
    block = operation.count * operation.element_bytes
    found: Traffic = defaultdict(int)
    for group in members(placement):
        for a, b in zip(group, group[1:], strict=False):
            found[a, b] += block
            found[b, a] += block
    _between_nodes(found, operation, placement)
    return dict(found)


def _nvls_all_reduce(operation: Operation, placement: Placement) -> Traffic:
    """Each rank of a node gets its slice from every other one and gives the sum back to every other one."""
    found: Traffic = defaultdict(int)
    for group in members(placement):
        part = slices(operation.count, len(group))
        for i, src in enumerate(group):
            for j, dst in enumerate(group):
                if i != j:
                    found[src, dst] += (part[i] + part[j]) * operation.element_bytes
    _between_nodes(found, operation, placement)
    return {edge: size for edge, size in found.items() if size}


def _collnet_all_reduce(operation: Operation, placement: Placement) -> Traffic:
    """A chain inside each node; the switches' exchange is shown as a ring that carries the payload once."""
    block = operation.count * operation.element_bytes
    alone = Placement(placement.ring, placement.nodes[:1], placement.ranks_per_node)
    found = defaultdict(int, _tree_all_reduce(operation, alone))
    for edge in ring_edges([group[0] for group in members(placement)]):
        found[edge] += block
    return dict(found)


def _between_nodes(found: Traffic, operation: Operation, placement: Placement) -> None:
    heads = [group[0] for group in members(placement)]
    if placement.node_count < 2:
        return
    for half, tree in zip(slices(operation.count, 2), double_tree(len(heads)), strict=True):
        for child, parent in tree:
            if half:
                found[heads[child], heads[parent]] += half * operation.element_bytes
                found[heads[parent], heads[child]] += half * operation.element_bytes


def _doubling(ring: tuple[int, ...], block: int, forward: bool) -> Traffic:
    """PAT: in step k each rank passes min(2^k, n - 2^k) blocks 2^k places on."""
    n, found, distance = len(ring), defaultdict(int), 1
    while distance < n:
        for i, rank in enumerate(ring):
            peer = ring[(i + distance) % n]
            found[(rank, peer) if forward else (peer, rank)] += min(distance, n - distance) * block
        distance *= 2
    return dict(found)


def _chain(ring: tuple[int, ...], root: int | None) -> list[tuple[int, int]]:
    """The ring's edges in order from the root on, without the one that returns to it."""
    start = ring.index(root)
    turned = ring[start:] + ring[:start]
    return list(zip(turned, turned[1:], strict=False))


_ALL_REDUCE = {
    "ring": _ring_all_reduce,
    "tree": _tree_all_reduce,
    "nvls": _nvls_all_reduce,
    "nvlstree": _nvls_all_reduce,
    "collnet": _collnet_all_reduce,
}
