"""Show known clusters as cluster files, and check cluster files."""

import sys
from pathlib import Path

from fakegpu.cli._parser import Parser

EXAMPLES = """examples:
  fgpu cluster list
  fgpu cluster show dgx-h100 --nodes 4 > cluster.yaml
  fgpu cluster check cluster.yaml
  fgpu cluster profiles
"""


def main(argv: list[str] | None = None) -> int:
    parser = Parser("fgpu cluster", description=__doc__, epilog=EXAMPLES)
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|show|check|profiles", parser_class=_sub)
    actions.add_parser("list", help="presets that can be named instead of a file")
    show = actions.add_parser("show", help="print a preset or a file's cluster as a valid cluster file")
    show.add_argument("cluster", metavar="PRESET|FILE")
    show.add_argument("--nodes", type=int, help="nodes (1 for a preset, all of a file)")
    show.add_argument("--gpus-per-node", type=int, help="GPUs of each node (all)")
    check = actions.add_parser("check", help="validate cluster files")
    check.add_argument("files", nargs="+", metavar="FILE")
    actions.add_parser("profiles", help="GPU profiles that a cluster file can name")
    arguments = parser.parse_args(argv)
    return {"list": _list, "show": _show, "check": _check, "profiles": _profiles}[arguments.action](arguments)


def _sub(**kwargs) -> Parser:
    return Parser(kwargs.pop("prog"), **kwargs)


def _list(arguments) -> int:
    from fakegpu.cluster import presets

    width = max(map(len, presets.table()))
    for name, preset in presets.table().items():
        print(f"{name:<{width}}  {preset.description}")
    return 0


def _show(arguments) -> int:
    from fakegpu.cluster import presets

    spec = presets.resolve(arguments.cluster, arguments.nodes, arguments.gpus_per_node)
    print(presets.render(spec), end="")
    return 0


def _check(arguments) -> int:
    from fakegpu import cluster

    failed = 0
    for name in arguments.files:
        try:
            spec = cluster.load(Path(name))
        except cluster.ClusterError as error:
            print(error, file=sys.stderr)
            failed += 1
        else:
            print(f"{name}: OK, {spec.node_count} nodes, {spec.world_size} ranks")
    return 2 if failed else 0


def _profiles(arguments) -> int:
    from fakegpu import profiles

    for name in profiles.names():
        gpu = profiles.load(name)
        link = f"NVLink {gpu.nvlink.version} x{gpu.nvlink.links}" if gpu.nvlink else f"PCIe {gpu.pcie.generation}"
        print(f"{name:<30} sm_{gpu.sm:<4} {gpu.memory_bytes / 2**30:6.1f} GiB  {link:<13} {gpu.name}")
    return 0
