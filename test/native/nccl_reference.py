"""What each collective has to leave in every rank's output buffer, from its definition; shares nothing with fakegpu.

Values are codes (unsigned or signed integers holding a dtype's bits); the arithmetic comes from
test/core/reference_arithmetic.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "core"))
from reference_arithmetic import CODE_TYPES, DTYPES, OPS, reduce  # noqa: E402

__all__ = ["CODE_TYPES", "DTYPES", "IN_BLOCKS", "KINDS", "OPS", "OUT_BLOCKS", "expected"]

KINDS = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
IN_BLOCKS = {"reduce_scatter", "all_to_all", "scatter"}  # inputs of nranks blocks
OUT_BLOCKS = {"all_gather", "all_to_all", "gather"}  # outputs of nranks blocks


def expected(kind: str, data: list[np.ndarray], dtype: int, op: int, root: int, count: int, scalars=None) -> list:
    """Each rank's output; None: that rank's output buffer is not written."""
    n = len(data)

    def block(array: np.ndarray, i: int) -> np.ndarray:
        return array[i * count : (i + 1) * count]

    if kind == "all_reduce":
        return [reduce(dtype, op, data, scalars)] * n
    if kind == "reduce":
        return [reduce(dtype, op, data, scalars) if r == root else None for r in range(n)]
    if kind == "reduce_scatter":
        return [reduce(dtype, op, [block(d, r) for d in data], scalars) for r in range(n)]
    if kind == "broadcast":
        return [data[root]] * n
    if kind == "all_gather":
        return [np.concatenate(data)] * n
    if kind == "gather":
        return [np.concatenate(data) if r == root else None for r in range(n)]
    if kind == "scatter":
        return [block(data[root], r) for r in range(n)]
    return [np.concatenate([block(d, r) for d in data]) for r in range(n)]
