"""What a bandwidth run is to do, parsed and checked: endpoint, world, ranks run here, sizes, iterations.

Flags are the seed's and nccl-tests' letters. Every wrong combination is refused here, before anything is started.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import attrs

from fakegpu.cli._bandwidth.workload import COLLECTIVES, ROOTED, Workload, parse_type
from fakegpu.cli._parser import Parser
from fakegpu.cluster import ClusterSpec, Fabric, load
from fakegpu.dtypes import DType, ReduceOp
from fakegpu.errors import SettingsError
from fakegpu.settings import Address, parse_address, parse_bytes


@attrs.frozen
class Plan:
    """A checked run. `compared` is what all ranks of a session must agree on."""

    address: Address
    listens: bool
    cluster: ClusterSpec
    world_size: int
    ranks: tuple[int, ...]
    session: str
    collective: str
    dtype: DType
    op: ReduceOp
    root: int
    sizes: tuple[int, ...]
    warmup: int
    iterations: int
    in_place: bool
    check: bool
    blocking: bool
    timeout_s: float
    profile: str

    def workload(self, size: int) -> Workload:
        return Workload(self.collective, self.dtype, self.op, self.root, self.world_size, size)

    def compared(self) -> str:
        """The parameters that must be the same on every host, as one JSON line; keys are the flags."""
        sizes = (
            self.sizes[0] if len(self.sizes) == 1 else f"{self.sizes[0]}..{self.sizes[-1]} ({len(self.sizes)} sizes)"
        )
        return json.dumps(
            {
                "--collective": self.collective,
                "--datatype": self.dtype.label,
                "--op": self.op.label,
                "--root": self.root,
                "--size": sizes,
                "--warmup": self.warmup,
                "--iterations": self.iterations,
                "--in-place": self.in_place,
            }
        )


def make_parser() -> Parser:
    """The subcommand's flags."""
    parser = Parser("fgpu bandwidth", description="Measure and check a collective over TCP; one process per rank.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--listen", metavar="HOST:PORT", help="start a coordinator here and run all ranks")
    where.add_argument("--connect", metavar="HOST:PORT", help="run --ranks against a coordinator that is there")
    world = parser.add_argument_group("world")
    world.add_argument("--nodes", type=int, metavar="N", help="logical nodes (2)")
    world.add_argument("--ranks-per-node", type=int, metavar="N", help="ranks of each (1)")
    world.add_argument("--world-size", type=int, metavar="N", help="with --connect: ranks of all hosts together")
    world.add_argument(
        "--ranks", metavar="LIST", help="with --connect: the ranks to run here, for example 0 or 0,2 or 0-3"
    )
    world.add_argument("--session", metavar="NAME", help="the same name on every host")
    _add_measurement(parser.add_argument_group("measurement"))
    model = parser.add_argument_group("modelled cluster and results")
    model.add_argument("--profile", default="a100", help="GPU profile of every rank (a100)")
    model.add_argument("--cluster-config", metavar="FILE", help="cluster file instead of the next two")
    model.add_argument(
        "--interconnect-bandwidth-gbps", type=float, default=25.0, metavar="X", help="model, Gbit/s (25)"
    )
    model.add_argument("--interconnect-latency-us", type=float, default=50.0, metavar="X", help="model (50)")
    model.add_argument("--cluster-report", metavar="FILE", help="with --listen: the coordinator's JSON report")
    model.add_argument("-J", "--json", metavar="FILE", type=Path, help="write the result as JSON")
    model.add_argument("--format", choices=("nccl", "osu"), default="nccl", help="table on stdout (nccl)")
    model.add_argument("--quiet", action="store_true", help="no table")
    model.add_argument("--verbose", action="store_true", help="tracebacks")
    return parser


def _add_measurement(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--collective", choices=COLLECTIVES, default="all_reduce", metavar="NAME", help=", ".join(COLLECTIVES)
    )
    group.add_argument("--size", metavar="BYTES", help="one size, for example 4MiB (the default)")
    group.add_argument("-b", "--minbytes", metavar="BYTES", help="sweep: first size")
    group.add_argument("-e", "--maxbytes", metavar="BYTES", help="sweep: last size")
    group.add_argument("-f", "--stepfactor", type=int, metavar="N", help="sweep: factor between sizes (2)")
    group.add_argument("-i", "--stepbytes", metavar="BYTES", help="sweep: increment between sizes")
    group.add_argument(
        "-w", "--warmup", type=int, default=2, metavar="N", help="iterations before the measured ones (2)"
    )
    group.add_argument("-n", "--iterations", type=int, default=10, metavar="N", help="measured iterations (10)")
    group.add_argument("-c", "--check", type=int, default=1, metavar="0|1", help="check every element (1)")
    group.add_argument("-o", "--op", default="sum", metavar="NAME", help="sum, prod, max, min or avg (sum)")
    group.add_argument("-d", "--datatype", default="float", metavar="NAME", help="nccl-tests' name (float)")
    group.add_argument("-r", "--root", type=int, default=0, metavar="RANK", help="of rooted collectives (0)")
    group.add_argument(
        "-z",
        "--blocking",
        type=int,
        default=1,
        metavar="0|1",
        help="wait for each operation (always so on host buffers)",
    )
    group.add_argument(
        "-T", "--timeout", type=float, default=30.0, metavar="SECONDS", help="rendezvous and operation (30)"
    )
    group.add_argument("--in-place", action="store_true", help="measure in-place operations, too")


def parse(argv: list[str] | None) -> tuple[Plan, argparse.Namespace]:
    """A checked plan and the options that only concern output."""
    options = make_parser().parse_args(argv)
    address = parse_address(options.listen or options.connect, "tcp", "--listen" if options.listen else "--connect")
    world_size, ranks = _world(options)
    cluster = _cluster(options, world_size)
    _positive(options)
    root = options.root
    if options.collective in ROOTED and not 0 <= root < world_size:
        raise SettingsError(f"--root {root}: expected 0 to {world_size - 1}")
    dtype, op = parse_type(options.datatype), ReduceOp.parse(options.op)
    if op == ReduceOp.PREMULSUM:
        raise SettingsError("--op premulsum: expected sum, prod, max, min or avg")
    plan = Plan(
        address,
        bool(options.listen),
        cluster,
        world_size,
        ranks,
        options.session or "",
        options.collective,
        dtype,
        op,
        root,
        _sizes(options),
        options.warmup,
        options.iterations,
        options.in_place,
        bool(options.check),
        bool(options.blocking),
        options.timeout,
        options.profile,
    )
    smallest = plan.workload(plan.sizes[0])
    if smallest.count < 1:
        raise SettingsError(
            f"--size {plan.sizes[0]}: too small for one {dtype.label} element of each of {world_size} ranks"
        )
    return plan, options


def _world(options: argparse.Namespace) -> tuple[int, tuple[int, ...]]:
    if options.listen:
        for flag, value in (("--ranks", options.ranks), ("--session", options.session)):
            if value is not None:
                raise SettingsError(f"{flag} goes with --connect; --listen runs all ranks here")
        world_size = options.world_size or (options.nodes or 2) * (options.ranks_per_node or 1)
        if options.world_size and options.nodes and options.ranks_per_node:
            if options.world_size != options.nodes * options.ranks_per_node:
                raise SettingsError(f"--world-size {options.world_size}: expected --nodes x --ranks-per-node")
        return world_size, tuple(range(world_size))
    if options.cluster_report:
        raise SettingsError("--cluster-report goes with --listen", "give the coordinator itself --report FILE")
    if options.world_size is None or options.ranks is None:
        raise SettingsError(
            "--connect needs --world-size and --ranks", "for example --world-size 2 --ranks 0 --session NAME"
        )
    if not options.session:
        raise SettingsError("--connect needs --session", "any name, the same on every host")
    ranks = _rank_list(options.ranks)
    wrong = [rank for rank in ranks if rank >= options.world_size]
    if wrong:
        raise SettingsError(f"--ranks {options.ranks}: rank {wrong[0]}, expected 0 to {options.world_size - 1}")
    return options.world_size, ranks


def _rank_list(text: str) -> tuple[int, ...]:
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise SettingsError(f"--ranks {text}: expected ranks such as 0 or 0,2 or 0-3")
        ranks += range(int(first), int(last if dash else first) + 1)
    if len(set(ranks)) != len(ranks) or not ranks:
        raise SettingsError(f"--ranks {text}: expected each rank once")
    return tuple(ranks)


def _cluster(options: argparse.Namespace, world_size: int) -> ClusterSpec:
    """The modelled cluster: the file, or equal nodes joined by the given interconnect."""
    if options.cluster_config:
        cluster = load(options.cluster_config)
        if cluster.world_size != world_size:
            raise SettingsError(
                f"{options.cluster_config}: describes {cluster.world_size} ranks, this run has {world_size}"
            )
        return cluster
    if options.interconnect_bandwidth_gbps <= 0 or options.interconnect_latency_us < 0:
        raise SettingsError("--interconnect-bandwidth-gbps must be above 0, --interconnect-latency-us 0 or more")
    nodes = options.nodes or (2 if options.listen and not options.world_size else options.world_size or 2)
    per_node = options.ranks_per_node or max(world_size // nodes, 1)
    if nodes < 1 or per_node < 1 or nodes * per_node != world_size:
        raise SettingsError(
            f"{world_size} ranks do not split evenly: found --nodes {nodes} x --ranks-per-node {per_node}"
        )
    inter = Fabric("tcp", options.interconnect_bandwidth_gbps, options.interconnect_latency_us)
    return attrs.evolve(ClusterSpec.default(nodes, per_node, options.profile, "bandwidth"), inter_node=inter)


def _positive(options: argparse.Namespace) -> None:
    for flag, value, least in (
        ("--iterations", options.iterations, 1),
        ("--warmup", options.warmup, 0),
        ("--timeout", options.timeout, 0.001),
    ):
        if value < least:
            raise SettingsError(f"{flag} {value}: expected at least {least}")


def _bytes(flag: str, text: str) -> int:
    value = parse_bytes(text)
    if value is None or value < 1:
        raise SettingsError(f"{flag} {text}: expected a number of bytes such as 65536 or 4MiB")
    return value


def _sizes(options: argparse.Namespace) -> tuple[int, ...]:
    """One size, or the sweep from -b to -e by a factor or an increment."""
    if options.size and (options.minbytes or options.maxbytes):
        raise SettingsError("--size and -b/-e exclude each other")
    if not options.minbytes and not options.maxbytes:
        return (_bytes("--size", options.size or "4MiB"),)
    first = _bytes("-b", options.minbytes or options.maxbytes)
    last = _bytes("-e", options.maxbytes or options.minbytes)
    factor = options.stepfactor or 2
    step = _bytes("-i", options.stepbytes) if options.stepbytes else 0
    if last < first or (not step and factor < 2):
        raise SettingsError(f"-b {first} -e {last} -f {factor}: expected -b <= -e and a factor of at least 2")
    sizes = [first]
    while (following := sizes[-1] + step if step else sizes[-1] * factor) <= last:
        sizes.append(following)
    return tuple(sizes)
