"""fakegpu bandwidth's own oracle and arithmetic: it must accept the right result and see every wrong element."""

import numpy as np
import pytest

from fakegpu.cli._bandwidth.table import RankResult, SizeResult, as_json, footer, row
from fakegpu.cli._bandwidth.workload import COLLECTIVES, REDUCING, Workload, decode, encode, parse_type
from fakegpu.dtypes import DType, ReduceOp


def make(
    collective: str = "all_reduce",
    dtype: DType = DType.FLOAT32,
    op: ReduceOp = ReduceOp.SUM,
    world: int = 2,
    size: int = 4096,
    root: int = 0,
) -> Workload:
    return Workload(collective, dtype, op, root, world, size)


@pytest.mark.parametrize("dtype", DType, ids=lambda d: d.label)
def test_small_integers_survive_encoding(dtype: DType) -> None:
    values = np.arange(5)
    assert decode(encode(values, dtype), dtype).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("bits, value", [(0x38, 1.0), (0x7E, 448.0), (0x01, 2.0**-9), (0xB8, -1.0)])
def test_float8_e4m3_decodes_known_codes(bits: int, value: float) -> None:
    assert decode(np.array([bits], np.uint8), DType.FLOAT8_E4M3)[0] == value


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_one_changed_element_is_counted(collective: str, world: int) -> None:
    work = make(collective, world=world, size=4096 * world)
    for rank in range(world):
        output = encode(work.expected(rank), work.dtype)
        assert work.wrong(rank, output) == 0
        if output.size:
            output[-1] += 1
            assert work.wrong(rank, output) == 1


def test_two_ranks_sum_to_the_known_sample() -> None:
    work = make()
    assert work.input(0)[:3].tolist() == [1, 1, 1] and work.input(1)[:3].tolist() == [2, 2, 2]
    assert work.expected(1)[:3].tolist() == [3, 3, 3]


@pytest.mark.parametrize("op, expected", [("sum", 3), ("max", 2), ("min", 1), ("avg", 1.5)])
def test_reductions_by_hand(op: str, expected: float) -> None:
    assert make(op=ReduceOp.parse(op)).expected(0)[0] == expected


def test_product_by_hand() -> None:
    work = make(op=ReduceOp.PROD, world=3, size=36)
    assert work.expected(0).tolist() == [2] * 9


def test_integer_average_truncates() -> None:
    assert make(dtype=DType.INT32, op=ReduceOp.AVG).expected(0)[0] == 1


def test_int8_sum_wraps() -> None:
    work = make(dtype=DType.INT8, world=100, size=2048)  # 25 * (1+2+3+4) = 250, and twice that
    assert work.expected(0)[0] == 250 - 256
    assert work.wrong(0, np.array([250 - 256] * 1024 + [500 - 512] * 1024).astype(np.int8)) == 0


@pytest.mark.parametrize("collective", sorted(set(COLLECTIVES) - set(REDUCING)))
def test_blocks_of_different_ranks_differ(collective: str) -> None:
    work = make(collective, world=3, size=120)
    blocks = [work.expected(2).reshape(-1, work.count)[i].tolist() for i in range(max(work.blocks(2)[1], 0))]
    assert len({tuple(b) for b in blocks}) == len(blocks)


@pytest.mark.parametrize(
    "collective, count, factor",
    [("all_reduce", 1024, 1.5), ("all_gather", 256, 0.75), ("reduce_scatter", 256, 0.75), ("broadcast", 1024, 1.0)],
)
def test_sizes_and_bus_factors_are_nccl_tests(collective: str, count: int, factor: float) -> None:
    work = make(collective, world=4)
    assert (work.count, work.bus_factor, work.effective_bytes) == (count, factor, 4096)


def test_payload_of_a_rank_is_both_directions() -> None:
    assert make().payload_bytes_per_rank == 2 * 4096
    assert make("broadcast", world=4).payload_bytes_per_rank == (1 + 4) * 4096 / 4


def test_json_and_table_agree() -> None:
    work = make()
    ranks = tuple(RankResult(r, (10.0, 30.0), 0, (3.0, 3.0, 3.0)) for r in range(2))
    result = SizeResult(work, ranks, modeled_us=5.0)
    found = as_json(result)
    assert found["latency_us"] == {"min": 10.0, "median": 20.0, "mean": 20.0, "max": 30.0}
    assert found["algbw_gbps"] == pytest.approx(4096 * 8 / 20e3)
    assert found["socket_payload_gbps_per_rank"] == pytest.approx(2 * found["algbw_gbps"])
    assert found["sample"] == [3, 3, 3] and found["correct"] is True
    assert found["modeled"] == {"time_us": 5.0, "bandwidth_gbps": pytest.approx(4096 * 8 / 5e3)}
    columns = row(result).split()
    assert columns[:5] == ["4096", "1024", "float", "sum", "-1"]
    assert float(columns[6]) == pytest.approx(found["algbw_gbps"] / 8, abs=1e-3)
    assert "0 OK" in footer([result])


def test_wrong_values_show_in_the_footer() -> None:
    result = SizeResult(make(), (RankResult(0, (1.0,), 7, ()),), 0.0)
    assert "# Out of bounds values : 7 FAILED" in footer([result])
    assert as_json(result)["modeled"]["bandwidth_gbps"] is None


def test_type_names_of_both_kinds() -> None:
    assert parse_type("half") == parse_type("float16") == DType.FLOAT16
