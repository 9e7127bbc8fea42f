"""Two report documents side by side: what changed between two runs. Rows are (name, first, second)."""

from __future__ import annotations

from typing import Any

Row = tuple[str, float, float]


def compare(first: dict[str, Any], second: dict[str, Any]) -> dict[str, list[Row]]:
    """Sections of rows, in reading order; rows that are zero on both sides are left out."""
    sections = {
        "totals": _totals(first, second),
        "collectives": _collectives(first, second),
        "node pairs (bytes)": _node_pairs(first, second),
        "ranks (waited, ms)": _ranks(first, second),
    }
    return {name: [row for row in rows if row[1] or row[2]] for name, rows in sections.items()}


def _totals(first: dict[str, Any], second: dict[str, Any]) -> list[Row]:
    def both(name: str, value) -> Row:
        return name, value(first), value(second)

    return [
        both("world size", lambda d: d["cluster"]["world_size"]),
        both("nodes", lambda d: d["cluster"]["node_count"]),
        both("communicators", lambda d: d["cluster"]["communicators"]),
        both("collective calls", lambda d: sum(row["calls"] for row in d["collectives"].values())),
        both("collective bytes", lambda d: sum(row["bytes"] for row in d["collectives"].values())),
        both("point-to-point operations", lambda d: d["point_to_point"]["operations"]),
        both("point-to-point bytes", lambda d: d["point_to_point"]["bytes"]),
        both("bytes between nodes", lambda d: sum(pair["total_bytes"] for pair in d["node_pairs"])),
        both("modelled time, us", _modelled),
        both("failures", lambda d: d["resilience"]["failure_count"]),
        both("recoveries", lambda d: d["resilience"]["recovery_count"]),
        both("time-outs", lambda d: sum(row["timeouts"] for row in d["ranks"])),
    ]


def _modelled(document: dict[str, Any]) -> float:
    rows = [*document["collectives"].values(), document["point_to_point"]]
    return sum(row["estimated_time_us_total"] for row in rows)


def _collectives(first: dict[str, Any], second: dict[str, Any]) -> list[Row]:
    rows: list[Row] = []
    for kind in first["collectives"]:
        a, b = first["collectives"][kind], second["collectives"][kind]
        rows.append((f"{kind} calls", a["calls"], b["calls"]))
        rows.append((f"{kind} bytes", a["bytes"], b["bytes"]))
        rows.append((f"{kind} modelled, us", a["estimated_time_us_total"], b["estimated_time_us_total"]))
    return rows


def _node_pairs(first: dict[str, Any], second: dict[str, Any]) -> list[Row]:
    sizes = [
        {f"{pair['node_a']} - {pair['node_b']}": pair["total_bytes"] for pair in document["node_pairs"]}
        for document in (first, second)
    ]
    names = list(dict.fromkeys([*sizes[0], *sizes[1]]))
    return [(name, sizes[0].get(name, 0), sizes[1].get(name, 0)) for name in names]


def _ranks(first: dict[str, Any], second: dict[str, Any]) -> list[Row]:
    waits = [{row["rank"]: row["wait_time_ms"] for row in document["ranks"]} for document in (first, second)]
    ranks = sorted({*waits[0], *waits[1]})
    return [(f"rank {rank}", waits[0].get(rank, 0.0), waits[1].get(rank, 0.0)) for rank in ranks]
