"""Reductions are bit for bit what reduce.pyx documents: all dtypes and operations, special values, any cut."""

import mmap

import numpy as np
import pytest
import reference_arithmetic as ref
from hypothesis import given, settings
from hypothesis import strategies as st

from fakegpu._core.reduce import reduce

BLOCK = 2048  # elements reduce.pyx works on at once
EVERY = pytest.mark.parametrize("op", ref.OPS.values(), ids=ref.OPS.keys())
EVERY_DTYPE = pytest.mark.parametrize("dtype", ref.DTYPES.values(), ids=ref.DTYPES.keys())
FLOATS = {k: v for k, v in ref.DTYPES.items() if v >= ref.FP16}


def special_codes(dtype: int) -> np.ndarray:
    """Zeros, extremes, and for floats subnormals, infinities and NaNs, of both signs."""
    bits = 8 * np.dtype(ref.CODE_TYPES[dtype]).itemsize
    codes = [0, 1, 2, 3, (1 << (bits - 1)) - 1, (1 << (bits - 1)) - 2]
    if dtype >= ref.FP16:
        mantissa = ref.NARROW[dtype].mantissa if dtype in ref.NARROW else {ref.FP32: 23, ref.FP64: 52}[dtype]
        top = ((1 << (bits - 1)) - 1) >> mantissa << mantissa
        codes += [top, top - 1, top + 1, 1 << mantissa, (1 << mantissa) - 1, top >> 1, (top >> 1) + 1]
    both = [c | sign for c in codes for sign in (0, 1 << (bits - 1))]
    return np.array(both, f"u{bits // 8}").view(ref.CODE_TYPES[dtype])


def random_codes(rng: np.random.Generator, dtype: int, count: int) -> np.ndarray:
    """A third any bits, a third specials, a third near one another, so that sums cancel and round."""
    kind = np.dtype(ref.CODE_TYPES[dtype])
    anything = np.frombuffer(rng.bytes(count * kind.itemsize), kind)
    base = anything[:1] if count else anything
    near = (base + rng.integers(0, 9, count).astype(kind)).astype(kind)
    special = rng.choice(special_codes(dtype), count)
    return np.choose(rng.integers(0, 3, count), [anything, special, near]).astype(kind)


def run(dtype, op, inputs, scalars=None, nout=1):
    outputs = [np.empty_like(inputs[0]) for _ in range(nout)]
    reduce(dtype, op, inputs, outputs, scalars)
    return outputs


def assert_same(actual: np.ndarray, expected: np.ndarray, what: str) -> None:
    wrong = np.flatnonzero(actual != expected)
    assert wrong.size == 0, f"{what}: element {wrong[0]}: found {actual[wrong[0]]:#x}, expected {expected[wrong[0]]:#x}"


@EVERY
@EVERY_DTYPE
@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    nranks=st.integers(1, 9),
    count=st.integers(0, 40) | st.sampled_from([BLOCK - 1, BLOCK, BLOCK + 1]),
)
def test_equals_the_definition(dtype, op, seed, nranks, count):
    rng = np.random.default_rng(seed)
    count = min(count, 40) if rng.integers(8) else count
    inputs = [random_codes(rng, dtype, count) for _ in range(nranks)]
    scalars = [int(s) & (2**64 - 1) for s in random_codes(rng, dtype, nranks)] if op == ref.PREMULSUM else None
    expected = ref.reduce(dtype, op, inputs, scalars)
    for out in run(dtype, op, inputs, scalars, nout=2):
        assert_same(out, expected, f"{nranks} ranks")


@pytest.mark.parametrize("dtype", ref.NARROW, ids=[k for k, v in ref.DTYPES.items() if v in ref.NARROW])
def test_every_code_survives_a_sum_with_minus_zero(dtype):
    codes = np.arange(1 << ref.NARROW[dtype].bits).astype(ref.CODE_TYPES[dtype])
    minus_zero = np.full_like(codes, ref.NARROW[dtype].sign)
    assert_same(run(dtype, ref.SUM, [codes, minus_zero])[0], ref.encode(dtype, ref.decode(dtype, codes)), "codes")


@pytest.mark.parametrize("dtype", ref.NARROW, ids=[k for k, v in ref.DTYPES.items() if v in ref.NARROW])
def test_rounding_to_nearest_even_at_every_midpoint(dtype):
    f = ref.NARROW[dtype]
    low = np.arange(f.first_special - 1).astype(ref.CODE_TYPES[dtype])
    # the middle of two neighbours, exactly: (low + high) / 2 as a premultiplied sum
    half = ref.encode(dtype, np.array([0.5], np.float32))[0]
    out = run(dtype, ref.PREMULSUM, [low, low + 1], [int(half), int(half)])[0]
    assert_same(out, np.where(low % 2 == 0, low, low + 1).astype(low.dtype), "midpoints")


@EVERY
@EVERY_DTYPE
def test_in_place_chunks_and_outputs_change_nothing(dtype, op):
    rng = np.random.default_rng(7)
    count, nranks = 3 * BLOCK + 5, 4
    inputs = [random_codes(rng, dtype, count) for _ in range(nranks)]
    scalars = [int(s) & (2**64 - 1) for s in random_codes(rng, dtype, nranks)] if op == ref.PREMULSUM else None
    whole = run(dtype, op, inputs, scalars)[0]
    cut = np.empty_like(whole)
    for start in range(0, count, 777):
        part = slice(start, start + 777)
        reduce(dtype, op, [i[part] for i in inputs], [cut[part]], scalars)
    assert_same(cut, whole, "chunks of 777")
    for owner in range(nranks):
        buffers = [i.copy() for i in inputs]
        reduce(dtype, op, buffers, [buffers[owner]], scalars)
        assert_same(buffers[owner], whole, f"in place of rank {owner}")
    buffers = [i.copy() for i in inputs]
    reduce(dtype, op, buffers, buffers, scalars)
    for owner, buffer in enumerate(buffers):
        assert_same(buffer, whole, f"all in place, rank {owner}")


def bf16(*numbers: float) -> np.ndarray:
    return ref.encode(ref.BF16, np.array(numbers, np.float32))


@pytest.mark.parametrize(
    ("dtype", "op", "inputs", "expected"),
    [
        pytest.param(ref.BF16, ref.SUM, [bf16(256.0)] + [bf16(1.0)] * 7, bf16(264.0), id="bf16-accumulates-in-fp32"),
        pytest.param(ref.E4M3, ref.SUM, [[0x7E], [0x7E]], [0x7E], id="e4m3-saturates"),
        pytest.param(ref.E5M2, ref.SUM, [[0xFB], [0xFB]], [0xFB], id="e5m2-saturates"),
        pytest.param(ref.E5M2, ref.SUM, [[0x7C], [0x3C]], [0x7B], id="e5m2-infinity-saturates"),
        pytest.param(ref.E5M2, ref.MAX, [[0x7C], [0x3C]], [0x7C], id="e5m2-max-keeps-infinity"),
        pytest.param(ref.E5M2, ref.SUM, [[0x7C], [0xFC]], [0x7F], id="inf-minus-inf-is-nan"),
        pytest.param(ref.FP16, ref.SUM, [[0x7BFF], [0x7BFF]], [0x7C00], id="fp16-overflows-to-infinity"),
        pytest.param(ref.FP32, ref.MAX, [[0x80000000], [0]], [0], id="max-of-zeros-is-plus"),
        pytest.param(ref.FP32, ref.MIN, [[0], [0x80000000]], [0x80000000], id="min-of-zeros-is-minus"),
        pytest.param(ref.FP32, ref.MAX, [[0xFFC00001], [0x3F800000]], [0x7FFFFFFF], id="max-passes-nan-on"),
        pytest.param(ref.FP64, ref.MIN, [[0], [0x7FF0000000000001]], [0x7FFFFFFFFFFFFFFF], id="min-passes-nan-on"),
        pytest.param(ref.INT8, ref.SUM, [[127], [1]], [-128], id="int8-wraps"),
        pytest.param(ref.INT8, ref.AVG, [[127], [2]], [-63], id="int8-avg-of-the-wrapped-sum"),
        pytest.param(ref.INT32, ref.AVG, [[-3], [-4]], [-3], id="int-avg-toward-zero"),
        pytest.param(ref.UINT64, ref.AVG, [[2**64 - 1], [2**64 - 1]], [2**63 - 1], id="uint64-avg-of-the-wrapped-sum"),
    ],
)
def test_known_answers(dtype, op, inputs, expected):
    kind = ref.CODE_TYPES[dtype]
    out = run(dtype, op, [np.array(i).astype(kind) for i in inputs])[0]
    assert out.tolist() == np.array(expected).astype(kind).tolist()


def test_avg_multiplies_by_the_rounded_share():
    third = np.float32(1 / 3)
    inputs = [np.array([x], np.float32) for x in (1.0, 2.0, 7.0)]
    expected = (np.float32(1) * third + np.float32(2) * third) + np.float32(7) * third
    assert run(ref.FP32, ref.AVG, inputs)[0][0] == expected


@pytest.mark.parametrize("op", [ref.SUM, ref.MAX], ids=["sum", "max"])
def test_nothing_beyond_the_buffers_is_touched(op):
    """Buffers end where their mapping ends: one byte further would be a fault."""
    pages = [mmap.mmap(-1, mmap.PAGESIZE) for _ in range(3)]
    arrays = [np.frombuffer(p, np.uint8)[-5:] for p in pages]
    for n, a in enumerate(arrays[:2]):
        a[:] = n + 1
    reduce(ref.UINT8, op, arrays[:2], arrays[2:])
    assert arrays[2].tolist() == [3 if op == ref.SUM else 2] * 5
    assert not np.frombuffer(pages[2], np.uint8)[:-5].any()


one, two = np.zeros(1, np.float32), np.zeros(2, np.float32)
long = np.zeros(8, np.uint8)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((12, 0, [one], [one]), "dtype: found 12, expected 0 to 11"),
        ((7, 6, [one], [one]), "redop: found 6, expected 0 to 5"),
        ((7, 0, [], [one]), "inputs: found none"),
        ((7, 0, [one], []), "outputs: found none"),
        ((7, 0, [two, one], [two]), "inputs[1]: found 4 bytes, expected 8"),
        ((7, 0, [two], [one]), "outputs: found 4 bytes, expected 8"),
        ((7, 0, [long[:6]], [long[:6]]), "multiple of 4"),
        ((7, 5, [one], [one]), "scalars: found None, expected 1"),
        ((7, 5, [one], [one], [1, 2]), "scalars: found 2, expected 1"),
        ((1, 0, [long[:6]], [long[1:7]]), "outputs[0]: found a partial overlap with inputs[0]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals_name_the_argument(args, text):
    with pytest.raises(ValueError) as error:
        reduce(*args)
    assert text in str(error.value)


@pytest.mark.parametrize("bad", [b"abcd", np.zeros((4, 2), np.float32)[:, 0]], ids=["read-only", "strided"])
def test_outputs_must_be_writable_and_contiguous(bad):
    with pytest.raises((BufferError, ValueError)):
        reduce(ref.FP32, ref.SUM, [np.zeros(4, np.float32) if not isinstance(bad, bytes) else b"abcd"], [bad])
