"""Snapshot -> the report's document: plain dictionaries in the order and with the names of cluster_report.v1.

Only lays out and divides; every number was counted by the recorder or worked out by its accounting.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import attrs

from fakegpu import __version__
from fakegpu.cluster import ClusterSpec, Fabric
from fakegpu.recorder.accounting import KindTotals, LinkTotals, PairTotals
from fakegpu.recorder.events import COLLECTIVE_KINDS, OperationEvent
from fakegpu.recorder.snapshot import Snapshot

SCHEMA_VERSION = "cluster_report.v1"
REPORT_VERSION = 1
# Node pairs without traffic are listed only in clusters up to this size: 512 nodes make 130,816 pairs.
MAX_LISTED_NODES = 128


def build(snapshot: Snapshot, markdown_path: str | None = None) -> dict[str, Any]:
    """The whole document; JSON-ready."""
    return {
        "report_version": REPORT_VERSION,
        "schema_version": SCHEMA_VERSION,
        "schema": "experimental",
        "generator": f"fakegpu {__version__}",
        "cluster": _cluster(snapshot, markdown_path),
        "collectives": {kind: _kind(snapshot.accounting.kinds[kind]) for kind in COLLECTIVE_KINDS},
        "point_to_point": _point_to_point(snapshot),
        "links": _links(snapshot),
        "node_pairs": _node_pairs(snapshot),
        "rank_pairs": _rank_pairs(snapshot),
        "rank_pairs_omitted": snapshot.accounting.rank_pairs_omitted,
        "communicators": [_plain(c) for c in snapshot.communicators],
        "ranks": _ranks(snapshot),
        "resilience": _resilience(snapshot),
        "notes": [_plain(note) for note in snapshot.notes],
        "operation_timeline": _timeline(snapshot),
    }


def _cluster(snapshot: Snapshot, markdown_path: str | None) -> dict[str, Any]:
    cluster = snapshot.cluster
    return {
        "mode": snapshot.mode,
        "world_size": cluster.world_size,
        "node_count": cluster.node_count,
        "communicators": len(snapshot.communicators),
        "coordinator_transport": snapshot.transport,
        "markdown_report_path": markdown_path,
        "name": cluster.name,
        "default_backend": cluster.default_backend,
        "config_path": cluster.path,
        "configured": snapshot.configured,
        "fabric": {
            scope: {
                "type": fabric.type,
                "bandwidth_gbps": fabric.bandwidth_gbps,
                "latency_us": fabric.latency_us,
                "oversubscription": fabric.oversubscription,
            }
            for scope, fabric in (("intra_node", cluster.intra_node), ("inter_node", cluster.inter_node))
        },
        "nodes": [
            {"id": node.id, "host": node.host, "ranks": list(node.ranks), "gpus": list(node.gpus)}
            for node in cluster.nodes
        ],
    }


def _kind(totals: KindTotals) -> dict[str, Any]:
    return _plain(totals)


def _point_to_point(snapshot: Snapshot) -> dict[str, Any]:
    totals = _kind(snapshot.accounting.point_to_point)
    return {"operations": totals.pop("calls"), "sends": snapshot.accounting.sends, **totals}


def _links(snapshot: Snapshot) -> list[dict[str, Any]]:
    cluster = snapshot.cluster
    links = []
    for (src, dst), totals in sorted(snapshot.accounting.links.items()):
        scope, fabric = _scope(cluster, src, dst)
        links.append(
            {
                "src": cluster.nodes[src].id,
                "dst": cluster.nodes[dst].id,
                "scope": scope,
                "samples": totals.samples,
                **_operations(totals),
                "bytes": totals.bytes,
                "peak_bytes_per_operation": totals.peak_bytes_per_operation,
                "bandwidth_gbps": fabric.bandwidth_gbps,
                "avg_latency_us": fabric.latency_us,
                **_times(totals, totals.bytes),
            }
        )
    return links


def _node_pairs(snapshot: Snapshot) -> list[dict[str, Any]]:
    cluster, accounting = snapshot.cluster, snapshot.accounting
    every = combinations(range(cluster.node_count), 2)
    pairs = every if cluster.node_count <= MAX_LISTED_NODES else sorted(accounting.node_pairs)
    empty = PairTotals()
    return [_node_pair(snapshot, a, b, accounting.node_pairs.get((a, b), empty)) for a, b in pairs]


def _node_pair(snapshot: Snapshot, a: int, b: int, totals: PairTotals) -> dict[str, Any]:
    cluster, links = snapshot.cluster, snapshot.accounting.links
    forth, back = links.get((a, b), LinkTotals()), links.get((b, a), LinkTotals())
    total = forth.bytes + back.bytes
    return {
        "node_a": cluster.nodes[a].id,
        "node_b": cluster.nodes[b].id,
        "scope": "inter_node",
        **_operations(totals),
        "a_to_b": _direction(cluster.inter_node, forth),
        "b_to_a": _direction(cluster.inter_node, back),
        "total_bytes": total,
        "peak_combined_bytes_per_operation": totals.peak_combined_bytes_per_operation,
        **_times(totals, total),
    }


def _direction(fabric: Fabric, totals: LinkTotals) -> dict[str, Any]:
    return {
        "transfers": totals.samples,
        "total_bytes": totals.bytes,
        "peak_bytes_per_operation": totals.peak_bytes_per_operation,
        "model_bandwidth_gbps": fabric.bandwidth_gbps,
        "avg_latency_us": fabric.latency_us,
        **_times(totals, totals.bytes),
    }


def _operations(totals: LinkTotals | PairTotals) -> dict[str, int]:
    collective, direct = totals.collective_operations, totals.point_to_point_operations
    return {
        "operations": collective + direct,
        "collective_operations": collective,
        "point_to_point_operations": direct,
    }


def _times(totals: LinkTotals | PairTotals, size: int) -> dict[str, float]:
    time = totals.estimated_time_us_total
    return _rounded(
        {
            "estimated_time_us_total": time,
            "contention_penalty_us_total": totals.contention_penalty_us_total,
            "average_estimated_throughput_gbps": size * 8e-3 / time if time > 0 else 0.0,
            "peak_estimated_throughput_gbps": totals.peak_bytes_per_us * 8e-3,
        }
    )


def _rank_pairs(snapshot: Snapshot) -> list[dict[str, int]]:
    pairs = snapshot.accounting.rank_pairs
    return [
        {"src": src, "dst": dst, "transfers": totals.transfers, "bytes": totals.bytes}
        for (src, dst), totals in sorted(pairs.items())
    ]


def _ranks(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Every rank of the cluster, seen or not."""
    cluster = snapshot.cluster
    records = {record.rank: record for record in snapshot.ranks}
    rows = []
    for rank in sorted(records.keys() | set(range(cluster.world_size))):
        record = records.get(rank)
        row: dict[str, Any] = {"rank": rank, "node": cluster.nodes[cluster.node_index(rank)].id}
        row["profile"] = cluster.profile_of(rank).id
        row["joined"] = record is not None
        row["host"] = record.host if record else ""
        row["pid"] = record.pid if record else 0
        row["device"] = record.device if record else -1
        row["wait_time_ms"] = round(record.wait_time_ms, 3) if record else 0.0
        for name in (
            "timeouts", "communicator_inits", "collective_calls", "point_to_point_calls", "barrier_calls",
            "group_prepares",
        ):
            row[name] = getattr(record, name) if record else 0
        rows.append(row)
    return rows


def _resilience(snapshot: Snapshot) -> dict[str, Any]:
    failures_before = snapshot.failure_count - len(snapshot.failures)
    recoveries_before = snapshot.recovery_count - len(snapshot.recoveries)
    injected_before = snapshot.injected_count - len(snapshot.injected)
    return {
        "failure_count": snapshot.failure_count,
        "recovery_count": snapshot.recovery_count,
        "failure_events": [
            {"index": failures_before + i, **_plain(event)}
            for i, event in enumerate(snapshot.failures)
        ],
        "recovery_events": [
            {"index": recoveries_before + i, **_plain(event)}
            for i, event in enumerate(snapshot.recoveries)
        ],
        "injected_count": snapshot.injected_count,
        "injected_faults": [
            {"index": injected_before + i, **_plain(event)}
            for i, event in enumerate(snapshot.injected)
        ],
    }


def _timeline(snapshot: Snapshot) -> dict[str, Any]:
    first = snapshot.dropped_operations
    return {
        "retained_entries": len(snapshot.timeline),
        "dropped_entries": first,
        "entries": [_entry(snapshot, first + i, event) for i, event in enumerate(snapshot.timeline)],
    }


def _entry(snapshot: Snapshot, index: int, event: OperationEvent) -> dict[str, Any]:
    estimate = snapshot.accounting.estimate(event)
    collective = event.kind in COLLECTIVE_KINDS
    return {
        "index": index,
        "comm_id": event.comm_id,
        "seqno": event.seqno,
        "kind": "collective" if collective else "point_to_point",
        "operation": event.kind,
        "data_type": event.data_type,
        "reduce_op": event.reduce_op,
        "buffer_transport": event.buffer_transport,
        "ranks": list(event.ranks),
        "root": event.root,
        "count": event.count,
        "logical_payload_bytes": event.logical_payload_bytes,
        "socket_request_payload_bytes": event.socket_request_payload_bytes,
        "socket_response_payload_bytes": event.socket_response_payload_bytes,
        "rendezvous_wait_us": round(event.rendezvous_wait_us, 3),
        "execution_time_us": round(event.execution_time_us, 3),
        "coordinator_duration_us": round(event.coordinator_duration_us, 3),
        "modeled_time_us": round(estimate.time_us, 3),
        "modeled_algorithm": estimate.algorithm,
        "modeled_protocol": estimate.protocol,
        "start_us": round(event.start_ns / 1e3, 3),
    }


def _scope(cluster: ClusterSpec, src: int, dst: int) -> tuple[str, Fabric]:
    return ("intra_node", cluster.intra_node) if src == dst else ("inter_node", cluster.inter_node)


def _plain(record: Any) -> dict[str, Any]:
    row = attrs.asdict(record, recurse=False)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in _rounded(row).items()}


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {key: round(value, 6) if isinstance(value, float) else value for key, value in row.items()}
