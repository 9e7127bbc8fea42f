"""The processes of one chaos scenario: ranks over the Python client or libnccl.so.2, and a proxy that misbehaves.

Each part is forked by chaos.py and ends with os._exit. A rank reports through a pipe how many operations came out right,
the first wrong value, the error it got, and what shrinking to the survivors gave.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import struct
import time

import numpy as np

import fakegpu
from fakegpu.errors import FakeGPUError
from fakegpu.membership import world_id
from fakegpu.nccl_ctypes import NcclError

KINDS = ("all_reduce", "all_gather", "broadcast", "ring")


class WrongValue(Exception):
    """An operation ended without an error and with the wrong result."""


class PythonRank:
    """A rank over fakegpu.connect."""

    def __init__(self, where: str, rank: int, scenario) -> None:
        self.client = fakegpu.connect(where, rank=rank, world_size=scenario.ranks, timeout_ms=scenario.timeout_ms,
                                      session=scenario.session)
        self.comm = self.client.world()

    def call(self, kind: str, mine: np.ndarray, comm) -> np.ndarray:
        if kind == "all_reduce":
            return comm.all_reduce(mine)
        if kind == "all_gather":
            return comm.all_gather(mine)
        if kind == "broadcast":
            return comm.broadcast(mine.copy(), comm.nranks - 1)
        out = np.empty_like(mine)
        with comm.group():
            comm.send(mine, (comm.rank + 1) % comm.nranks)
            comm.recv(out, (comm.rank - 1) % comm.nranks)
        return out

    def shrink(self, excluded: int):
        return self.comm.shrink([excluded], abort=True)

    def close(self) -> None:
        self.client.close()


class NcclRank:
    """A rank over libnccl.so.2."""

    def __init__(self, where: str, rank: int, scenario) -> None:
        os.environ.update(
            FAKEGPU_COORDINATOR_ADDR=where, FAKEGPU_COORDINATOR_TRANSPORT="unix" if where.startswith("/") else "tcp",
            FAKEGPU_COORDINATOR_TIMEOUT_MS=str(scenario.timeout_ms), FAKEGPU_SESSION=scenario.session,
            RANK=str(rank), WORLD_SIZE=str(scenario.ranks),
        )  # fmt: skip
        self.nccl = scenario.nccl
        self.comm = self.nccl.init(scenario.ranks, world_id(scenario.session), rank)

    def call(self, kind: str, mine: np.ndarray, comm) -> np.ndarray:
        out = np.empty_like(mine)
        if kind == "all_reduce":
            comm.all_reduce(mine, out)
        elif kind == "all_gather":
            out = np.empty((comm.nranks, len(mine)), mine.dtype)
            comm.all_gather(mine, out)
        elif kind == "broadcast":
            comm.broadcast(mine, out, comm.nranks - 1)
        else:
            with self.nccl.group():
                comm.send(mine, (comm.rank + 1) % comm.nranks)
                comm.recv(out, (comm.rank - 1) % comm.nranks)
        return out

    def shrink(self, excluded: int):
        return self.comm.shrink([excluded], True)

    def close(self) -> None:
        if self.comm.async_error():
            self.comm.abort()
        else:
            self.comm.destroy()


def values(rank: int, number: int, count: int) -> np.ndarray:
    """What a rank gives to an operation."""
    return np.arange(count, dtype=np.int64) * (rank + 1) + number


def right(kind: str, rank: int, nranks: int, number: int, count: int) -> np.ndarray:
    """What it must get."""
    if kind == "all_reduce":
        return np.arange(count, dtype=np.int64) * (nranks * (nranks + 1) // 2) + nranks * number
    if kind == "all_gather":
        return np.stack([values(other, number, count) for other in range(nranks)])
    return values(nranks - 1 if kind == "broadcast" else (rank - 1) % nranks, number, count)


def rank_process(scenario, rank: int, where: str, pipe: int) -> None:
    """Run the scenario's operations as one rank; fall to the scenario's fault at its operation."""
    answer = {"right": 0, "error": "", "wrong": "", "shrunk": None, "called": 0.0, "failed": 0.0}
    engine = None
    try:
        engine = (NcclRank if scenario.engine == "nccl" else PythonRank)(where, rank, scenario)
        for number, (kind, count) in enumerate(scenario.operations):
            if rank == scenario.victim and number == scenario.at:
                _fault(scenario, pipe)
            answer["called"] = time.monotonic()
            got = engine.call(kind, values(rank, number, count), engine.comm)
            if not np.array_equal(got, right(kind, rank, scenario.ranks, number, count)):
                raise WrongValue(f"{kind} {number} of {count}: {got.ravel()[:4]}")
            answer["right"] += 1
    except WrongValue as error:
        answer["wrong"] = str(error)
    except (FakeGPUError, NcclError) as error:
        answer["failed"] = time.monotonic()
        answer["error"] = f"{type(error).__name__}: {error}"
        if rank != scenario.victim and engine is not None and scenario.ranks > 2:
            answer["shrunk"] = _shrink(engine, scenario)
    try:
        if engine is not None:
            engine.close()
    except (FakeGPUError, NcclError):
        pass  # a communicator that failed says so once more
    os.write(pipe, pickle.dumps(answer))


def _shrink(engine, scenario) -> str:
    """'' when the survivors' communicator computes; else why not."""
    try:
        small = engine.shrink(scenario.victim)
        got = engine.call("all_reduce", values(small.rank, 5, 100), small)
        small.destroy()
        return "" if np.array_equal(got, right("all_reduce", small.rank, scenario.ranks - 1, 5, 100)) else "wrong value"
    except (FakeGPUError, NcclError) as error:
        return f"{type(error).__name__}: {error}"


def _fault(scenario, pipe: int) -> None:
    """What the victim does to itself before, or while, it runs its operation."""
    if scenario.fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif scenario.fault == "kill-parent":  # as a data loader's worker does, a child keeps what it inherited
        if os.fork() == 0:
            os.close(pipe)
            os.close(scenario.life[1])
            os.read(scenario.life[0], 1)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    elif scenario.fault == "kill-within":  # the alarm's default action ends the process wherever it is
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, scenario.amount / 1e6)
    elif scenario.fault in ("pause", "freeze"):
        os.kill(os.getpid(), signal.SIGSTOP)


def proxy_process(scenario, listener: socket.socket, where: str) -> None:
    """Pass bytes between one rank and the coordinator; after `amount` bytes one way, do the fault. Ends with them."""
    rank_side = listener.accept()[0]
    listener.close()
    host, _, port = where.rpartition(":")
    server_side = socket.create_connection((host, int(port)))
    pairs = {rank_side: server_side, server_side: rank_side}
    watched = server_side if scenario.downstream else rank_side
    left = scenario.amount
    while True:
        for sock in select.select(list(pairs), [], [])[0]:
            try:
                data = sock.recv(65536)
                if sock is watched and left >= 0 and len(data) > left:
                    pairs[sock].sendall(data[:left])
                    data, left = _misbehave(scenario.fault, rank_side, server_side, data[left:]), -1
                elif sock is watched and left >= 0:
                    left -= len(data)
                pairs[sock].sendall(data)
            except OSError:
                return
            if not data:
                return


def _misbehave(fault: str, rank_side: socket.socket, server_side: socket.socket, data: bytes) -> bytes:
    """An empty answer ends the proxy, and with it both connections."""
    if fault == "cut":  # resets, nothing orderly
        for sock in (rank_side, server_side):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        return b""
    if fault == "truncate":
        return b""
    if fault == "delay":
        time.sleep(0.15)
        return data
    select.select([], [], [])  # hold: never again
    return b""
