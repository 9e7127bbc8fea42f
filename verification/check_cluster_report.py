"""Checks cluster report files: the schema, and that their numbers agree with each other.

usage: check_cluster_report.py FILE... [--schema cluster_report.schema.json] [--json EVIDENCE]
Exit status: 0 all hold, 1 a check failed, 2 a file cannot be read. Shares no code with the package.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

import jsonschema

ROOT = Path(__file__).resolve().parent.parent
DIRECTIONS = ("a_to_b", "b_to_a")


def schema_errors(report: dict, schema: dict) -> list[str]:
    validator = jsonschema.Draft202012Validator(schema)
    errors = sorted(validator.iter_errors(with_equal_ranks_once(report)), key=lambda e: list(map(str, e.absolute_path)))
    return [f"{'/'.join(map(str, e.absolute_path)) or 'report'}: {e.message[:200]}" for e in errors[:20]]


def with_equal_ranks_once(report: dict) -> dict:
    """Rank lists of the timeline that were seen before are cut to one rank: the schema need not check them again."""
    try:
        seen, slim = set(), []
        for entry in report["operation_timeline"]["entries"]:
            ranks = repr(entry["ranks"])
            slim.append({**entry, "ranks": entry["ranks"][:1]} if ranks in seen else entry)
            seen.add(ranks)
    except (TypeError, KeyError):
        return report
    return {**report, "operation_timeline": {**report["operation_timeline"], "entries": slim}}


def pair_errors(report: dict) -> list[str]:
    """Every node pair sums to its two directed links, and no link between nodes is without its pair."""
    links = {(link["src"], link["dst"]): link for link in report["links"]}
    errors, seen = [], set()
    if len(links) != len(report["links"]):
        errors.append("links: a (src, dst) is listed twice")
    for pair in report["node_pairs"]:
        name = f"node_pairs {pair['node_a']}-{pair['node_b']}"
        ends = {"a_to_b": (pair["node_a"], pair["node_b"]), "b_to_a": (pair["node_b"], pair["node_a"])}
        for direction in DIRECTIONS:
            seen.add(ends[direction])
            link = links.get(ends[direction], {"bytes": 0, "samples": 0, "peak_bytes_per_operation": 0})
            row = pair[direction]
            for ours, theirs in (
                ("total_bytes", "bytes"),
                ("transfers", "samples"),
                ("peak_bytes_per_operation", "peak_bytes_per_operation"),
            ):
                if row[ours] != link[theirs]:
                    errors.append(f"{name} {direction}: {ours} {row[ours]}, its link says {link[theirs]}")
        total = sum(pair[direction]["total_bytes"] for direction in DIRECTIONS)
        if pair["total_bytes"] != total:
            errors.append(f"{name}: total_bytes {pair['total_bytes']}, its directions sum to {total}")
        peaks = [pair[direction]["peak_bytes_per_operation"] for direction in DIRECTIONS]
        if not max(peaks) <= pair["peak_combined_bytes_per_operation"] <= sum(peaks):
            errors.append(f"{name}: peak_combined_bytes_per_operation does not lie between its directions' peaks")
    for (src, dst), link in links.items():
        inter = src != dst
        if (link["scope"] == "inter_node") != inter:
            errors.append(f"link {src}->{dst}: scope {link['scope']}")
        if inter and (src, dst) not in seen:
            errors.append(f"link {src}->{dst}: no node pair lists it")
    return errors


def operation_count_errors(report: dict) -> list[str]:
    errors = []
    calls = sum(row["calls"] for row in report["collectives"].values())
    direct = report["point_to_point"]["operations"]
    for row in [*report["links"], *report["node_pairs"]]:
        name = f"{row.get('src', row.get('node_a'))}/{row.get('dst', row.get('node_b'))}"
        if row["operations"] != row["collective_operations"] + row["point_to_point_operations"]:
            errors.append(f"{name}: operations is not the sum of its two kinds")
        if row["collective_operations"] > calls or row["point_to_point_operations"] > direct:
            errors.append(f"{name}: more operations than the whole report counts")
    if report["point_to_point"]["sends"] > direct:
        errors.append("point_to_point: more sends than operations")
    return errors


def rank_errors(report: dict) -> list[str]:
    """Ranks are listed once; their calls fit the collectives' and communicators' counts."""
    errors = []
    ranks = [row["rank"] for row in report["ranks"]]
    if sorted(ranks) != list(range(len(ranks))) or len(ranks) < report["cluster"]["world_size"]:
        errors.append(f"ranks: found {len(ranks)} rows, expected each of 0..{report['cluster']['world_size'] - 1} once")
    calls = sum(row["calls"] for row in report["collectives"].values())
    barriers = report["collectives"]["barrier"]["calls"]
    direct = report["point_to_point"]["operations"]
    for row in report["ranks"]:
        if row["collective_calls"] > calls or row["barrier_calls"] > barriers or row["point_to_point_calls"] > direct:
            errors.append(f"rank {row['rank']}: more calls than the whole report counts")
        if row["barrier_calls"] > row["collective_calls"]:
            errors.append(f"rank {row['rank']}: more barriers than collective calls")
    total = sum(row["collective_calls"] for row in report["ranks"])
    if total < calls:
        errors.append(f"ranks: {total} collective calls together, fewer than the {calls} collectives")
    sent = sum(row["point_to_point_calls"] for row in report["ranks"])
    if not direct <= sent <= 2 * direct:
        errors.append(f"ranks: {sent} point-to-point calls together, expected {direct} to {2 * direct}")
    if "communicators" in report:
        expected = Counter()
        for communicator in report["communicators"]:
            for rank in communicator["ranks"]:
                expected[rank] += communicator["collective_calls"]
        if sum(c["collective_calls"] for c in report["communicators"]) == calls:
            for row in report["ranks"]:
                if row["collective_calls"] != expected[row["rank"]]:
                    errors.append(
                        f"rank {row['rank']}: {row['collective_calls']} collective calls, its communicators "
                        f"made {expected[row['rank']]}"
                    )
    return errors


def rank_pair_errors(report: dict) -> list[str]:
    """Rank pairs sum to the links between their nodes."""
    if "rank_pairs" not in report or report.get("rank_pairs_omitted"):
        return []
    node = {row["rank"]: row["node"] for row in report["ranks"]}
    sums, transfers = defaultdict(int), defaultdict(int)
    for pair in report["rank_pairs"]:
        key = node[pair["src"]], node[pair["dst"]]
        sums[key] += pair["bytes"]
        transfers[key] += pair["transfers"]
    links = {(link["src"], link["dst"]): link for link in report["links"]}
    return [
        f"link {src}->{dst}: {links.get((src, dst), {}).get('bytes', 0)} bytes, its rank pairs sum to {sums[src, dst]}"
        for src, dst in sorted(links.keys() | sums.keys())
        if links.get((src, dst), {}).get("bytes", 0) != sums[src, dst]
        or links.get((src, dst), {}).get("samples", 0) != transfers[src, dst]
    ]


def timeline_errors(report: dict) -> list[str]:
    timeline, errors = report["operation_timeline"], []
    entries = timeline["entries"]
    if timeline["retained_entries"] != len(entries):
        errors.append(f"timeline: retained_entries {timeline['retained_entries']}, found {len(entries)} entries")
    indices = [entry["index"] for entry in entries]
    if indices != list(range(timeline["dropped_entries"], timeline["dropped_entries"] + len(entries))):
        errors.append("timeline: indices are not consecutive from dropped_entries on")
    total = sum(row["calls"] for row in report["collectives"].values()) + report["point_to_point"]["operations"]
    if total != timeline["dropped_entries"] + len(entries):
        errors.append(f"timeline: {len(entries)} + {timeline['dropped_entries']} entries, {total} operations counted")
    if not timeline["dropped_entries"]:
        errors += _complete_timeline_errors(report)
    return errors


def _complete_timeline_errors(report: dict) -> list[str]:
    """With nothing dropped, the timeline alone gives the collectives' calls and bytes."""
    calls, sizes = Counter(), Counter()
    for entry in report["operation_timeline"]["entries"]:
        calls[entry["operation"]] += 1
        sizes[entry["operation"]] += entry["logical_payload_bytes"]
    return [
        f"{kind}: {row['calls']} calls of {row['bytes']} bytes, the timeline holds {calls[kind]} of {sizes[kind]}"
        for kind, row in report["collectives"].items()
        if (row["calls"], row["bytes"]) != (calls[kind], sizes[kind])
    ]


def resilience_errors(report: dict) -> list[str]:
    part, errors = report["resilience"], []
    for name in ("failure", "recovery"):
        events = part[f"{name}_events"]
        if part[f"{name}_count"] < len(events):
            errors.append(f"resilience: {name}_count {part[f'{name}_count']}, found {len(events)} events")
        if events and events[-1]["index"] != part[f"{name}_count"] - 1:
            errors.append(f"resilience: the last {name} event has index {events[-1]['index']}")
    return errors


CHECKS = (
    pair_errors, operation_count_errors, rank_errors, rank_pair_errors, timeline_errors, resilience_errors,
)


def check(report: dict, schema: dict) -> list[str]:
    """Everything that is wrong; the cross-checks run only on a report that fits the schema."""
    return schema_errors(report, schema) or [error for part in CHECKS for error in part(report)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--schema", default=str(ROOT / "cluster_report.schema.json"))
    parser.add_argument("--json", help="write the evidence here")
    arguments = parser.parse_args()
    evidence, status = {}, 0
    for name in arguments.files:
        try:
            schema = json.loads(Path(arguments.schema).read_text(encoding="utf-8"))
            report = json.loads(Path(name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            print(f"{name}: cannot be read: {error}", file=sys.stderr)
            return 2
        errors = check(report, schema)
        evidence[name] = errors
        for error in errors:
            print(f"{name}: {error}", file=sys.stderr)
        print(f"{name}: {'FAILED, ' + str(len(errors)) + ' errors' if errors else 'OK'}")
        status = status or int(bool(errors))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(evidence, indent=2) + "\n", encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
