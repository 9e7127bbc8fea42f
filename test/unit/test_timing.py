import attrs
import pytest
from fakegpu.cluster import ClusterSpec, presets
from fakegpu.errors import SettingsError
from fakegpu.timing import Operation, TimeModel, bus_factor, estimate_group
from fakegpu.timing.restrict import Restriction
from hypothesis import given, settings
from hypothesis import strategies as st

MIB = 1 << 20
KINDS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter"]


def estimate(preset, nodes, kind, size, gpus=None, names=()):
    spec = presets.resolve(preset, nodes, gpus)
    n = spec.world_size
    many = kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
    operation = Operation(kind, tuple(range(n)), size // n if many else size, 1, root=0)
    return TimeModel(spec, Restriction.parse(*names, strict=True) if names else None).estimate(operation)


@pytest.mark.parametrize("preset", presets.table())
@pytest.mark.parametrize("kind", KINDS)
def test_every_collective_has_a_time_on_every_preset(preset, kind):
    for nodes in (1, 2, 5):
        small, large = estimate(preset, nodes, kind, 4096), estimate(preset, nodes, kind, 256 * MIB)
        assert 1 < small.time_us < 3000
        assert large.time_us > 2 * small.time_us
        assert large.time_us == pytest.approx(large.latency_us + large.bandwidth_us)
        assert large.bottleneck.startswith(("intra_node", "inter_node"))


def test_bus_bandwidth_stays_below_the_links():
    """No collective beats the hardware: NVLink 450 GB/s with the switch reducing at most doubling it, NICs 400 GB/s."""
    size = 4096 * MIB
    for nodes, limit in ((1, 500), (4, 400)):
        for kind in ("all_reduce", "all_gather", "reduce_scatter"):
            spec_size = estimate("dgx-h100", nodes, kind, size)
            busbw = size / spec_size.time_us / 1e3 * bus_factor(kind, 8 * nodes)
            assert 250 < busbw < limit, (nodes, kind)


@pytest.mark.parametrize(
    ("preset", "gpus", "expected"),
    [("dgx-h100", 8, "nvls"), ("dgx-h200", 5, "nvls"), ("dgx-h200", 4, "ring"), ("hgx-b200", 6, "nvls"),
     ("hgx-b200", 5, "ring"), ("dgx-a100", 8, "ring"), ("pcie-l40s", 8, "ring")],
)
def test_nvls_where_nccl_takes_it(preset, gpus, expected):
    assert estimate(preset, 1, "all_reduce", 256 * MIB, gpus).algorithm == expected


@pytest.mark.parametrize(
    ("size", "protocol"), [(4096, "LL"), (8 * MIB, "LL128"), (256 * MIB, "Simple")]
)
def test_protocols_change_with_the_size(size, protocol):
    assert estimate("dgx-a100", 1, "all_reduce", size).protocol == protocol


def test_pcie_has_no_ll128():
    with pytest.raises(SettingsError, match="no algorithm for all_reduce"):
        estimate("pcie-l40s", 1, "all_reduce", MIB, names=("ring", "LL128"))


def test_one_rank_and_self_transfers_take_no_time():
    model = TimeModel(ClusterSpec.default(1, 2))
    assert model.estimate(Operation("all_reduce", (0,), 100, 4)).time_us == 0
    assert model.estimate(Operation("send", (1, 1), 100, 4, src=1, dst=1)).time_us == 0


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1 << 33), st.sampled_from(KINDS), st.integers(1, 9), st.integers(1, 8))
def test_any_size_on_any_shape_is_finite(size, kind, nodes, gpus):
    found = estimate("dgx-h100", nodes, kind, size, gpus)
    assert 0 <= found.time_us < 1e9
    assert found.contention_us == 0


def test_the_file_decides_bandwidth_latency_and_oversubscription():
    spec = presets.resolve("dgx-a100", 2)
    operation = Operation("all_reduce", tuple(range(16)), 1024 * MIB, 1)

    def time(**changes):
        changed = attrs.evolve(spec, inter_node=attrs.evolve(spec.inter_node, **changes))
        return TimeModel(changed).estimate(operation)

    assert time(bandwidth_gbps=20).time_us == pytest.approx(2 * time(bandwidth_gbps=40).time_us, rel=0.05)
    slow = time(bandwidth_gbps=20, oversubscription=2)
    assert slow.contention_us == pytest.approx(slow.bandwidth_us / 2)
    small = Operation("all_reduce", tuple(range(16)), 8, 1)
    near, far = (
        TimeModel(attrs.evolve(spec, inter_node=attrs.evolve(spec.inter_node, latency_us=us))).estimate(small).time_us
        for us in (5, 50)
    )
    assert far - near == pytest.approx(90, rel=0.05)  # one hop there, one back


def test_sharp_helps_many_nodes():
    spec = presets.resolve("dgx-a100", 16)
    operation = Operation("all_reduce", tuple(range(128)), 8, 1)
    sharp = TimeModel(attrs.evolve(spec, inter_node=attrs.evolve(spec.inter_node, sharp=True))).estimate(operation)
    assert sharp.algorithm == "collnet"
    assert sharp.time_us < TimeModel(spec).estimate(operation).time_us


def test_concurrent_operations_share_links():
    model = TimeModel(presets.resolve("dgx-h100", 2))
    size = 64 * MIB

    def send(src, dst):
        return Operation("send", (src, dst), size, 1, src=src, dst=dst)

    one = estimate_group(model, [send(0, 1)])
    assert estimate_group(model, [send(0, 1), send(2, 3)]) == pytest.approx(one)  # nothing shared
    assert estimate_group(model, [send(0, 1), send(1, 0)]) == pytest.approx(one)  # full duplex
    assert estimate_group(model, [send(0, 1), send(0, 2)]) > 1.8 * one
    world = tuple(range(16))
    reduce = Operation("all_reduce", world, size, 1)
    assert estimate_group(model, [reduce, reduce]) > 1.5 * estimate_group(model, [reduce])
    assert estimate_group(model, []) == 0


@pytest.mark.parametrize("names", [("ring,quantum",), ("ring", "LL256"), ("allreduces:ring",)])
def test_unknown_names_are_refused(names):
    with pytest.raises(SettingsError, match="expected one of"):
        Restriction.parse(*names)


def test_a_lenient_restriction_falls_back():
    model = TimeModel(presets.resolve("dgx-h100", 1), Restriction.parse("tree"))
    assert model.estimate(Operation("broadcast", tuple(range(8)), MIB, 1, root=0)).algorithm == "ring"


def test_mixed_gpus_go_at_the_slower_ones_pace():
    mixed = ClusterSpec.from_placement([0, 0, 0, 0], ("h100", "a100"))
    pure = ClusterSpec.from_placement([0, 0, 0, 0], ("h100",))
    operation = Operation("all_reduce", (0, 1, 2, 3), 8, 1)
    assert TimeModel(mixed).estimate(operation).time_us > TimeModel(pure).estimate(operation).time_us
