"""Rank processes for the verification scripts: a coordinator, N processes with libnccl.so.2 by ctypes, one verdict.

`World.run(body)` calls body(comm, *arguments) in every rank's process and answers what they returned. `report` prints
the one-line verdict and writes the JSON evidence. Used by the scripts of this folder and of test/.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import fakegpu  # noqa: E402

_CONTEXT = multiprocessing.get_context("spawn")


def _entry(rank: int, nranks: int, environment: dict, uid: bytes, body: Callable, arguments: tuple, pipe) -> None:
    os.environ.update(environment | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(nranks)})
    try:
        from fakegpu.nccl_ctypes import Nccl

        comm = Nccl().init(nranks, uid, rank)
        answer = body(comm, *arguments)
        if comm.handle:
            comm.destroy()
        pipe.send((True, answer))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


class RanksFailed(RuntimeError):
    """A rank raised, died or did not answer in time."""


def run(body: Callable, nranks: int, *arguments, transport: str = "unix", timeout: float = 60.0,
        report: Path | None = None, **variables: str) -> list:
    """body(comm, *arguments) on every rank of a world of its own; RanksFailed with every rank's traceback."""
    with fakegpu.Coordinator(transport, report=report) as coordinator:
        environment = {
            "FAKEGPU_COORDINATOR_TRANSPORT": transport, "FAKEGPU_COORDINATOR_ADDR": coordinator.address,
            "FAKEGPU_COORDINATOR_TIMEOUT_MS": str(int(timeout * 1000)), "FAKEGPU_STAGING_FORCE_SOCKET": "0",
            **variables,
        }  # fmt: skip
        uid = unique_id(coordinator)
        pipes, processes = [], []
        for rank in range(nranks):
            ours, theirs = _CONTEXT.Pipe()
            process = _CONTEXT.Process(target=_entry, args=(rank, nranks, environment, uid, body, arguments, theirs))
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            return _collect(pipes, timeout)
        finally:
            for process in processes:
                process.join(5)
                if process.is_alive():
                    process.kill()
                    process.join()


def unique_id(coordinator) -> bytes:
    """A unique id, asked for by a process of its own, as a launcher would hand it to the ranks."""
    environment = {"FAKEGPU_COORDINATOR_TRANSPORT": coordinator.transport, "FAKEGPU_COORDINATOR_ADDR": coordinator.address}
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_ask_unique_id, args=(environment, theirs))
    process.start()
    theirs.close()
    uid = ours.recv()
    process.join()
    return uid


def _ask_unique_id(environment: dict, pipe) -> None:
    os.environ.update(environment)
    from fakegpu.nccl_ctypes import Nccl

    pipe.send(Nccl().unique_id())


def _collect(pipes: list, timeout: float) -> list:
    answers, failures = [], []
    for rank, pipe in enumerate(pipes):
        try:
            fine, answer = pipe.recv() if pipe.poll(timeout) else (False, "no answer in time")
        except EOFError:
            fine, answer = False, "the process died"
        if fine:
            answers.append(answer)
        else:
            failures.append(f"rank {rank}: {answer}")
    if failures:
        raise RanksFailed("\n".join(failures))
    return answers


def main(name: str, checks: list[tuple[str, Callable[[], dict]]], argv: list[str] | None = None) -> int:
    """Run the checks; print a verdict, write JSON evidence with --json; 0 when all hold."""
    parser = argparse.ArgumentParser(description=name)
    parser.add_argument("--json", type=Path, help="write the evidence here")
    options = parser.parse_args([] if argv is None else argv)
    results = []
    for title, check in checks:
        try:
            results.append({"check": title, "passed": True, **check()})
        except Exception as error:
            results.append({"check": title, "passed": False, "error": f"{type(error).__name__}: {error}"})
            print(f"{name}: {title}: {error}", file=sys.stderr)
    failed = [result["check"] for result in results if not result["passed"]]
    verdict = f"{name}: PASS, {len(results)} checks" if not failed else f"{name}: FAIL: {', '.join(failed)}"
    print(verdict)
    if options.json:
        options.json.write_text(json.dumps({"name": name, "passed": not failed, "results": results}, indent=2) + "\n")
    return 1 if failed else 0
