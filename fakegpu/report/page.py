"""The report as one self-contained HTML page: no network, no library, readable with hundreds of ranks.

Built from the document alone. Every text of the document is escaped: it may have come from a stranger's host name or
error text. The maps are drawn on canvases by the page's own script from a JSON block; the tables need no script.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from fakegpu.report.page_assets import SCRIPT, STYLE
from fakegpu.report.text import describe, runs

MAX_TIMELINE = 5000
MAX_ROWS = 100
TOP_RANKS = 10
COLORS = {
    "all_reduce": "#1f6feb", "all_gather": "#2da44e", "reduce_scatter": "#bf8700", "all_to_all": "#a475f9",
    "broadcast": "#1b998b", "reduce": "#d4572a", "barrier": "#8b949e", "gather": "#c2578c", "scatter": "#6e7f1a",
    "send": "#0aa2c0", "put_signal": "#5e60ce", "signal": "#9a8c98",
}


def render(document: dict[str, Any]) -> str:
    cluster = document["cluster"]
    title = f"Communication report: {cluster['name']}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="sub">{escape(_subtitle(document))}</p>',
        _tiles(document),
        _failures(document["resilience"], document.get("notes", [])),
        _section("Timeline", _timeline_part(document)),
        f'<div class="pair">{_section("Bytes between nodes", _heat_part(document))}'
        f"{_section('Collectives', _collectives(document))}</div>",
        f'<div class="pair">{_section("Ranks that waited longest", _waiting(document["ranks"], longest=True))}'
        f"{_section('Ranks the others waited for', _waiting(document['ranks'], longest=False))}</div>",
        _section("Node pairs", _node_pairs(document["node_pairs"])),
        _section("Communicators", _communicators(document.get("communicators", []))),
        _section("All ranks", _ranks(document["ranks"])),
    ]
    payload = json.dumps(_data(document), separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(part for part in parts if part)
        + f'\n</main><div id="tip"></div>\n<script type="application/json" id="data">{payload}</script>\n'
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _subtitle(document: dict[str, Any]) -> str:
    cluster = document["cluster"]
    source = cluster["config_path"] or (
        "cluster as configured" if cluster.get("configured") else "cluster defined by the first world"
    )
    return (
        f"{cluster['node_count']} nodes, {cluster['world_size']} ranks, transport {cluster['coordinator_transport']}, "
        f"{source}. Modelled times come from the described cluster, not from a clock."
    )


def _tiles(document: dict[str, Any]) -> str:
    collectives, direct = document["collectives"], document["point_to_point"]
    crossing = sum(pair["total_bytes"] for pair in document["node_pairs"])
    modelled = sum(row["estimated_time_us_total"] for row in collectives.values()) + direct["estimated_time_us_total"]
    failures = document["resilience"]["failure_count"]
    tiles = [
        (f"{sum(row['calls'] for row in collectives.values()):,}", "collectives", False),
        (f"{direct['operations']:,}", "point-to-point transfers", False),
        (_bytes(sum(row["bytes"] for row in collectives.values()) + direct["bytes"]), "logical payload", False),
        (_bytes(crossing), "crossed between nodes", False),
        (_time(modelled), "modelled time, all operations", False),
        (str(failures), "failures", failures > 0),
    ]
    cells = (
        f'<div class="tile{" bad" if bad else ""}"><b>{escape(value)}</b><span>{escape(label)}</span></div>'
        for value, label, bad in tiles
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def _failures(resilience: dict[str, Any], notes: Sequence[dict[str, Any]]) -> str:
    parts = []
    if resilience["failure_events"]:
        head = ("#", "Source", "Operation", "Communicator", "Seq", "Rank", "Had joined", "Detail")
        rows = (
            (
                event["index"], event["source"], event["operation"] or "-", _dash(event["comm_id"]),
                _dash(event["seqno"]), _dash(event["global_rank"]), describe(event["observed_ranks"]),
                event["error_detail"],
            )
            for event in resilience["failure_events"]
        )
        body = _table(head, rows, text=(1, 2, 6), wide=(7,))
        parts.append(f'<section class="bad"><h2>Failures: {resilience["failure_count"]}</h2>{body}</section>')
    if resilience["recovery_events"]:
        head = ("#", "Parent", "New", "Excluded ranks", "Surviving ranks", "Time")
        rows = (
            (
                event["index"], event["parent_comm_id"], event["new_comm_id"], describe(event["excluded_ranks"]),
                describe(event["surviving_ranks"]), _time(event["recovery_time_us"]),
            )
            for event in resilience["recovery_events"]
        )
        parts.append(_section("Recoveries", _table(head, rows, text=(3, 4))))
    if notes:
        rows = ((_dash(note["global_rank"]), note["status"], note["text"]) for note in notes)
        parts.append(_section("Notes", _table(("Rank", "Status", "Text"), rows, wide=(2,))))
    return "\n".join(parts)


def _timeline_part(document: dict[str, Any]) -> str:
    timeline = document["operation_timeline"]
    if not timeline["entries"]:
        return f"<p>No operations retained, {timeline['dropped_entries']:,} dropped.</p>"
    kinds = dict.fromkeys(entry["operation"] for entry in timeline["entries"])
    legend = "".join(f'<span><i style="background:{COLORS[kind]}"></i>{escape(kind)}</span>' for kind in kinds)
    shown = min(len(timeline["entries"]), MAX_TIMELINE)
    left = timeline["dropped_entries"] + timeline["retained_entries"] - shown
    note = (
        f"The newest {shown:,} operations, {left:,} earlier ones not shown. Rows are ranks; pale: waiting for the last "
        "rank, full: execution. Wheel zooms, double click resets."
    )
    return f'<div class="legend">{legend}</div><canvas id="time"></canvas><p class="note">{note}</p>'


def _heat_part(document: dict[str, Any]) -> str:
    note = "Rows send, columns receive; logarithmic colour. Traffic of the algorithms that the model chose."
    return f'<canvas id="heat"></canvas><p class="note">{note}</p>'


def _collectives(document: dict[str, Any]) -> str:
    rows = [
        (kind, row["calls"], row["bytes"], row.get("execution_time_us_total", 0.0), row["estimated_time_us_total"],
         row["contention_penalty_us_total"])
        for kind, row in document["collectives"].items()
    ]
    direct = document["point_to_point"]
    rows.append(
        ("point to point", direct["operations"], direct["bytes"], direct.get("execution_time_us_total", 0.0),
         direct["estimated_time_us_total"], direct["contention_penalty_us_total"])
    )
    cells = (
        (name, f"{calls:,}", _bytes(size), _time(measured), _time(modelled), _time(contention))
        for name, calls, size, measured, modelled, contention in rows
        if calls
    )
    return _table(("Operation", "Calls", "Payload", "Measured", "Modelled", "Contention"), cells)


def _waiting(ranks: Sequence[dict[str, Any]], longest: bool) -> str:
    """A rank that waits little while others wait much is the one that came last."""
    joined = [row for row in ranks if row["collective_calls"] or row["point_to_point_calls"]]
    order = sorted(joined, key=lambda row: row["wait_time_ms"], reverse=longest)[:TOP_RANKS]
    top = max((row["wait_time_ms"] for row in joined), default=0.0) or 1.0
    rows = []
    for row in order:
        bar = f'<span class="bar" style="width:{max(1, round(120 * row["wait_time_ms"] / top))}px"></span>'
        rows.append((row["rank"], row["node"], f"{row['wait_time_ms']:.1f} ms", row["timeouts"], Markup(bar)))
    return _table(("Rank", "Node", "Waited", "Time-outs", ""), rows, text=(1, 4)) if rows else "<p>None.</p>"


def _node_pairs(pairs: Sequence[dict[str, Any]]) -> str:
    if not pairs:
        return "<p>One node: nothing crosses between nodes.</p>"
    order = sorted(pairs, key=lambda pair: -pair["total_bytes"])
    head = ("Nodes (a - b)", "Operations", "a to b", "b to a", "Total", "Peak/operation", "Modelled time", "Average")
    rows = (
        (
            f"{pair['node_a']} - {pair['node_b']}", f"{pair['operations']:,}", _bytes(pair["a_to_b"]["total_bytes"]),
            _bytes(pair["b_to_a"]["total_bytes"]), _bytes(pair["total_bytes"]),
            _bytes(pair["peak_combined_bytes_per_operation"]), _time(pair["estimated_time_us_total"]),
            f"{pair['average_estimated_throughput_gbps']:.2f} Gbit/s",
        )
        for pair in order
    )
    return _table(head, rows)


def _communicators(communicators: Sequence[dict[str, Any]]) -> str:
    order = sorted(communicators, key=lambda row: -row["estimated_time_us_total"])
    head = ("Communicator", "Name", "Ranks", "Collectives", "Transfers", "Payload", "Modelled time")
    rows = (
        (
            row["comm_id"], row["name"], describe(row["ranks"]), f"{row['collective_calls']:,}",
            f"{row['point_to_point_calls']:,}", _bytes(row["bytes"]), _time(row["estimated_time_us_total"]),
        )
        for row in order
    )
    return _table(head, rows, text=(1, 2)) if communicators else "<p>None.</p>"


def _ranks(ranks: Sequence[dict[str, Any]]) -> str:
    head = ("Rank", "Node", "GPU", "Host", "Waited", "Time-outs", "Communicators", "Collectives", "Transfers")
    rows = (
        (
            row["rank"], row["node"], row.get("profile", ""), row.get("host", ""), f"{row['wait_time_ms']:.1f} ms",
            row["timeouts"], row["communicator_inits"], f"{row['collective_calls']:,}",
            f"{row['point_to_point_calls']:,}",
        )
        for row in ranks
    )
    body = _table(head, rows, text=(1, 2, 3), limit=len(ranks))
    return body if len(ranks) <= 16 else f"<details><summary>{len(ranks)} ranks</summary>{body}</details>"


class Markup(str):
    """Text that is HTML already."""


def _table(
    head: Sequence[str], rows: Iterable[Sequence[Any]], text: Sequence[int] = (), wide: Sequence[int] = (),
    limit: int = MAX_ROWS,
) -> str:
    rows = list(rows)

    def cell(index: int, value: Any) -> str:
        style = ' class="wide"' if index in wide else ' class="text"' if index in text else ""
        return f"<td{style}>{value if isinstance(value, Markup) else escape(str(value))}</td>"

    lines = ["<tr>" + "".join(cell(i, value) for i, value in enumerate(row)) + "</tr>" for row in rows[:limit]]
    titles = "".join(
        f'<th{" class=text" if i in (*text, *wide) else ""}>{escape(name)}</th>' for i, name in enumerate(head)
    )
    more = f'<p class="note">{len(rows) - limit:,} more in the JSON report.</p>' if len(rows) > limit else ""
    body = f"<thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="scroll"><table>{body}</table></div>{more}'


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _data(document: dict[str, Any]) -> dict[str, Any]:
    """What the script draws: node names, directed bytes, and the timeline with ranks as runs."""
    nodes = [node["id"] for node in document["cluster"].get("nodes", [])]
    index = {name: i for i, name in enumerate(nodes)}
    entries = document["operation_timeline"]["entries"][-MAX_TIMELINE:]
    return {
        "nodes": nodes,
        "links": [[index[link["src"]], index[link["dst"]], link["bytes"]] for link in document["links"]],
        "ranks": len(document["ranks"]),
        "colors": COLORS,
        "timeline": [
            {
                "i": entry["index"], "o": entry["operation"], "c": entry["comm_id"], "n": len(entry["ranks"]),
                "r": runs(sorted(entry["ranks"])), "b": entry["logical_payload_bytes"], "d": entry["data_type"],
                "t": entry.get("start_us", 0.0), "w": entry["rendezvous_wait_us"], "x": entry["execution_time_us"],
                "m": entry["modeled_time_us"], "a": entry.get("modeled_algorithm", ""),
            }
            for entry in entries
        ],
    }


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} PiB"


def _time(us: float) -> str:
    return f"{us / 1e6:.3f} s" if us >= 1e6 else f"{us / 1e3:.2f} ms" if us >= 1e3 else f"{us:.1f} us"


def _dash(value: Any) -> Any:
    return "-" if value is None else value
