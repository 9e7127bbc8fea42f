"""What holds of every modelled curve, measured or not: time grows with size, and no wire carries more than it can."""

import functools
import math

import attrs
import pytest
from fakegpu.cluster import ClusterSpec, SwitchLevel, presets
from fakegpu.timing import Operation, TimeModel, bus_factor, estimate_group
from fakegpu.timing.restrict import Restriction

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter")
MANY_BLOCKS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
SIZES = [1 << i for i in range(3, 35)]
NODES = (1, 2, 3, 8, 128)
RESTRICTIONS = {
    "ring": ("ring", None), "tree": ("tree", None), "LL": (None, "LL"), "LL128": (None, "LL128"),
    "Simple": (None, "Simple"), "nvls": ("nvls,nvlstree", None),
}
GIB = 1 << 30


@functools.cache
def cluster(preset, nodes):
    return presets.resolve(preset, nodes)


def curve(model, kind):
    """(size, estimate) over 8 bytes to 16 GiB, as nccl-tests counts sizes."""
    ranks = tuple(range(model.cluster.world_size))
    for size in SIZES:
        count = size // len(ranks) if kind in MANY_BLOCKS else size
        if count:
            yield size, model.estimate(Operation(kind, ranks, count, 1, root=0))


def check_growth(model, kind):
    """A protocol switch that comes late costs NCCL's users up to a third, and never more than that in the model."""
    last = None
    for size, found in curve(model, kind):
        assert math.isfinite(found.time_us)
        assert found.time_us > 0
        assert found.time_us == pytest.approx(found.latency_us + found.bandwidth_us)
        if last is not None:
            same = (last.algorithm, last.protocol) == (found.algorithm, found.protocol)
            slack = 1 - 1e-9 if same else 0.75
            assert found.time_us >= last.time_us * slack, (kind, size, last, found)
        last = found


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("preset", presets.table())
def test_time_grows_with_size(preset, nodes):
    model = TimeModel(cluster(preset, nodes))
    for kind in KINDS:
        check_growth(model, kind)


@pytest.mark.parametrize("names", RESTRICTIONS.values(), ids=RESTRICTIONS)
@pytest.mark.parametrize("preset", presets.table())
def test_time_grows_with_size_under_a_restriction(preset, names):
    for nodes in (1, 4):
        model = TimeModel(cluster(preset, nodes), Restriction.parse(*names))
        for kind in ("all_reduce", "all_gather"):
            check_growth(model, kind)


@pytest.mark.parametrize("preset", presets.table())
def test_no_wire_carries_more_than_it_can(preset):
    for nodes in NODES:
        spec = cluster(preset, nodes)
        n, gpus = spec.world_size, spec.world_size // nodes
        inside = spec.intra_node.bandwidth_gbps / 8e-3  # bytes per microsecond
        nics = spec.inter_node.bandwidth_gbps / 8e-3 * spec.inter_node.nics
        share = {"all_reduce": 2 * (nodes - 1) / nodes, "all_to_all": gpus * (n - gpus) / n}
        for kind in KINDS[:4]:
            for size, found in curve(TimeModel(spec), kind):
                leaving = share.get(kind, (nodes - 1) / nodes) * size
                assert found.time_us > leaving / nics, (nodes, kind, size)
                most = 1.2 if found.algorithm.startswith("nvls") else 1.0
                if nodes == 1:
                    assert size * bus_factor(kind, n) / found.time_us < most * inside, (kind, size)


@pytest.mark.parametrize("preset", presets.table())
def test_more_nodes_do_not_reduce_faster(preset):
    for size in (8, 1 << 20, GIB):
        times = [
            TimeModel(spec).estimate(Operation("all_reduce", tuple(range(spec.world_size)), size, 1)).time_us
            for spec in (cluster(preset, nodes) for nodes in (2, 4, 16, 64))
        ]
        assert all(b >= 0.97 * a for a, b in zip(times, times[1:], strict=False)), (size, times)


def test_one_gpu_per_node_uses_the_nic_beside_it():
    """Not the other GPUs' NICs, whether it is alone on its node or the others just take no part."""
    whole, alone = presets.resolve("dgx-h100", 2), presets.resolve("dgx-h100", 2, 1)
    found = TimeModel(whole).estimate(Operation("all_reduce", (0, 8), GIB, 1)).time_us
    assert 40 < GIB / found / 1e3 < 50  # GB/s of one 400 Gbit/s NIC
    assert TimeModel(alone).estimate(Operation("all_reduce", (0, 1), GIB, 1)).time_us == pytest.approx(found)


def test_communicators_that_share_a_nic_slow_each_other_down():
    def both(preset, *pairs):
        model = TimeModel(presets.resolve(preset, 2))
        return estimate_group(model, [Operation("all_reduce", pair, GIB, 1) for pair in pairs])

    one = both("dgx-h100", (0, 8))
    assert both("dgx-h100", *[(i, i + 8) for i in range(8)]) == pytest.approx(one)  # a NIC for each
    shared = both("p4de", (0, 8))  # four NICs for eight GPUs
    assert both("p4de", (0, 8), (2, 10)) == pytest.approx(shared)
    assert both("p4de", (0, 8), (1, 9)) > 1.9 * shared


def test_links_inside_and_between_nodes_are_busy_at_the_same_time():
    model = TimeModel(presets.resolve("dgx-a100", 2))
    across = Operation("all_reduce", (0, 8), GIB, 1)
    inside = Operation("all_reduce", tuple(range(8)), GIB, 1)
    alone = max(estimate_group(model, [operation]) for operation in (across, inside))
    assert estimate_group(model, [across, inside]) == pytest.approx(alone, rel=0.05)


def test_a_part_of_a_cube_mesh_has_a_part_of_its_links():
    def busbw(gpus):
        model = TimeModel(presets.resolve("dgx1-v100", 1))
        ranks = tuple(range(gpus))
        time = model.estimate(Operation("all_reduce", ranks, GIB, 1)).time_us
        return bus_factor("all_reduce", gpus) * GIB / time / 1e3

    assert 15 < busbw(2) < 25  # one link of NVLink 2
    assert 60 < busbw(4) < 100
    assert 100 < busbw(8) < 150


def test_geforce_cards_talk_through_host_memory():
    def time(gpu):
        model = TimeModel(ClusterSpec.default(1, 2, gpu))
        return model.estimate(Operation("all_reduce", (0, 1), GIB, 1)).time_us

    assert time("rtx4090") > 1.6 * time("l40s")


def test_what_leaves_a_rail_crosses_the_uplinks_unless_nvlink_carries_it():
    def pair(preset, dst, rails):
        spec = presets.resolve(preset, 2)
        levels = (SwitchLevel(nodes=2, oversubscription=4), SwitchLevel(nodes=8, latency_us=1))
        inter = attrs.evolve(spec.inter_node, rails=rails, switches=levels)
        model = TimeModel(attrs.evolve(spec, inter_node=inter))
        return model.estimate(Operation("send", (0, dst), GIB, 1, src=0, dst=dst)).time_us

    assert pair("pcie-l40s", 9, rails=True) > 3 * pair("pcie-l40s", 8, rails=True)
    assert pair("pcie-l40s", 9, rails=False) == pytest.approx(pair("pcie-l40s", 8, rails=False))
    assert pair("dgx-h100", 9, rails=True) == pytest.approx(pair("dgx-h100", 8, rails=True))


def test_without_rails_a_node_shares_all_nics():
    def both(rails):
        spec = presets.resolve("p4de", 2)
        model = TimeModel(attrs.evolve(spec, inter_node=attrs.evolve(spec.inter_node, rails=rails)))
        return estimate_group(model, [Operation("all_reduce", pair, GIB, 1) for pair in ((0, 8), (1, 9))])

    assert both(rails=True) > 1.9 * both(rails=False)
