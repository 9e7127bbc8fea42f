"""Every collective of libnccl.so.2 on real rank processes, against a reference: kinds, dtypes, reductions, sizes, in place,
host and device buffers, shared memory and sockets."""

from __future__ import annotations

import nccl_bodies as bodies
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_reference import CODE_TYPES, DTYPES, IN_BLOCKS, KINDS, OPS, OUT_BLOCKS, REDUCING, expected
from nccl_world import World, make_world

SMALL_CHUNK = {"chunk_bytes": 256}  # many rounds with few bytes


@pytest.fixture(scope="module", params=["2-shm", "3-shm", "4-shm", "3-socket", "2-tcp", "2-tcpshm"])
def world(request):
    nranks, transport = request.param.split("-")
    with make_world(int(nranks), transport, options=SMALL_CHUNK) as made:
        yield made
        made.run(bodies.destroy)


@st.composite
def programs(draw, nranks: int):
    kind = draw(st.sampled_from(KINDS))
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    op = OPS[draw(st.sampled_from(sorted(OPS)))] if kind in REDUCING else 0
    count = draw(st.one_of(st.integers(0, 40), st.integers(0, 700)))
    return {
        "kind": kind, "dtype": dtype, "op": op, "count": count, "root": draw(st.integers(0, nranks - 1)),
        "in_place": draw(st.booleans()), "device": draw(st.booleans()), "seed": draw(st.integers(0, 2**32 - 1)),
    }  # fmt: skip


def inputs(program: dict, nranks: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Random bits for every rank, and a scalar each."""
    random = np.random.default_rng(program["seed"])
    blocks = nranks if program["kind"] in IN_BLOCKS else 1
    codes = np.dtype(CODE_TYPES[program["dtype"]])
    size = blocks * program["count"]
    data = [np.frombuffer(random.bytes(size * codes.itemsize), codes).copy() for _ in range(nranks)]
    return data, [np.frombuffer(random.bytes(codes.itemsize), codes).copy() for _ in range(nranks)]


def run(world: World, program: dict) -> tuple[list, list]:
    data, scalars = inputs(program, world.nranks)
    premul = program["op"] == OPS["premulsum"]
    out_blocks = world.nranks if program["kind"] in OUT_BLOCKS else 1
    found = world.run(
        bodies.collective, program["kind"], data, program["dtype"], program["op"], program["root"], program["count"],
        out_blocks, program["in_place"], program["device"], scalars if premul else None,
    )  # fmt: skip
    raw = [int(s.view(f"u{s.dtype.itemsize}")[0]) for s in scalars] if premul else None
    want = expected(program["kind"], data, program["dtype"], program["op"], program["root"], program["count"], raw)
    return found, want


@settings(max_examples=60)
@given(data=st.data())
def test_a_random_collective_equals_its_definition(world, data):
    program = data.draw(programs(world.nranks))
    found, want = run(world, program)
    for rank, (output, reference) in enumerate(zip(found, want)):
        if reference is not None:
            np.testing.assert_array_equal(output.view(reference.dtype), reference, err_msg=f"rank {rank} of {program}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", [False, True], ids=["host", "device"])
def test_a_large_payload(world, kind, device):
    program = {"kind": kind, "dtype": DTYPES["fp32"], "op": OPS["sum"], "root": world.nranks - 1, "count": 100_003,
               "in_place": device, "device": device, "seed": 7}  # fmt: skip
    if world.coordinator.transport == "tcp":
        program["count"] = 20_003
    data, _ = inputs(program, world.nranks)
    program["seed"] = 8
    found, want = run(world, program)
    for output, reference in zip(found, want):
        if reference is not None:
            np.testing.assert_array_equal(output.view(reference.dtype), reference)


def test_every_rank_gets_the_same_bits(world):
    program = {"kind": "all_reduce", "dtype": DTYPES["fp16"], "op": OPS["sum"], "root": 0, "count": 5000,
               "in_place": False, "device": True, "seed": 3}  # fmt: skip
    found, _ = run(world, program)
    assert len({output.tobytes() for output in found}) == 1
