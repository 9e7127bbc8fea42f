"""Answers the question of ncclGroupSimulateEnd: how long would these operations take together on the cluster?

The request is what the interposer sends in a QUERY frame; ranks in it are ranks of the named communicator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fakegpu.dtypes import DType, Kind
from fakegpu.errors import ArgumentError
from fakegpu.timing import Operation, estimate_group

if TYPE_CHECKING:
    from fakegpu.recorder import Recorder


def simulate(recorder: Recorder, request: dict[str, Any]) -> dict[str, float]:
    """{"time_us": ...}; ArgumentError names the operation that cannot be modelled."""
    operations = request.get("operations")
    if not isinstance(operations, list):
        raise ArgumentError(f"simulate: operations: found {operations!r}, expected a list")
    found = []
    for index, item in enumerate(operations):
        try:
            operation = _operation(recorder, item)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ArgumentError(f"simulate: operations[{index}]: {type(error).__name__}: {error}") from error
        if operation is not None:
            found.append(operation)
    return {"time_us": round(estimate_group(recorder.model(), found), 3)}


def _operation(recorder: Recorder, item: dict[str, Any]) -> Operation | None:
    ranks = recorder.ranks_of(int(item["comm"]))
    kind, size = Kind(int(item["kind"])), DType(int(item["dtype"])).size
    rank, root, count = int(item["rank"]), int(item["root"]), int(item["count"])
    if count < 0:
        raise ValueError(f"count {count}, expected 0 or more")
    if kind is Kind.WAIT_SIGNAL:
        return None
    if kind in (Kind.SEND, Kind.RECV, Kind.PUT_SIGNAL, Kind.SIGNAL):
        here, peer = _rank(ranks, rank), _rank(ranks, root)
        src, dst = (peer, here) if kind is Kind.RECV else (here, peer)
        label = "send" if kind is Kind.RECV else kind.label
        return Operation(label, (src, dst), count, size, src=src, dst=dst)
    return Operation(kind.label, ranks, count, size, root=_rank(ranks, root) if root >= 0 else None)


def _rank(ranks: tuple[int, ...], index: int) -> int:
    if not 0 <= index < len(ranks):
        raise ValueError(f"rank {index}, expected 0 to {len(ranks) - 1}")
    return ranks[index]
