"""The report as a Markdown page, from the document alone, so that a stored JSON file renders the same.

Text that came from outside (names, hosts, error texts) is escaped; long tables are cut with a line that says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fakegpu.report.text import describe

MAX_ROWS = 200

_NOTES = (
    "Bytes and calls are exact; times named *modelled* or *estimated* come from the topology model of the described "
    "cluster, not from a clock.",
    "Links and node pairs carry the traffic of the algorithm that the model chose, attributed to the ranks that "
    "exchange it; a split communicator's traffic counts only for its members' nodes.",
    "Payload is the larger of one rank's two buffers (the size of nccl-tests). A node pair's bytes are what crosses "
    "between the two nodes, so they differ from the payload.",
    "The coordinator's duration starts when a complete request has reached the communicator registry and ends after "
    "coordinator-side execution. It includes neither client preparation nor delivery of the final response, and is "
    "no packet capture.",
    "Rendezvous is the time from an operation's first submission to its last; execution from there to the last "
    "member's completion.",
    "A link's estimated time is the sum of the modelled times of the operations that used it; throughput is its bytes "
    "over that time. The contention penalty is the part that oversubscription costs.",
)


def render(document: dict[str, Any]) -> str:
    parts = [
        "# Cluster Communication Report",
        _header(document),
        "## Collective Summary",
        _collectives(document["collectives"]),
        "## Point-to-Point Summary",
        _point_to_point(document["point_to_point"]),
        "## Node-Pair Communication",
        _node_pairs(document),
        "## Rank Summary",
        _ranks(document["ranks"]),
        "## Resilience Events",
        _resilience(document["resilience"]),
        "## Recent Operation Timeline",
        _timeline(document["operation_timeline"]),
        "## Metric Notes",
        "\n".join(f"- {note}" for note in _NOTES),
    ]
    return "\n\n".join(parts) + "\n"


def _header(document: dict[str, Any]) -> str:
    cluster, resilience = document["cluster"], document["resilience"]
    rows = [
        ("Cluster", cluster["name"]),
        ("Configuration", cluster["config_path"] or "none (flags or the first world define the cluster)"),
        ("Mode", cluster["mode"]),
        ("World size", cluster["world_size"]),
        ("Nodes", cluster["node_count"]),
        ("Communicators", cluster["communicators"]),
        ("Coordinator transport", cluster["coordinator_transport"]),
        ("Default backend", cluster["default_backend"]),
        ("Failures", resilience["failure_count"]),
        ("Recoveries", resilience["recovery_count"]),
        ("Schema", document["schema_version"]),
    ]
    return "\n".join(f"- {name}: {escape(value)}" for name, value in rows)


def _collectives(collectives: dict[str, Any]) -> str:
    rows = [
        (kind, row["calls"], row["bytes"], _us(row["estimated_time_us_total"]), _us(row["contention_penalty_us_total"]))
        for kind, row in collectives.items()
    ]
    return table(("Collective", "Calls", "Bytes", "Estimated time (us)", "Contention penalty (us)"), rows)


def _point_to_point(row: dict[str, Any]) -> str:
    cells = (
        row["operations"], row["sends"], row["bytes"], _us(row["estimated_time_us_total"]),
        _us(row["contention_penalty_us_total"]),
    )
    return table(("Operations", "Sends", "Bytes", "Estimated time (us)", "Contention penalty (us)"), [cells])


def _node_pairs(document: dict[str, Any]) -> str:
    pairs = document["node_pairs"]
    if not pairs:
        return "One node: nothing crosses between nodes."
    rows = [
        (
            f"{pair['node_a']} - {pair['node_b']}", pair["operations"], pair["collective_operations"],
            pair["point_to_point_operations"], pair["a_to_b"]["transfers"], pair["a_to_b"]["total_bytes"],
            pair["b_to_a"]["transfers"], pair["b_to_a"]["total_bytes"], pair["total_bytes"],
            pair["peak_combined_bytes_per_operation"], _us(pair["estimated_time_us_total"]),
            _rate(pair["average_estimated_throughput_gbps"]), _rate(pair["peak_estimated_throughput_gbps"]),
        )
        for pair in sorted(pairs, key=lambda p: -p["total_bytes"])
    ]
    head = (
        "Nodes (a - b)", "Operations", "Collective", "P2P", "a to b transfers", "a to b bytes", "b to a transfers",
        "b to a bytes", "Total bytes", "Peak bytes/operation", "Estimated time (us)", "Average Gbit/s", "Peak Gbit/s",
    )
    return table(head, rows)


def _ranks(ranks: Sequence[dict[str, Any]]) -> str:
    head = (
        "Rank", "Node", "GPU", "Wait (ms)", "Timeouts", "Communicator inits", "Collective calls", "P2P calls",
        "Barriers", "Group prepares",
    )
    rows = [
        (
            row["rank"], row["node"], row.get("profile", ""), f"{row['wait_time_ms']:.3f}", row["timeouts"],
            row["communicator_inits"], row["collective_calls"], row["point_to_point_calls"], row["barrier_calls"],
            row["group_prepares"],
        )
        for row in ranks
    ]
    return table(head, rows)


def _resilience(resilience: dict[str, Any]) -> str:
    failures, recoveries = resilience["failure_events"], resilience["recovery_events"]
    injected = resilience.get("injected_faults", [])
    if not failures and not recoveries and not injected:
        return "No failures and no recoveries."
    failure_rows = [
        (
            event["index"], event["source"], event["operation"] or "", _or_dash(event["comm_id"]),
            _or_dash(event["seqno"]), _or_dash(event["global_rank"]), event["error_code"], event["error_detail"],
        )
        for event in failures
    ]
    recovery_rows = [
        (
            event["index"], event["parent_comm_id"], event["new_comm_id"], describe(event["excluded_ranks"]),
            describe(event["surviving_ranks"]), _us(event["recovery_time_us"]),
        )
        for event in recoveries
    ]
    injected_rows = [
        (
            event["index"], event["detail"], event["operation"] or "", _or_dash(event["comm_id"]),
            _or_dash(event["seqno"]), _or_dash(event["global_rank"]),
        )
        for event in injected
    ]
    injected_head = ("Injected", "Fault", "Operation", "Communicator", "Seq", "Rank")
    head = ("Failure", "Source", "Operation", "Communicator", "Seq", "Rank", "Code", "Detail")
    recovery_head = ("Recovery", "Parent", "New", "Excluded ranks", "Surviving ranks", "Time (us)")
    parts = ([table(head, failure_rows)] if failures else []) + (
        [table(recovery_head, recovery_rows)] if recoveries else []
    ) + ([table(injected_head, injected_rows)] if injected else [])
    return "\n\n".join(parts)


def _timeline(timeline: dict[str, Any]) -> str:
    head = (
        "#", "Comm", "Seq", "Operation", "Type", "Reduction", "Ranks", "Transport", "Payload bytes", "Socket in",
        "Socket out", "Rendezvous (us)", "Execution (us)", "Modelled (us)",
    )
    rows = [
        (
            entry["index"], entry["comm_id"], entry["seqno"], entry["operation"], entry["data_type"],
            entry["reduce_op"] or "", describe(entry["ranks"]), entry["buffer_transport"],
            entry["logical_payload_bytes"],
            entry["socket_request_payload_bytes"], entry["socket_response_payload_bytes"],
            _us(entry["rendezvous_wait_us"]), _us(entry["execution_time_us"]), _us(entry["modeled_time_us"]),
        )
        for entry in reversed(timeline["entries"])
    ]
    kept = f"Retained {timeline['retained_entries']}, dropped {timeline['dropped_entries']}; newest first."
    return kept + ("\n\n" + table(head, rows) if rows else "")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    rows = list(rows)
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(escape(cell) for cell in row) + " |" for row in rows[:MAX_ROWS]]
    if len(rows) > MAX_ROWS:
        lines.append(f"\n{len(rows) - MAX_ROWS} more rows are in the JSON report.")
    return "\n".join(lines)


def escape(value: Any) -> str:
    """One table cell: no markup, no line breaks."""
    text = " ".join(str(value).split())
    for char in "\\`*[]<>|":
        text = text.replace(char, "\\" + char if char not in "<>" else {"<": "&lt;", ">": "&gt;"}[char])
    return text


def _us(value: float) -> str:
    return f"{value:.3f}"


def _rate(value: float) -> str:
    return f"{value:.3f}"


def _or_dash(value: Any) -> Any:
    return "-" if value is None else value
