"""Worlds of rank processes for the libnccl tests: each rank is a Python process that loads libnccl.so.2 by ctypes.

A World starts a coordinator and its ranks once and runs many bodies in them, so that property tests are quick. A body
is a function of nccl_bodies.py, called as body(rank_context, *arguments); what it returns or raises comes back.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import nccl_bodies as bodies

import fakegpu

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


class RankError(AssertionError):
    """A body raised; the text names the rank."""


class Failed:
    """What a body raised, when the test asked for failures."""

    def __init__(self, kind: str, result: int | None, text: str, seconds: float) -> None:
        self.kind, self.result, self.text, self.seconds = kind, result, text, seconds

    def __repr__(self) -> str:
        return f"Failed({self.kind}, {self.result}, {self.text!r})"


class World:
    """`nranks` processes and their coordinator. transport: shm (Unix), socket (Unix, payload through it),
    tcp, or tcpshm (TCP, shared memory on one host)."""

    def __init__(self, nranks: int, transport: str = "shm", timeout_ms: int = 20_000, options: dict | None = None,
                 **variables: str) -> None:
        self.nranks = nranks
        options = {"same_host_shm": transport == "tcpshm", **(options or {})}
        self.coordinator = fakegpu.Coordinator("tcp" if transport.startswith("tcp") else "unix", **options).start()
        self.environment = {
            "FAKEGPU_COORDINATOR_TRANSPORT": self.coordinator.transport,
            "FAKEGPU_COORDINATOR_ADDR": self.coordinator.address,
            "FAKEGPU_COORDINATOR_TIMEOUT_MS": str(timeout_ms),
            "FAKEGPU_STAGING_FORCE_SOCKET": "1" if transport == "socket" else "0",
            "FAKEGPU_SAME_HOST_SHM": "1" if transport == "tcpshm" else "0",
            **{name: str(value) for name, value in variables.items()},
        }
        self.processes: list[subprocess.Popen] = []
        self.pipes: list[Connection] = []
        try:
            for rank in range(nranks):
                self._start(rank)
        except BaseException:
            self.close()
            raise

    def _start(self, rank: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            environment = {k: v for k, v in os.environ.items() if not k.startswith(("FAKEGPU_", "NCCL_"))}
            environment |= self.environment
            if preload := os.environ.get("TEST_RANK_PRELOAD"):  # a sanitizer's library, for the ranks only
                environment["LD_PRELOAD"] = preload
            environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}"}
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, str(HERE / "nccl_rank.py"), str(theirs.fileno()), str(rank), str(self.nranks)],
                    env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                )  # fmt: skip
            )
        self.pipes.append(Connection(ours.detach()))

    def start(self, body, *arguments, ranks: list[int] | None = None) -> list[int]:
        """Let ranks begin a body; `finish` collects."""
        chosen = list(range(self.nranks)) if ranks is None else ranks
        for rank in chosen:
            self.pipes[rank].send_bytes(pickle.dumps((body.__name__, arguments)))
        return chosen

    def finish(self, chosen: list[int], timeout: float = 60.0, allow_failures: bool = False) -> list:
        """What the body returned on each rank; a rank that is gone counts as failed."""
        limit, answers = time.monotonic() + timeout, []
        for rank in chosen:
            answers.append(self._answer(rank, max(limit - time.monotonic(), 0.0)))
        if not allow_failures and any(isinstance(a, Failed) for a in answers):
            raise RankError("; ".join(f"rank {r}: {a!r}" for r, a in zip(chosen, answers) if isinstance(a, Failed)))
        return answers

    def _answer(self, rank: int, seconds: float):
        pipe = self.pipes[rank]
        if not pipe.poll(seconds):
            return Failed("hang", None, f"no answer of rank {rank} in time", seconds)
        try:
            return pickle.loads(pipe.recv_bytes())
        except (EOFError, ConnectionError):
            return Failed("death", self.processes[rank].wait(), "the process ended", 0.0)

    def run(self, body, *arguments, timeout: float = 60.0, allow_failures: bool = False) -> list:
        """A body on every rank."""
        return self.finish(self.start(body, *arguments), timeout, allow_failures)

    def healthy(self) -> bool:
        """Every rank is alive and idle, its communicators gone; the coordinator serves."""
        if not self.coordinator.running or any(process.poll() is not None for process in self.processes):
            return False
        try:
            answers = self.run(bodies.abort_all, timeout=30, allow_failures=True)
        except ConnectionError:
            return False  # a rank is on its way out
        return not any(isinstance(answer, Failed) for answer in answers)

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.coordinator.stop()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


_MOST_IDLE = 3  # worlds kept between tests: starting one costs a second or more
_idle: dict[str, World] = {}


@contextmanager
def make_world(nranks: int, transport: str, **settings):
    """A world with a communicator "world" of all its ranks. Worlds are used again as long as their ranks live."""
    key = repr((nranks, transport, sorted(settings.items(), key=str)))
    world = _idle.pop(key, None) or World(nranks, transport, **{"FAKEGPU_PROFILE": "h100", **settings})
    try:
        uid = world.finish(world.start(bodies.unique_id, ranks=[0]))[0]
        assert world.run(bodies.init, uid) == [(nranks, rank) for rank in range(nranks)]
        yield world
    finally:
        if world.healthy():
            _idle[key] = world
        else:
            world.close()
        while len(_idle) > _MOST_IDLE:
            _idle.pop(next(iter(_idle))).close()


def close_idle() -> None:
    while _idle:
        _idle.popitem()[1].close()
