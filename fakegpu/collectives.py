"""Each collective as a plan: which blocks are reduced, and which rank's block goes where in whose output.

A rank's input is cut into in_blocks blocks of `count` elements, its output into out_blocks (dtypes.py). A payload
that moves through sockets is cut into rounds, each a range of elements of every block, as fg_core.h's inline
functions cut it (a test compares them). Pure and remembered: the coordinator asks once per distinct operation.
Layer 2.
"""

from functools import lru_cache

import attrs

from fakegpu.dtypes import COLLECTIVES, REDUCING, ROOTED, Kind, in_blocks, out_blocks


@attrs.frozen
class Plan:
    """Who contributes, what is reduced and what every rank receives.

    inputs[r]: blocks that rank r contributes. reduced: blocks to reduce over all ranks, in rank order; the result
    takes the place of the first rank's block. outputs[r]: the (rank, block) pairs whose bytes, back to back, are
    rank r's output; empty for a rank without output.
    """

    inputs: tuple[int, ...]
    reduced: tuple[int, ...]
    outputs: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def contributors(self) -> tuple[int, ...]:
        """Ranks that have input."""
        return tuple(rank for rank, blocks in enumerate(self.inputs) if blocks)


@lru_cache(maxsize=1024)
def plan_of(kind: int, nranks: int, root: int = -1) -> Plan:
    """The plan of a collective; root is read for rooted kinds only."""
    kind, ranks = Kind(kind), range(nranks)
    if kind not in COLLECTIVES:
        raise ValueError(f"{kind.label}: no plan, expected a collective")
    rooted_input = kind in (Kind.BROADCAST, Kind.SCATTER)
    rooted_output = kind in (Kind.REDUCE, Kind.GATHER)
    blocks = in_blocks(kind, nranks)
    inputs = tuple(blocks if not rooted_input or rank == root else 0 for rank in ranks)
    outputs = tuple(_output(kind, nranks, root, rank) if not rooted_output or rank == root else () for rank in ranks)
    reduced = tuple(range(blocks)) if kind in REDUCING else ()
    return Plan(inputs, reduced, outputs)


def _output(kind: Kind, nranks: int, root: int, rank: int) -> tuple[tuple[int, int], ...]:
    """The (rank, block) pairs that make up one rank's output, given that it has one."""
    ranks = range(nranks)
    return {
        Kind.ALL_REDUCE: lambda: ((0, 0),),
        Kind.REDUCE: lambda: ((0, 0),),
        Kind.REDUCE_SCATTER: lambda: ((0, rank),),
        Kind.BROADCAST: lambda: ((root, 0),),
        Kind.SCATTER: lambda: ((root, rank),),
        Kind.ALL_GATHER: lambda: tuple((peer, 0) for peer in ranks),
        Kind.GATHER: lambda: tuple((peer, 0) for peer in ranks),
        Kind.ALL_TO_ALL: lambda: tuple((peer, rank) for peer in ranks),
        Kind.BARRIER: tuple,
    }[kind]()


def round_elems(kind: int, nranks: int, elem_bytes: int, chunk_bytes: int) -> int:
    """Elements of one block that one round carries: chunk_bytes shared by the larger number of blocks."""
    blocks = max(in_blocks(kind, nranks), out_blocks(kind, nranks), 1)
    return max(chunk_bytes // (elem_bytes * blocks), 1)


def round_count(kind: int, nranks: int, count: int, elem_bytes: int, chunk_bytes: int) -> int:
    """Rounds of an operation; 0 for an empty one."""
    return -(-count // round_elems(kind, nranks, elem_bytes, chunk_bytes))


def is_rooted(kind: int) -> bool:
    """Whether `root` means something for the kind."""
    return kind in ROOTED
