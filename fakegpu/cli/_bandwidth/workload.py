"""What a bandwidth run sends, what every rank must receive, and nccl-tests' arithmetic around it.

Values are small integers that each type holds exactly, so a wrong byte shows. The expectation is computed with
numpy from the definition of the collective and shares nothing with the library under test.
"""

from __future__ import annotations

import attrs
import numpy as np

from fakegpu.dtypes import DType, ReduceOp
from fakegpu.errors import ArgumentError

COLLECTIVES = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "send_recv",
)
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("reduce", "broadcast", "gather", "scatter")
# nccl-tests' names of the types, by DType
TYPE_NAMES = (
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "half",
    "float",
    "double",
    "bfloat16",
    "f8e4m3",
    "f8e5m2",
)
_EPSILON = {
    DType.FLOAT16: 2.0**-10,
    DType.FLOAT32: 2.0**-23,
    DType.FLOAT64: 2.0**-52,
    DType.BFLOAT16: 2.0**-7,
    DType.FLOAT8_E4M3: 2.0**-3,
    DType.FLOAT8_E5M2: 2.0**-2,
}
_SPREAD = {DType.INT8: 64, DType.UINT8: 64, DType.FLOAT8_E4M3: 8, DType.FLOAT8_E5M2: 4}  # exact integers below this
_FLOAT8 = {DType.FLOAT8_E4M3: (3, 7), DType.FLOAT8_E5M2: (2, 15)}  # mantissa bits, exponent bias


def parse_type(name: str) -> DType:
    """A DType from nccl-tests' name (float, half) or ours (float32)."""
    return DType(TYPE_NAMES.index(name)) if name in TYPE_NAMES else DType.parse(name)


@attrs.frozen
class Workload:
    """One collective of one size. Ranks' buffers hold blocks of `count` elements."""

    collective: str
    dtype: DType
    op: ReduceOp
    root: int
    world_size: int
    size_bytes: int  # nccl-tests' size: the larger of a rank's input and output

    @property
    def count(self) -> int:
        """Elements of one block."""
        blocks = max(self.blocks(rank)[side] for rank in range(self.world_size) for side in (0, 1))
        return self.size_bytes // self.dtype.size // blocks

    def blocks(self, rank: int) -> tuple[int, int]:
        """Blocks of a rank's input and output; 0 for a rank that has none."""
        n, is_root = self.world_size, rank == self.root
        return {
            "all_reduce": (1, 1),
            "reduce": (1, int(is_root)),
            "broadcast": (int(is_root), 1),
            "all_gather": (1, n),
            "reduce_scatter": (n, 1),
            "all_to_all": (n, n),
            "gather": (1, n * is_root),
            "scatter": (n * is_root, 1),
            "send_recv": (1, 1),
        }[self.collective]

    @property
    def effective_bytes(self) -> int:
        """The size that is really moved: whole blocks of whole elements."""
        return self.count * self.dtype.size * max(max(self.blocks(rank)) for rank in range(self.world_size))

    @property
    def bus_factor(self) -> float:
        """nccl-tests' bus bandwidth per algorithmic bandwidth."""
        n = self.world_size
        if self.collective == "all_reduce":
            return 2 * (n - 1) / n
        moves_all = self.collective in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
        return (n - 1) / n if moves_all else 1.0

    @property
    def payload_bytes_per_rank(self) -> float:
        """Bytes through a rank's socket, both directions, averaged over the ranks, on the coordinator's path."""
        blocks = sum(sum(self.blocks(rank)) for rank in range(self.world_size))
        return blocks * self.count * self.dtype.size / self.world_size

    # ---- values ----

    def input(self, rank: int) -> np.ndarray:
        """A rank's input, encoded in dtype.numpy's type."""
        blocks = [self._values(rank, block) for block in range(self.blocks(rank)[0])]
        return encode(np.concatenate(blocks) if blocks else np.empty(0, np.int64), self.dtype)

    def _values(self, rank: int, block: int) -> np.ndarray:
        """Integers of one input block."""
        index = np.arange(self.count, dtype=np.int64)
        if self.collective not in REDUCING:
            return (rank * 3 + block * 5 + index) % _SPREAD.get(self.dtype, 251)
        if self.op == ReduceOp.PROD:
            return np.where((index + rank) % self.world_size == 0, 2, 1)
        # 1 at the start of every block: the sum over two ranks begins 3, 3, 3
        return (rank % 4 + 1) * (1 + (index // 1024) % 2)

    def expected(self, rank: int) -> np.ndarray:
        """What a rank's output must hold, as decoded numbers."""
        out = self.blocks(rank)[1]
        if not out:
            return np.empty(0)
        if self.collective in REDUCING:
            return self._reduced(rank if self.collective == "reduce_scatter" else 0)
        n = self.world_size
        sources = {
            "broadcast": [(self.root, 0)],
            "all_gather": [(r, 0) for r in range(n)],
            "all_to_all": [(r, rank) for r in range(n)],
            "gather": [(r, 0) for r in range(n)],
            "scatter": [(self.root, rank)],
            "send_recv": [((rank - 1) % n, 0)],
        }[self.collective]
        return np.concatenate([self._values(r, block) for r, block in sources])

    def _reduced(self, block: int) -> np.ndarray:
        values = [self._values(rank, block) for rank in range(self.world_size)]
        if self.op in (ReduceOp.MAX, ReduceOp.MIN, ReduceOp.PROD):
            function = {ReduceOp.MAX: np.maximum, ReduceOp.MIN: np.minimum, ReduceOp.PROD: np.multiply}[self.op]
            return function.reduce(values)
        total = np.add.reduce(values)
        if self.dtype not in _EPSILON:
            total = total.astype(self.dtype.numpy).astype(np.int64)  # integers wrap before the division
        if self.op == ReduceOp.SUM:
            return total
        return total / self.world_size if self.dtype in _EPSILON else np.trunc(total / self.world_size)

    def wrong(self, rank: int, output: np.ndarray) -> int:
        """Elements of a rank's output that differ from what they must be (floats: by more than the rounding)."""
        want, got = self.expected(rank).astype(np.float64), decode(output, self.dtype)
        if want.shape != got.shape:
            raise ArgumentError(f"output of rank {rank}: found {got.size} elements, expected {want.size}")
        if self.dtype not in _EPSILON:
            want = want.astype(np.int64).astype(self.dtype.numpy).astype(np.float64)
            return int(np.count_nonzero(want != got))
        return int(np.count_nonzero(~(np.abs(got - want) <= 2 * _EPSILON[self.dtype] * np.abs(want))))


def encode(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Integers as elements of dtype; those it cannot hold exactly are rounded down in magnitude."""
    if dtype == DType.BFLOAT16:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype in _FLOAT8:
        return (np.searchsorted(_float8_table(dtype), values, side="right") - 1).astype(np.uint8)
    return values.astype(dtype.numpy)


def decode(raw: np.ndarray, dtype: DType) -> np.ndarray:
    """Elements of dtype as float64."""
    if dtype == DType.BFLOAT16:
        return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype in _FLOAT8:
        positive = _float8_table(dtype)
        return np.concatenate([positive, -positive])[raw]
    return raw.astype(np.float64)


def _float8_table(dtype: DType) -> np.ndarray:
    """Values of the 128 non-negative codes of an fp8 type, ascending; the codes above the largest finite are inf."""
    mantissa_bits, bias = _FLOAT8[dtype]
    code = np.arange(128)
    exponent, mantissa = code >> mantissa_bits, (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    table = np.where(exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent - bias))
    table[0x7F if dtype == DType.FLOAT8_E4M3 else 0x7C :] = np.inf
    return table
