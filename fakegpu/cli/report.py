"""Show a cluster report in the terminal, render it again, or compare two."""

import json
from pathlib import Path

from fakegpu.cli._parser import Parser

EXAMPLES = """examples:
  fgpu report cluster.json
  fgpu report cluster.json --html report.html --trace trace.json
  fgpu report before.json after.json
"""
MAX_ROWS = 20


def main(argv: list[str] | None = None) -> int:
    from fakegpu import report

    parser = Parser("fgpu report", description=__doc__, epilog=EXAMPLES)
    parser.add_argument("files", nargs="+", metavar="FILE", help="one report, or two to compare")
    parser.add_argument("--markdown", metavar="FILE", help="write the Markdown page")
    parser.add_argument("--html", metavar="FILE", help="write the self-contained page")
    parser.add_argument("--trace", metavar="FILE", help="write a Chrome/Perfetto trace")
    parser.add_argument("--json", action="store_true", help="print JSON: the report, or the comparison")
    arguments = parser.parse_args(argv)
    if len(arguments.files) > 2:
        parser.error(f"found {len(arguments.files)} files, expected one report, or two to compare")
    documents = [report.load(name) for name in arguments.files]
    if len(documents) == 2:
        return _compare(arguments, documents)
    _render(arguments, documents[0])
    if arguments.json:
        print(json.dumps(documents[0], indent=2))
    elif not (arguments.markdown or arguments.html or arguments.trace):
        _summary(documents[0])
    return 0


def _render(arguments, document: dict) -> None:
    from fakegpu import report
    from fakegpu.report import page, trace

    for path, render in (
        (arguments.markdown, report.render_markdown), (arguments.html, page.render), (arguments.trace, trace.render),
    ):
        if path:
            report.write_atomic(Path(path), render(document))


def _compare(arguments, documents: list[dict]) -> int:
    from fakegpu.report.compare import compare

    sections = compare(*documents)
    if arguments.json:
        print(json.dumps(sections, indent=2))
        return 0
    console = _console()
    for name, rows in sections.items():
        order = sorted(rows, key=lambda row: -abs(row[2] - row[1])) if name.startswith(("node", "rank")) else rows
        table = _table(name, ("", "first", "second", "change"))
        for label, a, b in order[:MAX_ROWS]:
            table.add_row(label, _number(a), _number(b), _change(a, b))
        if rows:
            console.print(table)
        if len(rows) > MAX_ROWS:
            console.print(f"{len(rows) - MAX_ROWS} smaller changes not shown; see --json")
    return 0


def _console():
    from rich.console import Console

    return Console(highlight=False, markup=False, soft_wrap=True)


def _table(title: str, columns: tuple[str, ...]):
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"


def _change(first: float, second: float) -> str:
    if first == second:
        return "="
    return f"{(second / first - 1) * 100:+.1f} %" if first else "new"


def _summary(document: dict) -> None:
    console, cluster = _console(), document["cluster"]
    console.print(
        f"{cluster['name']}: {cluster['node_count']} nodes, {cluster['world_size']} ranks, "
        f"{cluster['communicators']} communicators, transport {cluster['coordinator_transport']}"
    )
    table = _table("operations", ("", "calls", "bytes", "modelled us", "measured us"))
    direct = document["point_to_point"]
    rows = list(document["collectives"].items())
    rows.append(("point to point", {**direct, "calls": direct["operations"]}))
    for kind, row in rows:
        if row["calls"]:
            cells = row["calls"], row["bytes"], row["estimated_time_us_total"], row.get("execution_time_us_total", 0.0)
            table.add_row(kind, *map(_number, cells))
    console.print(table)
    _print_pairs(console, document["node_pairs"])
    _print_ranks(console, document["ranks"])
    _print_failures(console, document["resilience"])


def _print_pairs(console, pairs: list[dict]) -> None:
    used = sorted((pair for pair in pairs if pair["total_bytes"]), key=lambda pair: -pair["total_bytes"])
    if not used:
        return
    table = _table("node pairs", ("a - b", "operations", "a to b bytes", "b to a bytes", "average Gbit/s"))
    for pair in used[:MAX_ROWS]:
        table.add_row(
            f"{pair['node_a']} - {pair['node_b']}",
            _number(pair["operations"]),
            _number(pair["a_to_b"]["total_bytes"]),
            _number(pair["b_to_a"]["total_bytes"]),
            f"{pair['average_estimated_throughput_gbps']:.2f}",
        )
    console.print(table)


def _print_ranks(console, ranks: list[dict]) -> None:
    order = sorted(ranks, key=lambda row: -row["wait_time_ms"])
    table = _table("ranks, longest wait first", ("rank", "node", "waited ms", "time-outs", "collectives", "transfers"))
    for row in order[:8]:
        cells = row["timeouts"], row["collective_calls"], row["point_to_point_calls"]
        table.add_row(str(row["rank"]), row["node"], f"{row['wait_time_ms']:.1f}", *map(str, cells))
    console.print(table)


def _print_failures(console, resilience: dict) -> None:
    from rich.text import Text

    for event in resilience["failure_events"]:
        where = f"rank {event['global_rank']}" if event["global_rank"] is not None else "no single rank"
        what = f"failure {event['index']}: {event['source']}, {event['operation'] or '-'}, {where}"
        console.print(Text(f"{what}: {event['error_detail']}", style="red"))
    for event in resilience["recovery_events"]:
        console.print(f"recovery {event['index']}: communicator {event['new_comm_id']} of {event['surviving_ranks']}")
    if not resilience["failure_count"]:
        console.print("no failures")
