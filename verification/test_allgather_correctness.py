"""All-gather, reduce-scatter, broadcast and all-to-all through libnccl.so.2: each block where it belongs, on every rank.

`python3 verification/test_allgather_correctness.py [--json FILE]`. Starts its own coordinator and ranks.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import ranks  # noqa: E402

COUNTS = (0, 1, 5, 70_001)


def stamp(rank: int, count: int) -> np.ndarray:
    """Values that name their rank and place."""
    return np.arange(count, dtype=np.int64) * 1000 + rank


def body(comm) -> list:
    found = []
    for count in COUNTS:
        mine = stamp(comm.rank, count)
        gathered, in_place = np.full((2, comm.nranks * count), -1, np.int64)
        comm.all_gather(mine, gathered)
        own = in_place[comm.rank * count : (comm.rank + 1) * count]
        own[:] = mine
        comm.all_gather(own, in_place)
        scattered = np.full(count, -1, np.int64)
        comm.reduce_scatter(gathered, scattered)
        cast = mine.copy()
        comm.broadcast(cast, cast, comm.nranks - 1)
        swapped = np.full(comm.nranks * count, -1, np.int64)
        sent = np.concatenate([mine + 100 * peer for peer in range(comm.nranks)]) if count else swapped.copy()
        comm.all_to_all(sent, swapped, count)
        found.append((gathered, in_place, scattered, cast, swapped))
    return found


def check(nranks: int, transport: str, force_socket: str) -> dict:
    answers = ranks.run(body, nranks, transport=transport, FAKEGPU_STAGING_FORCE_SOCKET=force_socket)
    for rank, found in enumerate(answers):
        for count, (gathered, in_place, scattered, cast, swapped) in zip(COUNTS, found):
            where = f"rank {rank} of {nranks}, count {count}"
            whole = np.concatenate([stamp(r, count) for r in range(nranks)])
            np.testing.assert_array_equal(gathered, whole, err_msg=f"all_gather, {where}")
            np.testing.assert_array_equal(in_place, whole, err_msg=f"all_gather in place, {where}")
            np.testing.assert_array_equal(scattered, nranks * stamp(rank, count), err_msg=f"reduce_scatter, {where}")
            np.testing.assert_array_equal(cast, stamp(nranks - 1, count), err_msg=f"broadcast, {where}")
            pieces = np.concatenate([stamp(r, count) + 100 * rank for r in range(nranks)])
            np.testing.assert_array_equal(swapped, pieces, err_msg=f"all_to_all, {where}")
    return {"ranks": nranks, "transport": transport, "force_socket": force_socket, "counts": COUNTS}


CHECKS = [
    ("2 ranks, shared memory", partial(check, 2, "unix", "0")),
    ("4 ranks, shared memory", partial(check, 4, "unix", "0")),
    ("3 ranks, Unix socket", partial(check, 3, "unix", "1")),
    ("2 ranks, TCP", partial(check, 2, "tcp", "0")),
]

if __name__ == "__main__":
    sys.exit(ranks.main("allgather_correctness", CHECKS, sys.argv[1:]))
