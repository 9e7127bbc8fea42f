"""The arithmetic that fakegpu._core.reduce documents, from its definition: tables of values, numpy, Python integers.

Shares nothing with fakegpu. Narrow floats are tables of exact values; rounding picks the nearest table entry.
"""

from dataclasses import dataclass

import numpy as np

INT8, UINT8, INT32, UINT32, INT64, UINT64, FP16, FP32, FP64, BF16, E4M3, E5M2 = range(12)
SUM, PROD, MAX, MIN, AVG, PREMULSUM = range(6)
DTYPES = {
    "int8": INT8, "uint8": UINT8, "int32": INT32, "uint32": UINT32, "int64": INT64, "uint64": UINT64, "fp16": FP16,
    "fp32": FP32, "fp64": FP64, "bf16": BF16, "e4m3": E4M3, "e5m2": E5M2,
}  # fmt: skip
OPS = {"sum": SUM, "prod": PROD, "max": MAX, "min": MIN, "avg": AVG, "premulsum": PREMULSUM}
CODE_TYPES = {INT8: "i1", UINT8: "u1", INT32: "i4", UINT32: "u4", INT64: "i8", UINT64: "u8", FP16: "u2", FP32: "u4",
              FP64: "u8", BF16: "u2", E4M3: "u1", E5M2: "u1"}  # fmt: skip


@dataclass(frozen=True)
class Format:
    bits: int
    mantissa: int
    bias: int
    has_infinity: bool
    saturates: bool

    @property
    def sign(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def first_special(self) -> int:
        """The least magnitude code that is no finite number: infinity, or the only NaN of e4m3."""
        return (self.sign - (1 << self.mantissa)) if self.has_infinity else self.sign - 1

    def value(self, code: int) -> float:
        exponent, fraction = divmod(code & (self.sign - 1), 1 << self.mantissa)
        if code & (self.sign - 1) >= self.first_special:
            value = np.inf if self.has_infinity and fraction == 0 else np.nan
        elif exponent == 0:
            value = fraction * 2.0 ** (1 - self.bias - self.mantissa)
        else:
            value = (1 + fraction / (1 << self.mantissa)) * 2.0 ** (exponent - self.bias)
        return -value if code & self.sign else value


NARROW = {
    FP16: Format(16, 10, 15, has_infinity=True, saturates=False),
    BF16: Format(16, 7, 127, has_infinity=True, saturates=False),
    E4M3: Format(8, 3, 7, has_infinity=False, saturates=True),
    E5M2: Format(8, 2, 15, has_infinity=True, saturates=True),
}
_VALUES = {dtype: np.array([f.value(c) for c in range(1 << f.bits)], np.float64) for dtype, f in NARROW.items()}


def decode(dtype: int, codes: np.ndarray) -> np.ndarray:
    """Codes as numbers of the accumulation type."""
    if dtype in NARROW:
        return _VALUES[dtype][codes].astype(np.float32)
    return codes.view(np.float32 if dtype == FP32 else np.float64)


def encode(dtype: int, numbers: np.ndarray) -> np.ndarray:
    """Numbers to codes: nearest, ties to the even code; NaN to the canonical one."""
    if dtype not in NARROW:
        codes = numbers.view(CODE_TYPES[dtype]).copy()
        codes[np.isnan(numbers)] = (1 << (8 * codes.itemsize - 1)) - 1
        return codes
    f = NARROW[dtype]
    # one step beyond the largest finite value is where rounding overflows to
    top = f.first_special
    beyond = 2 * _VALUES[dtype][top - 1] - _VALUES[dtype][top - 2]
    table = np.append(_VALUES[dtype][:top], beyond)
    size = np.abs(numbers.astype(np.float64))
    high = np.clip(np.searchsorted(table, size), 0, top)
    low = np.maximum(high - 1, 0)
    below, above = size - table[low], table[high] - size
    codes = np.where((below < above) | ((below == above) & (low % 2 == 0)), low, high)
    codes = np.where((codes == top) | (size > beyond), top - 1 if f.saturates else top, codes)
    codes = np.where(np.signbit(numbers), codes | f.sign, codes)
    return np.where(np.isnan(numbers), f.sign - 1, codes).astype(CODE_TYPES[dtype])


def _order_floats(dtype: int, op: int, inputs: list[np.ndarray]) -> np.ndarray:
    nan = (1 << (8 * inputs[0].itemsize - 1)) - 1
    out = []
    for codes in zip(*(i.tolist() for i in inputs), strict=True):
        numbers = decode(dtype, np.array(codes, CODE_TYPES[dtype]))
        if np.isnan(numbers).any():
            out.append(nan)
            continue
        keyed = [(float(v), not np.signbit(v), c) for v, c in zip(numbers, codes, strict=True)]
        out.append((max if op == MAX else min)(keyed)[2])
    return np.array(out, CODE_TYPES[dtype])


def _reduce_integers(dtype: int, op: int, inputs: list[np.ndarray], scalars: list[int] | None) -> np.ndarray:
    bits, signed = 8 * inputs[0].itemsize, CODE_TYPES[dtype].startswith("i")

    def wrap(n: int) -> int:
        n &= (1 << bits) - 1
        return n - (1 << bits) if signed and n >> (bits - 1) else n

    out = []
    for column in zip(*(i.tolist() for i in inputs), strict=True):
        if op in (MAX, MIN):
            out.append((max if op == MAX else min)(column))
            continue
        total = 1 if op == PROD else 0
        for k, n in enumerate(column):
            total = total * n if op == PROD else total + n * (scalars[k] if op == PREMULSUM else 1)
        total = wrap(total)
        if op == AVG:
            total = abs(total) // len(column) * (-1 if total < 0 else 1)
        out.append(total)
    return np.array(out, CODE_TYPES[dtype])


def reduce(dtype: int, op: int, inputs: list[np.ndarray], scalars: list[int] | None = None) -> np.ndarray:
    """Codes in, codes out; scalars: raw bits per input for PREMULSUM."""
    if len(inputs) == 1 and op != PREMULSUM:
        return inputs[0].copy()
    if dtype <= UINT64:
        return _reduce_integers(dtype, op, inputs, scalars)
    if op in (MAX, MIN):
        return _order_floats(dtype, op, inputs)
    with np.errstate(all="ignore"):
        numbers = [decode(dtype, codes) for codes in inputs]
        kind = numbers[0].dtype.type
        if op == AVG:
            share = kind(1.0 / len(inputs))
            factor = decode(dtype, encode(dtype, np.array([share]))) if dtype in NARROW else share
            numbers = [n * factor for n in numbers]
        if op == PREMULSUM:
            raw = np.array([s & ((1 << (8 * inputs[0].itemsize)) - 1) for s in scalars], CODE_TYPES[dtype])
            numbers = [n * f for n, f in zip(numbers, decode(dtype, raw), strict=True)]
        total = numbers[0]
        for n in numbers[1:]:
            total = total * n if op == PROD else total + n
    return encode(dtype, total)
