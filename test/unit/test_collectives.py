"""Plans of collectives against their definition in words, and rounds against fg_core.h."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakegpu import collectives
from fakegpu.collectives import plan_of, round_count, round_elems
from fakegpu.dtypes import COLLECTIVES, Kind

INCLUDE = Path(collectives.__file__).parent / "_core" / "include"
worlds = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1)))


def definition(kind: Kind, n: int, root: int, rank: int):
    """What rank's output is made of: per block, the set of (rank, block) that go into it; None: no output."""
    everybody = [{(r, 0)} for r in range(n)]
    return {
        Kind.ALL_REDUCE: [{(r, 0) for r in range(n)}],
        Kind.REDUCE: [{(r, 0) for r in range(n)}] if rank == root else None,
        Kind.REDUCE_SCATTER: [{(r, rank) for r in range(n)}],
        Kind.BROADCAST: [{(root, 0)}],
        Kind.SCATTER: [{(root, rank)}],
        Kind.ALL_GATHER: everybody,
        Kind.GATHER: everybody if rank == root else None,
        Kind.ALL_TO_ALL: [{(r, rank)} for r in range(n)],
        Kind.BARRIER: None,
    }[kind]


@given(kind=st.sampled_from(sorted(COLLECTIVES)), world=worlds)
def test_plan_equals_the_definition(kind, world):
    n, root = world
    plan = plan_of(kind, n, root)
    for rank in range(n):
        expected = definition(kind, n, root, rank)
        made = [
            {(r, block) for r in plan.contributors} if block in plan.reduced else {(source, block)}
            for source, block in plan.outputs[rank]
        ]
        assert made == (expected or [])
        assert all(block < plan.inputs[source] for source, block in plan.outputs[rank])
        if plan.reduced:  # the result lies in the first contributor's buffer
            assert all(source == plan.contributors[0] for source, _ in plan.outputs[rank])


@pytest.mark.parametrize("kind", [Kind.SEND, Kind.RECV, Kind.PUT_SIGNAL])
def test_only_collectives_have_a_plan(kind):
    with pytest.raises(ValueError, match="expected a collective"):
        plan_of(kind, 2)


@given(
    kind=st.sampled_from(sorted(COLLECTIVES - {Kind.BARRIER})),
    n=st.integers(1, 64),
    count=st.integers(0, 1 << 40),
    size=st.sampled_from([1, 2, 4, 8]),
    chunk=st.integers(256, 1 << 25),
)
def test_rounds_cover_every_element_once(kind, n, count, size, chunk):
    elems, rounds = round_elems(kind, n, size, chunk), round_count(kind, n, count, size, chunk)
    assert (rounds - 1) * elems < count <= rounds * elems or count == rounds == 0
    blocks = max(plan_of(kind, n, 0).inputs[0], len(plan_of(kind, n, 0).outputs[0]), 1)
    assert elems == 1 or elems * size * blocks <= chunk


def test_rounds_equal_the_header(tmp_path):
    cases = [(k, n, c, s, b) for k in range(11) for n in (1, 2, 7) for c in (0, 1, 1000, 4097) for s in (1, 8)
             for b in (256, 1 << 20)]  # fmt: skip
    rows = ",".join(f"{{{k},{n},{c},{s},{b}}}" for k, n, c, s, b in cases)
    source = tmp_path / "rounds.c"
    source.write_text(
        '#include <stdio.h>\n#include "fg_core.h"\nstatic const unsigned long long t[][5] = {' + rows + "};\n"
        'int main(void) { for (size_t i = 0; i < sizeof t / sizeof *t; i++) printf("%llu %llu\\n",\n'
        "(unsigned long long)fg_round_elems((int)t[i][0], (uint32_t)t[i][1], t[i][3], t[i][4]),\n"
        "(unsigned long long)fg_round_count((int)t[i][0], (uint32_t)t[i][1], t[i][2], t[i][3], t[i][4])); }\n",
        encoding="utf-8",
    )
    program = tmp_path / "rounds"
    subprocess.run(["cc", f"-I{INCLUDE}", str(source), "-o", str(program)], check=True)
    lines = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.split("\n")[:-1]
    ours = [f"{round_elems(k, n, s, b)} {round_count(k, n, c, s, b)}" for k, n, c, s, b in cases]
    assert ours == lines
