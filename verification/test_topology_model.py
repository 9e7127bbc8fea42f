"""Who sends what to whom in the model, against arithmetic done here: rings, trees, NVLS, placement, switch levels.

usage: test_topology_model.py [--json EVIDENCE]
"""

import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import attrs  # noqa: E402
import ranks  # noqa: E402
from clients import equal, expect  # noqa: E402

from fakegpu import cluster  # noqa: E402
from fakegpu.cluster import ClusterSpec, presets  # noqa: E402
from fakegpu.timing import Operation, TimeModel  # noqa: E402
from fakegpu.timing.restrict import Restriction  # noqa: E402

DATA = Path(__file__).resolve().parent / "data"
MIB = 1 << 20


def traffic(spec: ClusterSpec, kind: str, count: int, algorithm: str = "ring", members=None, root=0) -> dict:
    """Bytes from rank to rank of a float32 operation."""
    model = TimeModel(spec, Restriction.parse(algorithm, strict=True) if algorithm else None)
    operation = Operation(kind, members or tuple(range(spec.world_size)), count, 4, root=root)
    return model.traffic(operation, model.estimate(operation).algorithm)


def between_nodes(spec: ClusterSpec, pairs: dict) -> dict:
    found = defaultdict(int)
    for (src, dst), size in pairs.items():
        if spec.node_index(src) != spec.node_index(dst):
            found[spec.node_index(src), spec.node_index(dst)] += size
    return dict(found)


def conservation() -> dict:
    """What every rank must receive at least, whatever the algorithm; rings and trees add up to known totals."""
    spec = ClusterSpec.default(3, 4, "h100")
    n, count = 12, 1003
    size = 4 * count
    equal("ring all_reduce total", sum(traffic(spec, "all_reduce", count).values()), 2 * (n - 1) * size)
    equal("tree all_reduce total", sum(traffic(spec, "all_reduce", count, "tree").values()), 2 * (n - 1) * size)
    equal("nvlstree all_reduce total", sum(traffic(spec, "all_reduce", count, "nvlstree").values()),
          3 * 2 * 3 * size + 2 * 2 * size)
    equal("all_gather total", sum(traffic(spec, "all_gather", count).values()), n * (n - 1) * size)
    equal("reduce_scatter total", sum(traffic(spec, "reduce_scatter", count).values()), n * (n - 1) * size)
    equal("all_to_all total", sum(traffic(spec, "all_to_all", count, "").values()), n * (n - 1) * size)
    for kind in ("broadcast", "reduce"):
        equal(f"{kind} total", sum(traffic(spec, kind, count, root=7).values()), (n - 1) * size)
    for kind in ("gather", "scatter"):
        equal(f"{kind} total", sum(traffic(spec, kind, count, "", root=7).values()), (n - 1) * size)
    return {}


def rings_enter_a_node_once() -> dict:
    """Ranks 0,2 | 1,3: the ring is 0 2 1 3 and crosses twice, not four times."""
    spec = cluster.load(DATA / "cluster_tcp_4r.yaml")
    pairs = traffic(spec, "all_gather", 5)
    equal("edges", set(pairs), {(0, 2), (2, 1), (1, 3), (3, 0)})
    equal("between nodes", between_nodes(spec, pairs), {(0, 1): 3 * 20, (1, 0): 3 * 20})
    equal("a half-world stays at home", between_nodes(spec, traffic(spec, "all_gather", 5, members=(1, 3))), {})
    return {}


def uneven_slices() -> dict:
    """Four ranks, ten elements: slices 3 3 2 2; an edge carries 2 x 10 minus two neighbouring slices."""
    spec = ClusterSpec.default(2, 2, "a100")
    expected = {(0, 1): 20 - 3 - 2, (1, 2): 20 - 2 - 2, (2, 3): 20 - 2 - 3, (3, 0): 20 - 3 - 3}
    equal("ring all_reduce", traffic(spec, "all_reduce", 10), {edge: 4 * count for edge, count in expected.items()})
    return {}


def trees_share_the_load() -> dict:
    """Double tree: on two nodes the payload crosses once each way; on many, no node passes on more than twice it."""
    two = ClusterSpec.default(2, 4, "a100")
    equal("two nodes", between_nodes(two, traffic(two, "all_reduce", 100, "tree")), {(0, 1): 400, (1, 0): 400})
    for nodes in (3, 4, 5, 8, 13, 16):
        spec = ClusterSpec.default(nodes, 2, "a100")
        out = defaultdict(int)
        for (src, _), size in between_nodes(spec, traffic(spec, "all_reduce", 100, "tree")).items():
            out[src] += size
        expect(max(out.values()) <= 800, f"{nodes} nodes: a node sends {max(out.values())} bytes of a payload of 400")
        equal(f"{nodes} nodes: every node takes part", len(out), nodes)
    return {}


def bandwidth_of_the_narrowest_link() -> dict:
    """Oversubscription, NICs, efficiency and switch levels change the time as arithmetic says."""
    spec = presets.resolve("dgx-a100", 4)
    big = Operation("all_to_all", tuple(range(32)), 8 * MIB, 4)

    def time(**changes) -> float:
        return TimeModel(attrs.evolve(spec, inter_node=attrs.evolve(spec.inter_node, **changes))).estimate(big).time_us

    base = time()
    expect(1.8 < time(bandwidth_gbps=100) / base < 2.05, "half the NIC rate, twice the time")
    expect(1.8 < time(nics=4) / base < 2.05, "half the NICs, twice the time")
    expect(1.8 < time(oversubscription=2) / base < 2.05, "oversubscription 2, twice the time")
    levels = (cluster.SwitchLevel(2, 3.0), cluster.SwitchLevel(4, 7.0))
    text = "uplinks of the lower switches count, those of the upper one are not crossed"
    expect(2.7 < time(switches=levels) / base < 3.05, text)
    pair = Operation("all_to_all", tuple(range(16)), 8 * MIB, 4)
    inside = TimeModel(attrs.evolve(spec, inter_node=attrs.evolve(spec.inter_node, switches=levels))).estimate(pair)
    equal("nothing leaves the lower switch", inside.time_us, TimeModel(spec).estimate(pair).time_us)
    found = TimeModel(attrs.evolve(spec, inter_node=attrs.evolve(spec.inter_node, oversubscription=2))).estimate(big)
    expect(0.4 < found.contention_us / found.time_us < 0.55, "half of the time is contention")
    expect(found.bottleneck.startswith("inter_node infiniband"), f"bottleneck {found.bottleneck}")
    return {}


def restrictions() -> dict:
    """NCCL_ALGO and NCCL_PROTO choose, exclude, and refuse by name."""
    spec = presets.resolve("dgx-h100", 2)
    operation = Operation("all_reduce", tuple(range(16)), 64 * MIB, 1)

    def chosen(*names) -> tuple[str, str]:
        found = TimeModel(spec, Restriction.parse(*names, strict=True)).estimate(operation)
        return found.algorithm, found.protocol

    equal("ring", chosen("Ring")[0], "ring")
    equal("tree", chosen("allreduce:tree;broadcast:ring")[0], "tree")
    equal("ring, LL", chosen("RING", "LL"), ("ring", "LL"))
    expect(chosen("^ring,tree")[0] == "nvlstree", "what is excluded is not chosen")
    for names in (("quantum",), ("ring", "LL256"), ("nosuch:ring",)):
        try:
            Restriction.parse(*names)
        except ValueError as error:
            expect("expected" in str(error), str(error))
        else:
            raise AssertionError(f"{names} was accepted")
    return {}


if __name__ == "__main__":
    checks = [
        ("totals", conservation),
        ("rings enter a node once", rings_enter_a_node_once),
        ("uneven slices", uneven_slices),
        ("double trees", trees_share_the_load),
        ("narrowest link", bandwidth_of_the_narrowest_link),
        ("NCCL_ALGO and NCCL_PROTO", restrictions),
    ]
    sys.exit(ranks.main("topology_model", checks, sys.argv[1:]))
