"""Collectives in plain numpy: what every rank must hold afterwards. Shares no code with fakegpu.

Reductions go in rank order. 16-bit floats are summed in float32 and rounded once; bfloat16 arrays are uint16 bits.
Averages of floats multiply each element by 1/n rounded to the type; averages of integers wrap, then truncate.
"""

from __future__ import annotations

import numpy as np


def widen(bits: np.ndarray, name: str) -> np.ndarray:
    """The type sums are kept in."""
    if name == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.astype(np.float32) if name == "float16" else bits


def narrow(wide: np.ndarray, name: str) -> np.ndarray:
    """Round once to the element type, to nearest even."""
    if name == "bfloat16":
        raw = wide.astype(np.float32).view(np.uint32)
        return ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(np.uint16)
    return wide.astype(np.float16) if name == "float16" else wide


def reduction(arrays: list[np.ndarray], op: str, name: str) -> np.ndarray:
    """The reduction of all ranks' arrays; finite inputs only."""
    n = len(arrays)
    floating = "float" in name
    wide = [widen(a, name) for a in arrays]
    if op == "avg" and floating:
        factor = widen(narrow(np.array([1 / n], np.float32 if name != "float64" else np.float64), name), name)
        wide = [w * factor for w in wide]
    steps = {"sum": np.add, "avg": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
    total = wide[0].copy()
    with np.errstate(over="ignore"):
        for other in wide[1:]:
            total = steps[op](total, other).astype(total.dtype)
    if op == "avg" and not floating:
        total = np.array([int(abs(int(t)) // n) * (1 if t >= 0 else -1) for t in total.ravel()], total.dtype)
    return narrow(total, name)


def outputs(kind: str, inputs: list[np.ndarray], root: int, op: str, name: str) -> list[np.ndarray | None]:
    """Rank r's output, flat; None where the rank has none. inputs: every rank's flat input."""
    n = len(inputs)
    blocks = [np.split(a, n) if len(a) % n == 0 else None for a in inputs]
    nobody = [None] * n
    if kind == "all_reduce":
        return [reduction(inputs, op, name)] * n
    if kind == "reduce":
        return [reduction(inputs, op, name) if r == root else None for r in range(n)]
    if kind == "reduce_scatter":
        return list(np.split(reduction(inputs, op, name), n))
    if kind == "broadcast":
        return [inputs[root]] * n
    if kind == "all_gather":
        return [np.concatenate(inputs)] * n
    if kind == "gather":
        return [np.concatenate(inputs) if r == root else None for r in range(n)]
    if kind == "scatter":
        return list(blocks[root])
    if kind == "all_to_all":
        return [np.concatenate([blocks[s][r] for s in range(n)]) for r in range(n)]
    return nobody
