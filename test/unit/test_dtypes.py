"""Numbers, sizes and block rules of dtypes.py against the C headers."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fakegpu import dtypes
from fakegpu._core.reduce import reduce
from fakegpu.dtypes import DType, Kind, ReduceOp
from fakegpu.errors import ArgumentError

INCLUDE = Path(dtypes.__file__).parent / "_core" / "include"


def c_enum(prefix: str, last: str) -> dict[str, int]:
    text = (INCLUDE / "fg_wire.h").read_text(encoding="utf-8")
    body = next(b for b in re.findall(r"typedef enum \w+ \{(.*?)\}", text, re.S) if last in b)
    return {n.removeprefix(prefix): int(v) for n, v in re.findall(r"(FG_\w+) = (\d+)", body) if n != last}


@pytest.mark.parametrize(
    ("enum", "last"),
    [(Kind, "FG_KIND_COUNT"), (DType, "FG_DTYPE_COUNT"), (ReduceOp, "FG_REDOP_COUNT")],
    ids=["kind", "dtype", "redop"],
)
def test_numbers_equal_the_header(enum, last):
    assert {member.name: int(member) for member in enum} == c_enum("FG_", last)


def test_block_rules_equal_the_header(tmp_path):
    source = tmp_path / "blocks.c"
    source.write_text(
        '#include <stdio.h>\n#include "fg_core.h"\nint main(void) {\n'
        "for (int k = 0; k < FG_KIND_COUNT; k++) for (uint32_t n = 1; n < 7; n++)\n"
        'printf("%d %u %u %u %d %d\\n", k, n, fg_kind_in_blocks(k, n), fg_kind_out_blocks(k, n),\n'
        "fg_kind_rooted(k), fg_kind_reduces(k)); return 0; }\n",
        encoding="utf-8",
    )
    program = tmp_path / "blocks"
    subprocess.run(["cc", f"-I{INCLUDE}", str(source), "-o", str(program)], check=True)
    lines = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.splitlines()
    theirs = [tuple(map(int, line.split())) for line in lines]
    ours = [
        (k, n, dtypes.in_blocks(k, n), dtypes.out_blocks(k, n), int(k in dtypes.ROOTED), int(k in dtypes.REDUCING))
        for k in Kind
        for n in range(1, 7)
    ]
    assert ours == theirs


@pytest.mark.parametrize("dtype", DType, ids=lambda d: d.label)
def test_sizes_equal_numpy_and_the_core(dtype):
    assert dtype.size == dtype.numpy.itemsize
    zeros = bytearray(4 * dtype.size)
    reduce(dtype, ReduceOp.SUM, [zeros], [zeros])
    if dtype.size > 1:
        with pytest.raises(ValueError, match=f"multiple of {dtype.size}"):
            reduce(dtype, ReduceOp.SUM, [bytes(dtype.size + 1)], [bytearray(dtype.size + 1)])


def test_numpy_round_trip():
    for dtype in set(DType) - {DType.BFLOAT16, DType.FLOAT8_E4M3, DType.FLOAT8_E5M2}:
        assert dtypes.dtype_of(np.zeros(1, dtype.numpy)) is dtype


@pytest.mark.parametrize("name", ["complex64", "uint16", ">f4", "U3"])
def test_numpy_types_without_meaning_are_refused(name):
    with pytest.raises(ArgumentError, match=r"numpy dtype .*expected one that holds int8"):
        dtypes.dtype_of(np.zeros(1, name))


def test_labels_and_parse():
    assert [Kind.ALL_REDUCE.label, DType.FLOAT8_E4M3.label, ReduceOp.SUM.label] == ["all_reduce", "float8_e4m3", "sum"]
    assert Kind.parse("all_gather") is Kind.ALL_GATHER and ReduceOp.parse(4) is ReduceOp.AVG
    with pytest.raises(ArgumentError, match="ReduceOp 'bxor': expected one of sum, prod"):
        ReduceOp.parse("bxor")
