"""Starts a torchrun program below ./fgpu for a test and collects what it printed and the report.

The programs in jobs/ know nothing of fakegpu. Each announces what it found with lines `ok RANK NAME`, or prints the
text of an error it caught after `caught RANK NAME:` (in one write, since ranks share a pipe); the tests check those.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
JOBS = Path(__file__).resolve().parent / "jobs"
DROPPED = ("FAKEGPU_", "TORCH_", "NCCL_", "CUDA_VISIBLE_DEVICES", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_")


@dataclass
class Job:
    """A finished job: exit status, everything it printed, its cluster report."""

    status: int
    output: str
    report: dict

    def ok(self, name: str) -> list[int]:
        """Ranks that announced `name`, sorted."""
        return sorted(int(rank) for rank in re.findall(rf"^ok (\d+) {re.escape(name)}$", self.output, re.MULTILINE))

    def caught(self, name: str) -> dict[int, str]:
        """The error text that each rank announced under `name`; newlines are spaces there."""
        found = re.findall(rf"^caught (\d+) {re.escape(name)}: (.*)$", self.output, re.MULTILINE)
        return {int(rank): text for rank, text in found}

    def failures(self) -> str:
        """Details of all failure events of the report, one a line."""
        return "\n".join(f"{event['operation']}: {event['error_detail']}"
                         for event in self.report.get("resilience", {}).get("failure_events", []))

    def succeeded(self) -> Job:
        """The job itself, provided that it ended with status 0."""
        assert self.status == 0, f"exit status {self.status}\n{self.output}"
        return self


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def torchrun(script: str, ranks: int, folder: Path, *arguments: str, flags: tuple[str, ...] = (),
             launch: tuple[str, ...] = (), seconds: float = 240, **variables: str) -> Job:
    """Run jobs/SCRIPT on `ranks` ranks; `flags` go to fgpu, `launch` to torchrun, `variables` to the environment."""
    report = folder / f"{Path(script).stem}.json"
    program = script if Path(script).is_absolute() else str(JOBS / script)
    devices = () if "--devices" in flags else ("--device-count", str(ranks))
    command = [sys.executable, "-m", "fakegpu", "run", *devices, "--report", str(report), *flags,
               "torchrun", "--nproc-per-node", str(ranks), "--master-port", str(free_port()), *launch, program, *arguments]
    base = {name: value for name, value in os.environ.items() if not name.startswith(DROPPED)}
    base |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder), **variables}
    process = subprocess.Popen(command, env=base, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        output = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # the launcher ends what it started
        output = process.communicate(timeout=30)[0] + f"\n[ended after {seconds:g} s]"
    finally:
        process.kill()
    document = json.loads(report.read_text()) if report.exists() else {}
    return Job(process.returncode, output, document)
