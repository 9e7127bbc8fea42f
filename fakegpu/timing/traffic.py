"""Who sends how many bytes to whom, to the byte, for one operation under one algorithm.

Slices of a count that the number of ranks does not divide are one element larger at the front. A rank's copy to
itself is no traffic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fakegpu.topology import Placement, ring_edges

if TYPE_CHECKING:
    from fakegpu.timing.model import Operation

Traffic = dict[tuple[int, int], int]


def of(operation: Operation, placement: Placement) -> Traffic:
    kind, block = operation.kind, operation.count * operation.element_bytes
    if kind in ("send", "put_signal"):
        return {(operation.src, operation.dst): block} if operation.src != operation.dst else {}
    ring, n = placement.ring, placement.nranks
    if n < 2 or not block or kind in ("barrier", "signal"):
        return {}
    match kind:
        case "all_reduce":
            return _ring_all_reduce(operation, ring)
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


def slices(count: int, parts: int) -> list[int]:
    """Elements of each part; the first count % parts parts hold one more."""
    share, more = divmod(count, parts)
    return [share + (i < more) for i in range(parts)]


def _ring_all_reduce(operation: Operation, ring: tuple[int, ...]) -> Traffic:
    """The edge out of position i carries every slice but i+1 while reducing, every slice but i+2 while gathering."""
    n = len(ring)
    part = slices(operation.count, n)
    return {
        edge: (2 * operation.count - part[(i + 1) % n] - part[(i + 2) % n]) * operation.element_bytes
        for i, edge in enumerate(ring_edges(ring))
    }


def _chain(ring: tuple[int, ...], root: int | None) -> list[tuple[int, int]]:
    """The ring's edges in order from the root on, without the one that returns to it."""
    start = ring.index(root)
    turned = ring[start:] + ring[:start]
    return list(zip(turned, turned[1:], strict=False))
