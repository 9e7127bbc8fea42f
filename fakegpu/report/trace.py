"""The timeline as Chrome/Perfetto trace JSON: per rank one measured and one modelled track per communicator.

pid is the rank, tid the communicator (even: measured, odd: modelled); argument names follow the torch profiler's.
Built from the document alone, so that a stored report can be turned into a trace. Viewers choke on millions of
events, so only the newest operations that fit into MAX_EVENTS are shown; the file says how many were left out.
"""

from __future__ import annotations

import json
from typing import Any

from fakegpu.report.text import describe

MAX_EVENTS = 150_000
MAX_LISTED_RANKS = 16  # a larger group's ranks are given as text: 0-511
_EVENTS_PER_RANK = 3


def render(document: dict[str, Any]) -> str:
    entries = _newest(document["operation_timeline"]["entries"])
    names = {row["comm_id"]: row["name"] for row in document.get("communicators", [])}
    origin = min((entry.get("start_us", 0.0) for entry in entries), default=0.0)
    events: list[dict[str, Any]] = []
    tracks: set[tuple[int, int]] = set()
    for entry in entries:
        arguments = _arguments(entry, names)
        for rank in entry["ranks"]:
            tracks.add((rank, entry["comm_id"]))
            events += _operation(entry, rank, origin, arguments)
    events = _metadata(document, tracks, names) + events
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events, "otherData": _other(document, len(entries))})


def _newest(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    room = MAX_EVENTS
    for index in range(len(entries) - 1, -1, -1):
        room -= _EVENTS_PER_RANK * len(entries[index]["ranks"])
        if room < 0:
            return entries[index + 1 :]
    return entries


def _operation(entry: dict[str, Any], rank: int, origin: float, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """The wait for the last rank, the measured execution and the modelled time, each a complete event."""
    start = entry.get("start_us", 0.0) - origin
    wait, execution = entry["rendezvous_wait_us"], entry["execution_time_us"]
    track = entry["comm_id"] * 2
    name = entry["operation"]
    found = []
    if wait > 0:
        found.append(_event(f"wait: {name}", "rendezvous", rank, track, start, wait, {"Collective name": name}))
    found.append(_event(name, "measured", rank, track, start + wait, execution, arguments))
    brief = {"Collective name": name, "Modelled algorithm": entry.get("modeled_algorithm", "")}
    found.append(_event(name, "modelled", rank, track + 1, start + wait, entry["modeled_time_us"], brief))
    return found


def _event(name: str, category: str, rank: int, track: int, start: float, duration: float, arguments: dict) -> dict:
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": round(start, 3),
        "dur": round(max(duration, 0.001), 3),
        "pid": rank,
        "tid": track,
        "args": arguments,
    }


def _arguments(entry: dict[str, Any], names: dict[int, str]) -> dict[str, Any]:
    size = entry["logical_payload_bytes"]
    count, nranks = entry.get("count", 0), len(entry["ranks"])
    out_blocks = nranks if entry["operation"] in ("all_gather", "all_to_all", "gather") else 1
    in_blocks = nranks if entry["operation"] in ("reduce_scatter", "all_to_all", "scatter") else 1
    return {
        "Collective name": entry["operation"],
        "In msg nelems": count * in_blocks,
        "Out msg nelems": count * out_blocks,
        "dtype": entry["data_type"],
        "Group size": nranks,
        "Process Group Name": names.get(entry["comm_id"], str(entry["comm_id"])),
        "Process Group Ranks": entry["ranks"] if nranks <= MAX_LISTED_RANKS else describe(entry["ranks"]),
        "Seq": entry["seqno"],
        "Reduction": entry["reduce_op"],
        "Payload bytes": size,
        "Transport": entry["buffer_transport"],
        "Modelled algorithm": entry.get("modeled_algorithm", ""),
        "Modelled protocol": entry.get("modeled_protocol", ""),
        "Modelled us": entry["modeled_time_us"],
    }


def _metadata(document: dict[str, Any], tracks: set[tuple[int, int]], names: dict[int, str]) -> list[dict[str, Any]]:
    found = []
    nodes = {row["rank"]: row["node"] for row in document["ranks"]}
    for rank in sorted({rank for rank, _ in tracks}):
        found.append(_meta("process_name", rank, 0, {"name": f"rank {rank} ({nodes.get(rank, '?')})"}))
        found.append(_meta("process_sort_index", rank, 0, {"sort_index": rank}))
    for rank, comm in sorted(tracks):
        label = names.get(comm) or f"communicator {comm}"
        found.append(_meta("thread_name", rank, comm * 2, {"name": f"{label} (measured)"}))
        found.append(_meta("thread_name", rank, comm * 2 + 1, {"name": f"{label} (modelled)"}))
    return found


def _meta(name: str, rank: int, track: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": rank, "tid": track, "args": arguments}


def _other(document: dict[str, Any], shown: int) -> dict[str, Any]:
    timeline = document["operation_timeline"]
    return {
        "cluster": document["cluster"]["name"],
        "generator": document.get("generator", ""),
        "shown_operations": shown,
        "dropped_operations": timeline["dropped_entries"] + timeline["retained_entries"] - shown,
    }
