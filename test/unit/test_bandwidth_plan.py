"""fakegpu bandwidth's command line: what it understands and what it refuses before anything starts."""

import pytest

from fakegpu.cli._bandwidth.plan import parse
from fakegpu.errors import FakeGPUError

LISTEN = ["--listen", "127.0.0.1:0"]
CONNECT = ["--connect", "host:29591", "--world-size", "4", "--session", "s"]


def test_the_defaults_are_the_documented_ones() -> None:
    plan, options = parse(LISTEN)
    assert (plan.world_size, plan.ranks, plan.sizes, plan.warmup, plan.iterations) == (2, (0, 1), (4 << 20,), 2, 10)
    assert (plan.collective, plan.timeout_s, plan.cluster.node_count) == ("all_reduce", 30, 2)
    assert (plan.cluster.inter_node.bandwidth_gbps, plan.cluster.inter_node.latency_us) == (25, 50)
    assert options.json is None


@pytest.mark.parametrize(
    "flags, sizes",
    [
        (["-b", "1K", "-e", "8K"], (1024, 2048, 4096, 8192)),
        (["-b", "1K", "-e", "70K", "-f", "8"], (1024, 8192, 65536)),
        (["-b", "1024", "-e", "4096", "-i", "1024"], (1024, 2048, 3072, 4096)),
        (["--size", "16MiB"], (16 << 20,)),
    ],
)
def test_sizes(flags: list[str], sizes: tuple) -> None:
    assert parse([*LISTEN, *flags])[0].sizes == sizes


@pytest.mark.parametrize("text, ranks", [("0", (0,)), ("1,3", (1, 3)), ("0-2", (0, 1, 2)), ("3,0-1", (3, 0, 1))])
def test_rank_lists(text: str, ranks: tuple) -> None:
    assert parse([*CONNECT, "--ranks", text])[0].ranks == ranks


def test_logical_nodes() -> None:
    plan, _ = parse([*LISTEN, "--nodes", "2", "--ranks-per-node", "3"])
    assert [node.ranks for node in plan.cluster.nodes] == [(0, 1, 2), (3, 4, 5)]


@pytest.mark.parametrize(
    "argv, named",
    [
        ([], "--listen --connect"),
        (["--listen", "nowhere"], "--listen=nowhere"),
        ([*LISTEN, "--size", "tiny"], "--size tiny"),
        ([*LISTEN, "--size", "4"], None),
        ([*LISTEN, "--size", "2", "-d", "float"], "too small"),
        ([*LISTEN, "--iterations", "0"], "--iterations 0"),
        ([*LISTEN, "--collective", "all_shuffle"], "all_shuffle"),
        ([*LISTEN, "-d", "quad"], "quad"),
        ([*LISTEN, "-o", "xor"], "xor"),
        ([*LISTEN, "--collective", "reduce", "-r", "2"], "--root 2"),
        ([*LISTEN, "--session", "x"], "--session"),
        ([*LISTEN, "-b", "8K", "-e", "1K"], "-b 8192 -e 1024"),
        ([*LISTEN, "--profile", "b9000"], "b9000"),
        ([*LISTEN, "--cluster-config", "/no/such.yaml"], "/no/such.yaml"),
        (["--connect", "h:1", "--ranks", "0", "--session", "s"], "--world-size"),
        (["--connect", "h:1", "--world-size", "2", "--ranks", "0"], "--session"),
        ([*CONNECT, "--ranks", "4"], "rank 4"),
        ([*CONNECT, "--ranks", "0,0"], "each rank once"),
        ([*CONNECT, "--ranks", "x"], "--ranks x"),
        ([*CONNECT, "--ranks", "0", "--cluster-report", "f"], "--cluster-report"),
    ],
    ids=lambda value: None if isinstance(value, list) else str(value),
)
def test_wrong_usage_is_one_line_that_names_it(argv: list[str], named: str | None) -> None:
    if named is None:
        parse(argv)
        return
    with pytest.raises(FakeGPUError) as caught:
        parse(argv)
    assert named in str(caught.value)
    assert "\n" not in caught.value.text


def test_parameters_that_ranks_compare_are_named_by_their_flags() -> None:
    first, second = (parse([*LISTEN, "--size", size])[0].compared() for size in ("1MiB", "2MiB"))
    assert '"--size": 1048576' in first and first != second
