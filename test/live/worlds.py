"""Ranks as threads with one Python client each, for tests against a real coordinator.

`run_ranks` starts the threads, collects results and exceptions by rank, and never leaves a client behind.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import fakegpu

INIT_MS = 30_000
JOIN_S = 60.0  # far above every time-out in the tests: a hang is a failure, not a wait


class RankErrors(AssertionError):
    """A rank raised though the test did not ask for errors; the first one is the cause."""


def run_threads(count: int, body: Callable) -> dict[int, object]:
    """body(rank) in a thread per rank; rank: what it returned or the exception it raised."""
    results: dict[int, object] = {}

    def run(rank: int) -> None:
        try:
            results[rank] = body(rank)
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank-{rank}", daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
    late = [thread.name for thread in threads if thread.is_alive()]
    assert not late, f"{late} did not end within {JOIN_S} s; so far: {results}"
    return results


def values(results: dict[int, object]) -> list:
    """The results in rank order; an exception among them fails the test."""
    for rank, result in sorted(results.items()):
        if isinstance(result, BaseException):
            raise RankErrors(f"rank {rank}: {type(result).__name__}: {result}") from result
    return [results[rank] for rank in sorted(results)]


def run_ranks(address: str, count: int, body: Callable, *, timeout_ms: int = 20_000, **options) -> dict[int, object]:
    """body(communicator) on every rank of a fresh world of `count` ranks; timeout_ms counts from then on."""
    uid = make_id(address, **options)

    def run(rank: int) -> object:
        with fakegpu.connect(address, rank=rank, world_size=count, timeout_ms=INIT_MS, **options) as client:
            comm = client.init(count, rank, uid, "world")
            client.timeout_ms = timeout_ms
            result = body(comm)
            if not comm.destroyed and comm.error is None:
                comm.destroy()
            return result

    return run_threads(count, run)


def make_id(address: str, **options) -> bytes:
    """A unique id from a client of its own."""
    with fakegpu.connect(address, rank=-1, timeout_ms=5000, **options) as client:
        return client.unique_id()


@contextlib.contextmanager
def crashing(address: str, **options) -> Iterator[fakegpu.client.Client]:
    """A client whose process dies: its connection ends without BYE."""
    client = fakegpu.connect(address, **options)
    try:
        yield client
    finally:
        kill(client)


def kill(client) -> None:
    """End a connection as a killed process would, without BYE."""
    client._closed = True  # close() would say BYE
    with contextlib.suppress(OSError):
        client._sock.shutdown(2)
    client._receiver.join()
    client._sock.close()
