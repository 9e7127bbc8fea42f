"""All-reduce through libnccl.so.2: exact values on every rank, for every reduction and transport.

`python3 test/test_allreduce_correctness.py [--json FILE]`, or under pytest. Starts its own coordinator and ranks.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "verification"))
import ranks  # noqa: E402

OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
DTYPES = ("int32", "int64", "float32", "float64")
COUNTS = (0, 1, 3, 1000, 40_001)


def body(comm, counts) -> list:
    """Every reduction of small integers, whose result is exact in each dtype; in place and out of place."""
    found = []
    for dtype in DTYPES:
        for name, op in OPS.items():
            for count in counts:
                send = (np.arange(count) % 5 + comm.rank + 1).astype(dtype)
                recv, in_place = np.zeros_like(send), send.copy()
                comm.all_reduce(send, recv, op)
                comm.all_reduce(in_place, in_place, op)
                found.append((dtype, name, count, recv, bool((recv == in_place).all())))
    return found


def reference(dtype: str, name: str, count: int, nranks: int) -> np.ndarray:
    columns = np.array([np.arange(count) % 5 + rank + 1 for rank in range(nranks)], np.int64)
    result = {
        "sum": columns.sum(0), "prod": columns.prod(0), "max": columns.max(0), "min": columns.min(0),
        "avg": columns.sum(0) / nranks,
    }[name]  # fmt: skip
    return np.trunc(result).astype(dtype) if dtype.startswith("int") else result.astype(dtype)


def check(nranks: int, transport: str, force_socket: str) -> dict:
    answers = ranks.run(body, nranks, COUNTS, transport=transport, FAKEGPU_STAGING_FORCE_SOCKET=force_socket)
    compared = 0
    for rank, found in enumerate(answers):
        for dtype, name, count, values, same in found:
            want = reference(dtype, name, count, nranks)
            if not same:
                raise AssertionError(f"rank {rank}: {dtype} {name} of {count}: in place differs from out of place")
            np.testing.assert_allclose(values, want, rtol=1e-6 if dtype == "float32" else 0,
                                       atol=0, err_msg=f"rank {rank}: {dtype} {name} of {count}")  # fmt: skip
            compared += count
    return {"ranks": nranks, "transport": transport, "force_socket": force_socket, "elements_compared": compared}


CHECKS = [
    ("2 ranks, shared memory", partial(check, 2, "unix", "0")),
    ("4 ranks, shared memory", partial(check, 4, "unix", "0")),
    ("2 ranks, Unix socket", partial(check, 2, "unix", "1")),
    ("2 ranks, TCP", partial(check, 2, "tcp", "0")),
]


def test_allreduce_correctness():
    assert ranks.main("allreduce_correctness", CHECKS) == 0


if __name__ == "__main__":
    sys.exit(ranks.main("allreduce_correctness", CHECKS, sys.argv[1:]))
