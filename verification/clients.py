"""A world of Python clients, one thread per rank, on a coordinator of its own; answers the coordinator's report.

Used by the scripts that check the report: they need many small worlds, and not the native library.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import fakegpu  # noqa: E402
from fakegpu import report  # noqa: E402

JOIN_S = 60.0


def world(nranks: int, body: Callable, *, expect_errors: bool = False, algorithm: str = "ring", **options) -> dict:
    """body(comm, rank) on every rank; the report's document after the coordinator stopped.

    `algorithm` is NCCL_ALGO for the model: the checks do their arithmetic for the ring unless they say otherwise.
    """
    before = os.environ.get("NCCL_ALGO")
    os.environ["NCCL_ALGO"] = algorithm
    try:
        coordinator = fakegpu.Coordinator(**options)
    finally:
        if before is None:
            del os.environ["NCCL_ALGO"]
        else:
            os.environ["NCCL_ALGO"] = before
    with coordinator:
        errors = _run(coordinator.address, nranks, body)
        if errors and not expect_errors:
            raise AssertionError("; ".join(f"rank {rank}: {error!r}" for rank, error in sorted(errors.items())))
        coordinator.stop()
    return report.build(coordinator.recorder.snapshot(), _markdown_path(options.get("report")))


def _markdown_path(path) -> str | None:
    return str(Path(path).with_suffix(".md")) if path else None


def _run(address: str, nranks: int, body: Callable) -> dict[int, BaseException]:
    with fakegpu.connect(address, rank=-1, timeout_ms=5000) as client:
        uid = client.unique_id()
    errors: dict[int, BaseException] = {}

    def rank_thread(rank: int) -> None:
        try:
            with fakegpu.connect(address, rank=rank, world_size=nranks, timeout_ms=2000) as client:
                comm = client.init(nranks, rank, uid, "world")
                body(comm, rank)
                if comm.error is None and not comm.destroyed:
                    comm.destroy()
        except BaseException as error:
            errors[rank] = error

    threads = [threading.Thread(target=rank_thread, args=(rank,), daemon=True) for rank in range(nranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
        if thread.is_alive():
            raise AssertionError(f"{thread.name} did not end within {JOIN_S} s")
    return errors


def expect(condition: bool, text: str) -> None:
    """The scripts' assertion: works under python -O."""
    if not condition:
        raise AssertionError(text)


def equal(name: str, found, expected) -> None:
    expect(found == expected, f"{name}: found {found!r}, expected {expected!r}")
