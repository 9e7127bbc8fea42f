"""Kinds of operation, element types and reductions: numbers, names and sizes, and how numpy sees them.

Layer 0. The numbers repeat fg_wire.h and the block rules repeat fg_core.h (tests compare both). numpy has no
bfloat16 and no 8-bit float: arrays of those are views of raw bits, uint16 for bfloat16 and uint8 for the fp8
types, so a caller names the DType with such an array (`dtype=DType.BFLOAT16`). numpy is imported on first use only:
the coordinator does not need it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from fakegpu.errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np


class _Named(IntEnum):
    @property
    def label(self) -> str:
        """The name as texts and reports print it, for example "all_reduce"."""
        return self.name.lower()

    @classmethod
    def parse(cls, value: int | str | _Named):
        """A member from a member, its number or its label."""
        try:
            return cls[value.upper()] if isinstance(value, str) else cls(value)
        except (KeyError, ValueError):
            names = ", ".join(member.label for member in cls)
            raise ArgumentError(f"{cls.__name__} {value!r}: expected one of {names}") from None


class Kind(_Named):
    """What an operation is."""

    ALL_REDUCE = 0
    REDUCE = 1
    BROADCAST = 2
    ALL_GATHER = 3
    REDUCE_SCATTER = 4
    ALL_TO_ALL = 5
    GATHER = 6
    SCATTER = 7
    SEND = 8
    RECV = 9
    BARRIER = 10
    PUT_SIGNAL = 11
    SIGNAL = 12
    WAIT_SIGNAL = 13


class DType(_Named):
    """Element types, ncclDataType_t's numbers."""

    INT8 = 0
    UINT8 = 1
    INT32 = 2
    UINT32 = 3
    INT64 = 4
    UINT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT8_E4M3 = 10
    FLOAT8_E5M2 = 11

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return SIZES[self]

    @property
    def numpy(self) -> np.dtype:
        """The numpy type that holds it: its own, or raw bits (uint16, uint8) where numpy has none."""
        import numpy

        return numpy.dtype(_NUMPY[self])


class ReduceOp(_Named):
    """Reductions, ncclRedOp_t's numbers."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4
    PREMULSUM = 5


SIZES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)  # indexed by DType

_NUMPY = ("i1", "u1", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "<u2", "u1", "u1")  # by DType
_FROM_NUMPY = {"|i1": 0, "|u1": 1, "<i4": 2, "<u4": 3, "<i8": 4, "<u8": 5, "<f2": 6, "<f4": 7, "<f8": 8}

# labels by number, for hot paths
KIND_LABELS = tuple(kind.label for kind in Kind)
DTYPE_LABELS = tuple(dtype.label for dtype in DType)
REDOP_LABELS = tuple(op.label for op in ReduceOp)

ROOTED = frozenset((Kind.REDUCE, Kind.BROADCAST, Kind.GATHER, Kind.SCATTER))
REDUCING = frozenset((Kind.ALL_REDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER))
POINT_TO_POINT = frozenset((Kind.SEND, Kind.RECV))
ONE_SIDED = frozenset((Kind.PUT_SIGNAL, Kind.SIGNAL, Kind.WAIT_SIGNAL))
COLLECTIVES = frozenset(Kind) - POINT_TO_POINT - ONE_SIDED


def dtype_of(array: np.ndarray) -> DType:
    """The DType of a numpy array; types that numpy only holds as raw bits must be named by the caller."""
    found = _FROM_NUMPY.get(array.dtype.str)
    if found is None:
        names = ", ".join(d.label for d in DType)
        raise ArgumentError(f"numpy dtype {array.dtype}: expected one that holds {names}")
    return DType(found)


def in_blocks(kind: int, nranks: int) -> int:
    """Blocks of `count` elements in a rank's input (for broadcast and scatter: the root's)."""
    if kind in (Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL, Kind.SCATTER):
        return nranks
    return 0 if kind in (Kind.RECV, Kind.BARRIER, Kind.SIGNAL, Kind.WAIT_SIGNAL) else 1


def out_blocks(kind: int, nranks: int) -> int:
    """Blocks of `count` elements in a rank's output (for reduce and gather: the root's)."""
    if kind in (Kind.ALL_GATHER, Kind.ALL_TO_ALL, Kind.GATHER):
        return nranks
    return 0 if kind in (Kind.SEND, Kind.BARRIER, Kind.PUT_SIGNAL, Kind.SIGNAL, Kind.WAIT_SIGNAL) else 1
