"""Groups of libnccl.so.2: grouped exchanges make progress together, nothing starts before the end, errors surface there.

`python3 verification/test_group_semantics.py [--json FILE]`. Starts its own coordinator and ranks.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import ranks  # noqa: E402

LARGE = 1 << 20  # int64 elements: more than a send may buffer


def exchange(comm) -> bool:
    """Everybody sends to everybody, large, in one group: ungrouped this is a deadlock."""
    send = np.full(LARGE, comm.rank, np.int64)
    received = np.full((comm.nranks, LARGE), -1, np.int64)
    with comm.nccl.group():
        for peer in range(comm.nranks):
            comm.send(send, peer)
            comm.recv(received[peer], peer)
    return bool((received == np.arange(comm.nranks)[:, None]).all())


def nothing_before_the_end(comm) -> bool:
    one, total = np.ones(4), np.zeros(4)
    with comm.nccl.group():
        with comm.nccl.group():
            comm.all_reduce(one, total)
        early = total.copy()
    return bool((early == 0).all() and (total == comm.nranks).all())


def mixed(comm) -> bool:
    """Collectives and point-to-point in one group keep their order and their values."""
    values, sums = np.arange(100.0) + comm.rank, np.zeros(100)
    token = np.full(1, -1.0)
    own = np.full(1, float(comm.rank))
    with comm.nccl.group():
        for i in range(100):
            comm.all_reduce(values[i : i + 1], sums[i : i + 1])
        comm.send(own, (comm.rank + 1) % comm.nranks)
        comm.recv(token, (comm.rank - 1) % comm.nranks)
    want = np.arange(100.0) * comm.nranks + sum(range(comm.nranks))
    return bool((sums == want).all() and token[0] == (comm.rank - 1) % comm.nranks)


def error_at_the_end(comm) -> bool:
    value = np.zeros(1, np.float32)
    raw, address = comm.nccl.raw, value.ctypes.data
    raw.ncclGroupStart()
    inside = raw.ncclAllReduce(address, address, 1, 99, 0, comm.handle, None)
    at_end = raw.ncclGroupEnd()
    return inside == at_end == 4 and "datatype 99" in comm.nccl.last_error()


def check(body, nranks: int, transport: str = "unix") -> dict:
    answers = ranks.run(body, nranks, transport=transport)
    if answers != [True] * nranks:
        raise AssertionError(f"wrong on ranks {[r for r, fine in enumerate(answers) if not fine]}")
    return {"ranks": nranks, "transport": transport}


CHECKS = [
    ("a full exchange in one group, shared memory", partial(check, exchange, 4)),
    ("a full exchange in one group, TCP", partial(check, exchange, 2, "tcp")),
    ("nothing runs before the outermost end", partial(check, nothing_before_the_end, 2)),
    ("collectives and point-to-point mixed", partial(check, mixed, 3)),
    ("an error surfaces at the end", partial(check, error_at_the_end, 2)),
]

if __name__ == "__main__":
    sys.exit(ranks.main("group_semantics", CHECKS, sys.argv[1:]))
