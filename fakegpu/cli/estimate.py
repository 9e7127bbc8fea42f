"""Estimate how long a collective takes on a described cluster, as an nccl-tests-style table."""

import csv
import json
import sys
from pathlib import Path
from statistics import median

from fakegpu import settings
from fakegpu.cli._parser import Parser
from fakegpu.errors import SettingsError, SpecError

EXAMPLES = """examples:
  fgpu estimate --cluster dgx-h100 --nodes 2 --collective all_reduce -b 8 -e 8G -f 2
  fgpu estimate --cluster cluster.yaml --collective all_gather --sizes 1024,65536 --json
  fgpu estimate --cluster dgx-a100 --explain --sizes 64M
  fgpu estimate --cluster p5 --compare measured.csv
"""
COLLECTIVES = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send",
)
_ALIASES = {"alltoall": "all_to_all", "sendrecv": "send", "send_recv": "send"}
_MANY_BLOCKS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


def main(argv: list[str] | None = None) -> int:
    from fakegpu.cluster import presets
    from fakegpu.timing import TimeModel
    from fakegpu.timing.restrict import Restriction

    arguments = _parser().parse_args(argv)
    spec = presets.resolve(arguments.cluster, arguments.nodes, arguments.gpus_per_node)
    algorithm, protocol = settings.nccl_restriction()
    restriction = Restriction.parse(arguments.algo or algorithm, arguments.proto or protocol, strict=True)
    model = TimeModel(spec, restriction)
    if arguments.compare:
        return _compare(model, arguments)
    kind = collective(arguments.collective or "all_reduce")
    rows = [_row(model, kind, size, arguments.explain) for size in _sizes(arguments)]
    if arguments.json:
        print(json.dumps(rows, indent=2))
    else:
        _print_table(model, kind, rows, arguments.explain)
    return 0


def _parser() -> Parser:
    parser = Parser("fgpu estimate", description=__doc__, epilog=EXAMPLES)
    parser.add_argument("--cluster", default="dgx-h100", metavar="FILE|PRESET", help="see `fgpu cluster list`")
    parser.add_argument("--nodes", type=int, help="nodes (1 for a preset, all of a file)")
    parser.add_argument("--gpus-per-node", type=int, help="GPUs of each node that take part (all)")
    parser.add_argument("--collective", metavar="KIND", help=f"one of {', '.join(COLLECTIVES)}")
    parser.add_argument("-b", default="8", metavar="SIZE", help="smallest size (8)")
    parser.add_argument("-e", default="8G", metavar="SIZE", help="largest size (8G)")
    parser.add_argument("-f", type=int, default=2, metavar="N", help="factor between sizes (2)")
    parser.add_argument("-i", metavar="SIZE", help="fixed step between sizes instead of a factor")
    parser.add_argument("--sizes", metavar="SIZE,...", help="these sizes, for example 1024,64K")
    parser.add_argument("--algo", metavar="NAMES", help="restrict the algorithm as NCCL_ALGO does")
    parser.add_argument("--proto", metavar="NAMES", help="restrict the protocol as NCCL_PROTO does")
    parser.add_argument("--explain", action="store_true", help="latency part, bandwidth part, bottleneck link")
    parser.add_argument("--compare", metavar="TABLE.csv", help="error against measured times, per size and median")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def collective(name: str) -> str:
    """The kind that a user's spelling means."""
    plain = name.lower().replace("-", "_")
    by_plain = {kind.replace("_", ""): kind for kind in COLLECTIVES}
    found = _ALIASES.get(plain) or by_plain.get(plain.replace("_", ""))
    if found is None:
        raise SettingsError(f"--collective {name}: expected one of {', '.join(COLLECTIVES)}")
    return found


def _sizes(arguments) -> list[int]:
    def parse(flag: str, text: str) -> int:
        value = settings.parse_bytes(text)
        if value is None or value < 0:
            raise SettingsError(f"{flag} {text}: expected a size, for example 65536, 64K or 8G")
        return value

    if arguments.sizes:
        return [parse("--sizes", part) for part in arguments.sizes.split(",")]
    first, last = parse("-b", arguments.b), parse("-e", arguments.e)
    step = parse("-i", arguments.i) if arguments.i else 0
    if first > last:
        raise SettingsError(f"-b {arguments.b}: expected at most -e {arguments.e}")
    if arguments.i and not step:
        raise SettingsError("-i 0: expected more than 0")
    if not arguments.i and (arguments.f < 2 or not first):
        raise SettingsError(f"-b {arguments.b} -f {arguments.f}: expected -b of 1 or more and -f of 2 or more")
    sizes = [first]
    while (following := sizes[-1] + step if step else sizes[-1] * arguments.f) <= last:
        sizes.append(following)
        if len(sizes) > 100_000:
            raise SettingsError(f"-i {arguments.i}: more than 100000 sizes")
    return sizes


def estimate(model, kind: str, size: int):
    """The model's answer for nccl-tests' size argument, over every rank of the cluster."""
    from fakegpu.timing import Operation

    ranks = tuple(range(model.cluster.world_size))
    if kind == "send":
        # the farthest pair: across nodes where there are several
        return model.estimate(Operation("send", (ranks[0], ranks[-1]), size, 1, src=ranks[0], dst=ranks[-1]))
    count = max(1, size // len(ranks)) if kind in _MANY_BLOCKS and size else size
    return model.estimate(Operation(kind, ranks, count, 1, root=0))


def _row(model, kind: str, size: int, explain: bool) -> dict:
    from fakegpu.timing import bus_factor

    found = estimate(model, kind, size)
    algbw = size / found.time_us / 1e3 if found.time_us else 0.0
    row = {
        "size_bytes": size,
        "time_us": round(found.time_us, 3),
        "algbw_GBps": round(algbw, 4),
        "busbw_GBps": round(algbw * bus_factor(kind, model.cluster.world_size), 4),
        "algorithm": found.algorithm,
        "protocol": found.protocol,
    }
    if explain:
        row |= {
            "steps": found.steps,
            "latency_us": round(found.latency_us, 3),
            "bandwidth_us": round(found.bandwidth_us, 3),
            "contention_us": round(found.contention_us, 3),
            "bottleneck": found.bottleneck,
        }
    return row


def _print_table(model, kind: str, rows: list[dict], explain: bool) -> None:
    spec = model.cluster
    gpus = ", ".join(dict.fromkeys(gpu for node in spec.nodes for gpu in node.gpus))
    print(f"# {kind} on {spec.name}: {spec.node_count} nodes, {spec.world_size} ranks, {gpus}; modelled, not measured")
    head = f"#{'size':>12} {'time':>12} {'algbw':>9} {'busbw':>9}  {'algo':<9} {'proto':<7}"
    units = f"#{'(B)':>12} {'(us)':>12} {'(GB/s)':>9} {'(GB/s)':>9}"
    if explain:
        head += f" {'steps':>5} {'latency':>10} {'bandwidth':>11} {'contention':>10}  bottleneck"
        units += f"{'':>27}{'(us)':>10} {'(us)':>11} {'(us)':>10}"
    print(head)
    print(units)
    for row in rows:
        line = (
            f"{row['size_bytes']:>13} {row['time_us']:>12.2f} {row['algbw_GBps']:>9.2f} {row['busbw_GBps']:>9.2f}"
            f"  {row['algorithm']:<9} {row['protocol']:<7}"
        )
        if explain:
            line += (
                f" {row['steps']:>5} {row['latency_us']:>10.2f} {row['bandwidth_us']:>11.2f}"
                f" {row['contention_us']:>10.2f}  {row['bottleneck']}"
            )
        print(line)


def read_table(path: str) -> dict[str, list[tuple[int, float]]]:
    """Measured (size, microseconds) per collective from a CSV with `collective,size_bytes,time_us`."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read ({error})") from error
    start = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")), 0)
    table: dict[str, list[tuple[int, float]]] = {}
    for number, row in enumerate(csv.DictReader(lines[start:]), start + 2):
        try:
            kind = collective(row["collective"])
            size, time = int(row["size_bytes"]), float(row["time_us"])
        except (KeyError, TypeError, ValueError) as error:
            expected = "columns collective, size_bytes, time_us"
            raise SpecError(f"{path}:{number}: found {error}, expected {expected}") from error
        if not time > 0:
            raise SpecError(f"{path}:{number}: time_us: found {time}, expected more than 0")
        table.setdefault(kind, []).append((size, time))
    if not table:
        raise SpecError(f"{path}: found no rows, expected columns collective, size_bytes, time_us")
    return table


def _compare(model, arguments) -> int:
    table = read_table(arguments.compare)
    if arguments.collective:
        kind = collective(arguments.collective)
        if kind not in table:
            raise SettingsError(f"--collective {kind}: {arguments.compare} has only {', '.join(table)}")
        table = {kind: table[kind]}
    result = []
    for kind, rows in table.items():
        compared = []
        for size, measured in rows:
            found = estimate(model, kind, size)
            error = (found.time_us / measured - 1) * 100
            compared.append(
                {
                    "size_bytes": size,
                    "measured_us": measured,
                    "time_us": round(found.time_us, 3),
                    "error_percent": round(error, 2),
                    "algorithm": found.algorithm,
                    "protocol": found.protocol,
                }
            )
        middle = round(median(abs(row["error_percent"]) for row in compared), 2)
        result.append({"collective": kind, "median_absolute_error_percent": middle, "rows": compared})
    if arguments.json:
        print(json.dumps(result, indent=2))
        return 0
    for part in result:
        print(f"# {part['collective']} on {model.cluster.name}, measured: {arguments.compare}")
        print(f"#{'size':>12} {'measured':>12} {'modelled':>12} {'error':>8}  {'algo':<9} proto")
        for row in part["rows"]:
            print(
                f"{row['size_bytes']:>13} {row['measured_us']:>12.2f} {row['time_us']:>12.2f}"
                f" {row['error_percent']:>+7.1f}%  {row['algorithm']:<9} {row['protocol']}"
            )
        print(f"# median absolute error: {part['median_absolute_error_percent']:.1f} %")
    if len(result) > 1:
        errors = [abs(row["error_percent"]) for part in result for row in part["rows"]]
        print(f"# over all {len(errors)} rows: {median(errors):.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
