"""A rank process of nccl_world.World: runs the bodies it is told over a socket until that closes."""

from __future__ import annotations

import pickle
import sys
import time
from multiprocessing.connection import Connection

import nccl_bodies
from nccl_world import Failed


def main(fd: int, rank: int, nranks: int) -> None:
    pipe = Connection(fd)
    context = nccl_bodies.Context(rank, nranks)
    while True:
        try:
            name, arguments = pickle.loads(pipe.recv_bytes())
        except (EOFError, ConnectionError):
            return
        started = time.monotonic()
        try:
            answer = getattr(nccl_bodies, name)(context, *arguments)
        except Exception as error:
            answer = Failed(type(error).__name__, getattr(error, "result", None), str(error), time.monotonic() - started)
        pipe.send_bytes(pickle.dumps(answer))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
