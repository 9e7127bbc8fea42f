"""Texts about operations: one submission, submissions grouped by what they are, rank lists, circular waits.

Pure functions on wire records and ranks, used by communicator.py and membership.py when something went wrong, never
on the way of an operation that works. Layer 3.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from fakegpu.dtypes import ONE_SIDED, POINT_TO_POINT, REDUCING, ROOTED, DType, Kind, ReduceOp

_MAX_GROUPS = 8  # distinct submissions printed in full


def rank_list(ranks: Iterable[int]) -> str:
    """ "rank 3" or "ranks 0-2,5"."""
    ordered = sorted(ranks)
    spans: list[list[int]] = []
    for rank in ordered:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    return f"rank {text}" if len(ordered) == 1 else f"ranks {text}"


def operation_name(op) -> str:
    """ "all_reduce #3", "send #0 to rank 1"."""
    kind = Kind(op.kind)
    if kind in ONE_SIDED:
        where = "from" if kind is Kind.WAIT_SIGNAL else "to"
        return f"{kind.label} {where} rank {op.root} (index {op.scalar & 0xFFFFFFFF}, context {op.scalar >> 32})"
    name = f"{kind.label} #{op.seq}"
    if kind in POINT_TO_POINT:
        name += f" {'to' if kind is Kind.SEND else 'from'} rank {op.root}"
    return name


def operation_text(op) -> str:
    """One submission in full: "all_reduce #3 float32 count 409600 sum"."""
    kind = Kind(op.kind)
    if kind in (Kind.BARRIER, Kind.SIGNAL):
        return operation_name(op)
    if kind is Kind.WAIT_SIGNAL:
        return f"{operation_name(op)} for {op.peer_offset} signals"
    text = f"{operation_name(op)} {DType(op.dtype).label} count {op.count}"
    if kind in REDUCING:
        text += f" {ReduceOp(op.redop).label}"
    if kind in ROOTED:
        text += f" root {op.root}"
    return text


def grouped_submissions(ops: Mapping[int, object]) -> str:
    """ "rank 0: all_reduce #3 float32 count 409600 sum; ranks 1-3: all_gather #3 ..."."""
    groups: dict[str, list[int]] = {}
    for rank, op in ops.items():
        groups.setdefault(operation_text(op), []).append(rank)
    shown = [f"{rank_list(ranks)}: {text}" for text, ranks in list(groups.items())[:_MAX_GROUPS]]
    if len(groups) > _MAX_GROUPS:
        shown.append(f"and {len(groups) - _MAX_GROUPS} more")
    return "; ".join(shown)


def find_cycle(edges: Mapping[Hashable, Iterable[Hashable]]) -> list | None:
    """A circle of the graph as [a, b, ..., a], or None; iterative, each node visited once."""
    finished: set = set()
    for start in edges:
        path: list = []
        on_path: dict = {}
        stack = [(start, iter(edges.get(start, ())))] if start not in finished else []
        while stack:
            node, children = stack[-1]
            if node not in on_path:
                on_path[node] = len(path)
                path.append(node)
            child = next((c for c in children if c not in finished), None)
            if child is None:
                stack.pop()
                path.pop()
                del on_path[node]
                finished.add(node)
            elif child in on_path:
                return [*path[on_path[child] :], child]
            else:
                stack.append((child, iter(edges.get(child, ()))))
    return None
