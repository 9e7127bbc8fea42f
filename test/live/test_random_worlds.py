"""Random worlds through the real coordinator: every collective, dtype, size, root, split, in place or not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fakegpu
from fakegpu.dtypes import DType

sys.path.insert(0, str(Path(__file__).parent))
import reference
from worlds import run_ranks, values

KINDS = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
DTYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64")
EXAMPLES = int(os.environ.get("FAKEGPU_TEST_EXAMPLES", "40"))
MANY_BLOCKS_IN = ("reduce_scatter", "all_to_all", "scatter")


@attrs.frozen
class Operation:
    kind: str
    dtype: str
    count: int  # elements of one block
    op: str
    root: int
    in_place: bool
    seed: int


@attrs.frozen
class Program:
    nranks: int
    colors: tuple[int, ...]  # of the split that the second half runs on
    operations: tuple[Operation, ...]
    grouped: bool


@st.composite
def programs(draw):
    nranks = draw(st.integers(2, 6))
    operation = st.builds(
        Operation,
        kind=st.sampled_from(KINDS),
        dtype=st.sampled_from(DTYPES),
        count=st.one_of(st.sampled_from([0, 1, 2]), st.integers(0, 3000)),
        op=st.sampled_from(["sum", "prod", "max", "min", "avg"]),
        root=st.integers(0, nranks - 1),
        in_place=st.booleans(),
        seed=st.integers(0, 2**32 - 1),
    )
    colors = tuple(draw(st.lists(st.integers(-1, 2), min_size=nranks, max_size=nranks)))
    return Program(nranks, colors, tuple(draw(st.lists(operation, min_size=1, max_size=5))), draw(st.booleans()))


def inputs_of(operation: Operation, nranks: int) -> list[np.ndarray]:
    """Every rank's flat input; small numbers of all sorts, so that nothing overflows to infinity."""
    size = operation.count * (nranks if operation.kind in MANY_BLOCKS_IN else 1)
    rng = np.random.default_rng(operation.seed)
    made = []
    for _ in range(nranks):
        if operation.dtype == "bfloat16":
            made.append(reference.narrow(rng.normal(size=size).astype(np.float32), "bfloat16"))
        elif operation.dtype.startswith("float"):
            made.append(rng.normal(size=size).astype(operation.dtype))
        else:
            info = np.iinfo(operation.dtype)
            made.append(rng.integers(info.min, info.max, size=size, dtype=operation.dtype, endpoint=True))
    return made


def call(comm, operation: Operation, root: int, array: np.ndarray):
    """One operation on this rank; the output array, or None."""
    kind, options = operation.kind, {"dtype": DType.parse(operation.dtype)}
    if kind in ("all_reduce", "reduce", "reduce_scatter"):
        options["op"] = operation.op
    if kind in ("reduce", "broadcast", "gather", "scatter"):
        options["root"] = root
    count, rank, n = operation.count, comm.rank, comm.nranks
    if kind == "scatter":
        options["out"] = np.zeros(count, array.dtype)
    if operation.in_place:
        if kind in ("all_reduce", "all_to_all") or (kind == "reduce" and rank == root):
            options["out"] = array
        elif kind == "all_gather" or (kind == "gather" and rank == root):
            whole = np.zeros(n * count, array.dtype)
            whole[rank * count : (rank + 1) * count] = array
            array, options["out"] = whole[rank * count : (rank + 1) * count], whole
        elif kind == "reduce_scatter" or (kind == "scatter" and rank == root):
            options["out"] = array[rank * count : (rank + 1) * count]
    return getattr(comm, kind)(array, **options)


def run_all(comm, operations, offset: int) -> list:
    """Run the operations; (kind, output) of each. offset: of this communicator's seeds."""
    made = []
    for operation in operations:
        mine = inputs_of(attrs.evolve(operation, seed=operation.seed + offset), comm.nranks)[comm.rank]
        made.append(call(comm, operation, operation.root % comm.nranks, mine))
    return made


def expected_of(operations, nranks: int, offset: int) -> list[list]:
    """Per operation, every rank's output."""
    return [
        reference.outputs(
            o.kind, inputs_of(attrs.evolve(o, seed=o.seed + offset), nranks), o.root % nranks, o.op, o.dtype
        )
        for o in operations
    ]


def check(found: list, expected: list[list], rank: int, operations) -> None:
    for operation, output, wanted in zip(operations, found, expected, strict=True):
        want = wanted[rank]
        if want is None:
            assert output is None or operation.kind == "scatter"
        else:
            assert output.reshape(-1).tobytes() == want.tobytes(), operation


@pytest.fixture(scope="module", params=["unix", "tcp"])
def coordinator(request):
    with fakegpu.Coordinator(request.param, chunk_bytes=512, window=2) as made:
        yield made


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=programs())
def test_every_rank_gets_what_the_definition_says(coordinator, program: Program):
    def body(comm):
        operations = program.operations
        if program.grouped:
            with comm.group():
                first = run_all(comm, operations, 0)
        else:
            first = run_all(comm, operations, 0)
        part = comm.split(program.colors[comm.rank], key=-comm.rank)
        second = run_all(part, operations, 1) if part else None
        return first, (part.rank, part.nranks, part.global_ranks, second) if part else None

    results = values(run_ranks(coordinator.address, program.nranks, body))
    world = expected_of(program.operations, program.nranks, 0)
    for rank, (first, split) in enumerate(results):
        check(first, world, rank, program.operations)
        color = program.colors[rank]
        if color < 0:
            assert split is None
            continue
        members = [r for r in reversed(range(program.nranks)) if program.colors[r] == color]  # by key, which is -rank
        part_rank, part_nranks, part_globals, second = split
        assert (part_rank, part_nranks, part_globals) == (members.index(rank), len(members), tuple(members))
        check(second, expected_of(program.operations, part_nranks, 1), part_rank, program.operations)
    assert coordinator.status()["buffered_bytes"] == 0


@settings(max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    nranks=st.integers(1, 5),
    counts=st.lists(st.integers(0, 1500), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
def test_grouped_sends_and_receives_between_all_pairs(coordinator, nranks, counts, seed):
    """Several messages per pair, self included, arrive in order; eager or not (the limit is 1 KiB)."""

    def message(src: int, dst: int, i: int) -> np.ndarray:
        return np.random.default_rng([seed, src, dst, i]).integers(0, 1000, counts[i]).astype(np.int32)

    def body(comm):
        boxes = {}
        with comm.group():
            for peer in range(comm.nranks):
                for i, count in enumerate(counts):
                    comm.send(message(comm.rank, peer, i), peer)
                    boxes[peer, i] = comm.recv(np.full(count, -1, np.int32), peer)
        return boxes

    for rank, boxes in enumerate(values(run_ranks(coordinator.address, nranks, body))):
        for (peer, i), box in boxes.items():
            np.testing.assert_array_equal(box, message(peer, rank, i))


@pytest.mark.parametrize("eager", [0, 1 << 20], ids=["rendezvous", "eager"])
@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_large_payload_of_many_rounds(transport, eager):
    """5 MB in 64 KiB rounds, reduced in threads, with sends of both sorts behind."""
    with fakegpu.Coordinator(transport, chunk_bytes=64 << 10, eager_bytes=eager) as made:

        def body(comm):
            array = np.arange(1_300_001, dtype=np.float32) * (comm.rank + 1)
            total = comm.all_reduce(array)
            if comm.rank == 0:
                comm.send(array[:200_000], 1)
                return total, array[:200_000]
            return total, comm.recv(np.zeros(200_000, np.float32), 0)

        results = values(run_ranks(made.address, 2, body))
    for total, message in results:
        np.testing.assert_array_equal(total, np.arange(1_300_001, dtype=np.float32) * np.float32(3))
        np.testing.assert_array_equal(message, results[0][1])


def test_premulsum_takes_each_ranks_factor(coordinator):
    def body(comm):
        array = np.full(4, 10, np.int32)
        return comm.all_reduce(array, op="premulsum", scalar=comm.rank + 2)

    for total in values(run_ranks(coordinator.address, 3, body)):
        assert total.tolist() == [90] * 4
