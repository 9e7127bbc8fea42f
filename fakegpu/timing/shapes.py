"""Arithmetic of the collectives that every part of the model shares: sizes, bus factors, ring steps."""

from __future__ import annotations

import attrs

POINT_TO_POINT = ("send", "put_signal", "signal")
PAIRWISE = ("all_to_all", "gather", "scatter")
# Blocks of `count` elements in the larger of a rank's two buffers are nranks for these, 1 for the others.
_MANY_BLOCKS = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})


def logical_payload_bytes(kind: str, nranks: int, count: int, element_bytes: int) -> int:
    """Size of an operation as nccl-tests counts it: the larger of one rank's two buffers, in bytes."""
    if kind in ("barrier", "signal"):
        return 0
    return count * element_bytes * (nranks if kind in _MANY_BLOCKS else 1)


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

    @property
    def size_bytes(self) -> int:
        """nccl-tests' size: the larger of one rank's two buffers."""
        return logical_payload_bytes(self.kind, len(self.ranks), self.count, self.element_bytes)


def steps(kind: str, nranks: int) -> int:
    """Ring steps one after the other."""
    return 2 * (nranks - 1) if kind in ("all_reduce", "barrier") else nranks - 1


def bus_factor(kind: str, nranks: int) -> float:
    """busbw = algbw x this (nccl-tests)."""
    if nranks < 2:
        return 1.0
    match kind:
        case "all_reduce":
            return 2 * (nranks - 1) / nranks
        case "all_gather" | "reduce_scatter" | "all_to_all" | "gather" | "scatter":
            return (nranks - 1) / nranks
        case _:
            return 1.0
