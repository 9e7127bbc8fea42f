"""Measure and check a collective over TCP, one process per rank, modelled time beside measured time.

`--listen HOST:PORT` starts a coordinator there and runs every rank; `--connect HOST:PORT` runs some ranks of a world
that is spread over several hosts. Exit status 1 on a wrong value or a failed rank, 2 for bad usage.
"""

from __future__ import annotations

import datetime
import json
import os
import socket
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cached_property

import attrs

from fakegpu import __version__
from fakegpu.cli._bandwidth import table
from fakegpu.cli._bandwidth.plan import Plan, parse
from fakegpu.errors import FakeGPUError
from fakegpu.settings import Address, Settings

GRACE_SECONDS = 15.0  # start and import of a rank, on top of its own time-outs


class RankFailed(FakeGPUError):
    """A rank ended with an error; the text is what it said."""


class Ranks:
    """The rank processes of this host."""

    def __init__(self, plan: Plan, address: Address, session: str) -> None:
        self.plan = plan
        self._processes = [self._start(rank, address, session) for rank in plan.ranks]

    def _start(self, rank: int, address: Address, session: str) -> subprocess.Popen:
        from fakegpu.membership import world_id

        plan = self.plan
        job = {
            "rank": rank,
            "world_size": plan.world_size,
            "session": session,
            "unique_id": world_id(session).hex(),
            "collective": plan.collective,
            "dtype": int(plan.dtype),
            "op": int(plan.op),
            "root": plan.root,
            "sizes": list(plan.sizes),
            "warmup": plan.warmup,
            "iterations": plan.iterations,
            "in_place": plan.in_place,
            "check": plan.check,
            "compared": plan.compared(),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "fakegpu.cli._bandwidth.rank"],
            env=self._environment(rank, address),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        process.stdin.write(json.dumps(job))
        process.stdin.close()
        process.stdin = None
        return process

    def _environment(self, rank: int, address: Address) -> dict[str, str]:
        plan = self.plan
        chosen = Settings.from_env({}).override(
            coordinator_transport="tcp",
            coordinator_addr=str(address),
            timeout_ms=int(plan.timeout_s * 1000),
            profile=plan.cluster.profile_of(rank).id,
            device_count=max(len(plan.ranks), 1),
        )
        base = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "FAKEGPU_PROFILES")}
        placed = {
            "RANK": rank,
            "WORLD_SIZE": plan.world_size,
            "LOCAL_RANK": plan.ranks.index(rank),
            "LOCAL_WORLD_SIZE": len(plan.ranks),
            "GROUP_RANK": plan.cluster.node_index(rank),
        }
        return base | chosen.to_env() | {name: str(value) for name, value in placed.items()}

    def results(self) -> list[table.SizeResult]:
        """Every size's measurement; RankFailed with the first rank's words, the others' after it."""
        try:
            with ThreadPoolExecutor(len(self._processes)) as pool:
                spoken = list(pool.map(self._collect, self._processes))
        finally:
            self.end()
        errors = [(rank, text) for rank, (_, text) in zip(self.plan.ranks, spoken) if text]
        if errors:
            raise RankFailed("\n".join(f"rank {rank}: {text}" for rank, text in errors), self._hint(errors[0][1]))
        return [self._size(size, [lines[index] for lines, _ in spoken]) for index, size in enumerate(self.plan.sizes)]

    def _collect(self, process: subprocess.Popen) -> tuple[list[dict], str]:
        """A rank's lines, and what it failed of ('' if it did not)."""
        out, err = process.communicate()
        lines = [json.loads(line) for line in out.splitlines()]
        if lines and "error" in lines[-1]:
            return [], lines[-1]["error"]
        if process.returncode or len(lines) != len(self.plan.sizes):
            last = err.strip().splitlines()[-1:] or ["no message"]
            return [], f"ended with status {process.returncode}: {last[0]}"
        return lines, ""

    def _hint(self, text: str) -> str:
        if self.plan.listens or "differs between" in text:
            return ""
        return "every host needs the same endpoint, --world-size and --session, and each rank must run on one of them"

    def _size(self, size: int, found: list[dict]) -> table.SizeResult:
        ranks = tuple(
            table.RankResult(
                rank,
                tuple(line["times_us"]),
                line["wrong"],
                tuple(line["sample"]),
                tuple(line.get("in_place_us", ())),
                line.get("in_place_wrong", 0),
            )
            for rank, line in zip(self.plan.ranks, found)
        )
        return table.SizeResult(self.plan.workload(size), ranks, modeled_us(self.plan, size))

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def modeled_us(plan: Plan, size: int) -> float:
    """What the described cluster would take; a ring of sends and receives takes as long as its slowest link."""
    from fakegpu.timing import Operation, TimeModel

    work = plan.workload(size)
    model, ranks, element = TimeModel(plan.cluster), tuple(range(plan.world_size)), plan.dtype.size
    if plan.collective == "send_recv":
        pairs = [Operation("send", ranks, work.count, element, src=r, dst=(r + 1) % len(ranks)) for r in ranks]
        return max(model.estimate(pair).time_us for pair in pairs)
    return model.estimate(Operation(plan.collective, ranks, work.count, element, root=plan.root)).time_us


@attrs.frozen
class Run:
    """A finished run, for printing."""

    plan: Plan
    session: str
    started: str
    results: list[table.SizeResult]

    @cached_property
    def correct(self) -> bool:
        return all(result.correct for result in self.results)

    def document(self) -> dict:
        """The JSON result: what ran where, the last size's figures, and `results` with every size."""
        plan = self.plan
        sizes = [table.as_json(result) for result in self.results]
        return {
            "tool": "fakegpu bandwidth",
            "version": __version__,
            "collective": plan.collective,
            "dtype": plan.dtype.label,
            "reduction": plan.op.label,
            "root": plan.root,
            "world_size": plan.world_size,
            "nodes": plan.cluster.node_count,
            "ranks": list(plan.ranks),
            "session": self.session,
            "transport": "tcp",
            "coordinator": str(plan.address),
            "warmup": plan.warmup,
            "iterations": plan.iterations,
            "host": socket.gethostname(),
            "start_time": self.started,
            **sizes[-1],
            "correct": self.correct,
            "results": sizes,
        }

    def show(self, style: str) -> None:
        """The table on standard output."""
        plan = self.plan
        if style == "osu":
            print(table.osu_title(self.results[0].workload))
            print("\n".join(table.osu_row(result) for result in self.results))
            return
        print(
            f"# fakegpu {__version__} bandwidth: {plan.collective}, {plan.world_size} ranks "
            f"on {plan.cluster.node_count} "
            f"nodes, ranks {', '.join(map(str, plan.ranks))} here, tcp {plan.address}"
        )
        print(f"# warmup iters: {plan.warmup} iters: {plan.iterations} validation: {int(plan.check)}")
        print(table.HEADER)
        print("\n".join(table.row(result) for result in self.results))
        print(table.footer(self.results))
        last = table.as_json(self.results[-1])
        for rank in last["per_rank"]:
            print(
                f"# rank {rank['rank']}: {plan.collective} sample {rank['sample']}, "
                f"{'correct' if rank['correct'] else 'WRONG'}, algorithmic {rank['algbw_gbps']:.3f} Gbit/s, "
                f"socket payload in both directions {rank['socket_payload_gbps_per_rank']:.3f} Gbit/s"
            )


def coordinator_for(plan: Plan, report: str | None):
    """The run's own coordinator for --listen, nothing for --connect."""
    if not plan.listens:
        return nullcontext()
    from fakegpu.launch.private import PrivateCoordinator

    chosen = Settings.from_env({}).override(
        coordinator_transport="tcp",
        coordinator_addr=str(plan.address),
        report=report,
        timeout_ms=int(plan.timeout_s * 1000),
    )
    return PrivateCoordinator(chosen, plan.cluster)


def check_coordinator(address: Address) -> None:
    """NoCoordinatorError when nobody listens there."""
    from fakegpu import endpoint

    endpoint.connect(address, timeout=1.0).close()


def main(argv: list[str] | None = None) -> int:
    """Run, print, write; 0 if everything was right."""
    plan, options = parse(argv)
    session = plan.session or f"local-{uuid.uuid4().hex[:8]}"
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    with coordinator_for(plan, options.cluster_report) as coordinator:
        address = coordinator.address if coordinator else plan.address
        if not coordinator:
            check_coordinator(address)
        try:
            results = Ranks(plan, address, session).results()
        except RankFailed as failure:
            print(f"fakegpu: error: {failure}", file=sys.stderr)
            return 1
    run = Run(attrs.evolve(plan, address=address), session, started, results)
    if not options.quiet:
        run.show(options.format)
    if options.json:
        options.json.write_text(json.dumps(run.document(), indent=2) + "\n", encoding="utf-8")
    return 0 if run.correct else 1
