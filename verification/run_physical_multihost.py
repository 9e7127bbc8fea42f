#!/usr/bin/env python3
"""Runs the numerical and failure cases across hosts that ssh reaches, one rank per host, and collects one result.

    python3 verification/run_physical_multihost.py --coordinator-host ADDRESS_OF_THE_FIRST_NODE \\
        --node 'name=a;ssh=gpu-a;repo=/home/user/fakegpu;python=/opt/torch/bin/python;shell=posix' \\
        --node 'name=b;ssh=user@gpu-b;repo=/home/user/fakegpu;python=/opt/torch/bin/python;shell=wsl'

Nodes are ranks in order; the coordinator and torch's rendezvous run on the first. Every node has a checkout of this
commit, built there (`./fgpu true`); nothing is copied or changed. The result is OUTPUT_DIR/SESSION/result.json, written
after every case, also when a host is lost or the controller is interrupted. Exit status 0 only if every case passed.
"""

import argparse
import json
import re
import secrets
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from multihost.cases import CASES, Case, command, plain_variables, problems  # noqa: E402
from multihost.node import Hosts, Job, Node  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
UNHANDLED = 3  # fgpu's status when a communicator failed although the program ended well
LOST_GRACE = 45  # seconds that the others have to notice a lost host by themselves


class Refused(Exception):
    """The nodes do not fit: nothing was started."""


class Interrupted(Exception):
    """A signal asked the controller to stop."""


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def local_commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Flags; wrong combinations end with argparse's one line and status 2."""
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--node", type=Node.parse, action="append", required=True, dest="nodes",
                        metavar="'name=..;ssh=..;repo=..;python=..;shell=posix|wsl'", help="one rank, in order; two or more")
    parser.add_argument("--coordinator-host", required=True, help="address of the first node that all nodes reach")
    parser.add_argument("--coordinator-port", type=int, default=29591, help="29591")
    parser.add_argument("--master-port", type=int, default=29592, help="torch's rendezvous (29592)")
    parser.add_argument("--case", action="append", dest="cases", choices=names, help="run this one; default: all")
    parser.add_argument("--mode", choices=("simulate", "hybrid"), default="simulate", help="who computes (simulate)")
    parser.add_argument("--session", help="name of the result's folder; default: the time")
    parser.add_argument("--output-dir", type=Path, default=ROOT / "build" / "physical_multihost_validation")
    parser.add_argument("--timeout", type=float, default=300, help="seconds of one case (300)")
    parser.add_argument("--connect-timeout", type=int, default=10, help="seconds until ssh gives up (10)")
    parser.add_argument("--ssh", default="ssh", help="the ssh command with its own options, for example 'ssh -F FILE'")
    options = parser.parse_args(argv)
    options.session = options.session or datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    if len(options.nodes) < 2:
        parser.error("--node: found 1, expected at least 2")
    if len({node.name for node in options.nodes}) < len(options.nodes):
        parser.error("--node: two nodes have the same name")
    ports = (options.coordinator_port, options.master_port)
    if ports[0] == ports[1] or not all(0 < port < 65536 for port in ports):
        parser.error(f"--coordinator-port {ports[0]}, --master-port {ports[1]}: expected two different ports, 1 to 65535")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", options.session):
        parser.error(f"--session {options.session}: expected letters, digits, '.', '_' and '-'")
    return options


class Signals:
    """SIGINT and SIGTERM raise Interrupted, once, and never while a job is being started: nobody would stop it."""

    def __init__(self) -> None:
        self.starting, self.arrived = False, ""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.take)

    def take(self, number: int, _frame) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)  # once is enough: what was started is being stopped
        self.arrived = signal.Signals(number).name
        if not self.starting:
            raise Interrupted(self.arrived)

    @contextmanager
    def held(self):
        self.starting = True
        try:
            yield
        finally:
            self.starting = False
        if self.arrived:
            raise Interrupted(self.arrived)


class Controller:
    """One run: preflight, cases, the combined result."""

    def __init__(self, options: argparse.Namespace, signals: Signals) -> None:
        self.options, self.nodes = options, options.nodes
        self.hosts = Hosts(options.ssh, options.connect_timeout, signals.held)
        self.folder = options.output_dir / options.session
        host = f"[{options.coordinator_host}]" if ":" in options.coordinator_host else options.coordinator_host
        self.coordinator = f"{host}:{options.coordinator_port}"
        self.token = secrets.token_hex(16)
        self.result = {
            "session": options.session, "mode": options.mode, "started": now(), "finished": None, "complete": False,
            "passed": False, "coordinator": self.coordinator, "master_port": options.master_port, "commit": local_commit(),
            "error": None, "nodes": [{"rank": rank, "name": node.name, "ssh": node.ssh, "shell": node.shell}
                                     for rank, node in enumerate(self.nodes)],
            "cases": [], "node_pairs": [], "failures": [],
        }  # fmt: skip

    def write(self) -> None:
        """The result as it stands; a reader never sees half of it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / "result.json.part"
        part.write_text(json.dumps(self.result, indent=2) + "\n", encoding="utf-8")
        part.replace(self.folder / "result.json")

    # ---- before anything runs ----

    def look(self) -> list[str]:
        """Ask every node at once; what does not fit, one line each."""
        jobs = [self.hosts.start(node, {"do": "preflight", "torch": self.needs_torch()}) for node in self.nodes]
        deadline = time.monotonic() + self.options.connect_timeout + 90
        wrong = []
        for row, job in zip(self.result["nodes"], jobs):
            job.wait(max(deadline - time.monotonic(), 0))
            row["preflight"] = job.preflight
            wrong += [f"node {job.node.name}: {text}" for text in self._unfit(job)]
            if not job.ended:
                job.kill()
        return wrong

    def _unfit(self, job: Job) -> list[str]:
        found = job.preflight
        if found is None:
            return [job.why or "no answer in time"]
        wrong, commit = [], self.result["commit"]
        if found["commit"] != commit:
            wrong.append(f"commit {found['commit'] or 'unknown'}, expected this checkout's {commit}")
        if found["changed"]:
            wrong.append(f"tracked files are changed: {', '.join(line.split()[-1] for line in found['changed'][:5])}")
        if found["missing"]:
            wrong.append(f"not built: {', '.join(found['missing'])}; run ./fgpu true there")
        if self.needs_torch() and not found["cuda"]:
            wrong.append(f"python has no torch with CUDA (torch {found['torch'] or 'absent'})")
        if self.options.mode == "hybrid" and not found["real_devices"]:
            wrong.append("hybrid needs a real GPU, torch sees none; --mode simulate needs none")
        return wrong

    def needs_torch(self) -> bool:
        return self.options.mode == "hybrid" or any(case.torchrun for case in self.chosen())

    def chosen(self) -> list[Case]:
        return [case for case in CASES if not self.options.cases or case.name in self.options.cases]

    # ---- a case ----

    def start_coordinator(self) -> Job:
        world = len(self.nodes)
        shape = ["--cluster-config", "verification/data/cluster_tcp_2r.yaml"] if world == 2 else [
            "--nodes", str(world), "--gpus-per-node", "1"]  # fmt: skip
        argv = ["{python}", "-m", "fakegpu", "coordinator", "--listen", self.coordinator, *shape,
                "--report", "{dir}/cluster.json", "--markdown-report", "{dir}/cluster.md"]  # fmt: skip
        job = self.hosts.run(self.nodes[0], argv, {"FAKEGPU_TOKEN": self.token}, self.options.timeout + 120)
        if not job.wait_line("coordinator listens", self.options.connect_timeout + 60):
            job.stop()
            job.wait(20)
            raise RuntimeError(job.why or f"the coordinator did not start: {' '.join(job.lines[-3:])}")
        return job

    def start_ranks(self, case: Case) -> list[Job]:
        place = {"coordinator": self.coordinator, "master": self.options.coordinator_host,
                 "master_port": str(self.options.master_port)}  # fmt: skip
        common = {"FAKEGPU_TOKEN": self.token, "OMP_NUM_THREADS": "1"}
        world, jobs = len(self.nodes), []
        for rank, node in enumerate(self.nodes):
            variables = common if case.torchrun else common | plain_variables(rank, world)
            argv = command(case, rank, world, place, self.options.mode)
            jobs.append(self.hosts.run(node, argv, variables, self.options.timeout))
        return jobs

    def wait_ranks(self, jobs: list[Job]) -> None:
        """Until all ended; a lost host or an error leaves the others a while to say what they noticed."""
        deadline = time.monotonic() + self.options.timeout
        while not all(job.ended for job in jobs) and time.monotonic() < deadline:
            if any(job.ended and job.status not in (0, UNHANDLED) for job in jobs):
                deadline = min(deadline, time.monotonic() + LOST_GRACE)
            next(job for job in jobs if not job.ended).wait(1)
        for job in jobs:
            if not job.ended:
                job.stop()
        for job in jobs:
            if not job.wait(20):
                job.kill()
                job.why = job.why or f"node {job.node.name}: no answer in time, given up"

    def run_case(self, case: Case) -> dict:
        """Coordinator, ranks, their files; the case's entry in the result."""
        began, entry = time.monotonic(), {"name": case.name, "passed": False, "error": None, "expected_failure": case.failure}
        self.result["cases"].append(entry)
        coordinator, jobs = self.start_coordinator(), []
        try:
            jobs = self.start_ranks(case)
            self.wait_ranks(jobs)
        finally:
            coordinator.stop()
            coordinator.wait(30)
        entry["seconds"] = round(time.monotonic() - began, 1)
        report, records = self.keep(case, coordinator, jobs)
        entry["ranks"] = [
            {"rank": rank, "node": job.node.name, "status": job.status, "error": job.why, "record": record}
            for rank, (job, record) in enumerate(zip(jobs, records))
        ]
        entry["node_pairs"] = report["node_pairs"] if report else []
        entry["failures"] = report["resilience"]["failure_events"] if report else []
        fine = (0, UNHANDLED) if case.failure else (0,)
        wrong = [self._ended_badly(rank, job) for rank, job in enumerate(jobs) if job.status not in fine]
        wrong += problems(case, records, report)
        entry["passed"], entry["error"] = not wrong, "; ".join(wrong) or None
        return entry

    @staticmethod
    def _ended_badly(rank: int, job: Job) -> str:
        said = [line for line in job.lines if "FAILED" in line or line.startswith("fakegpu:")] or job.lines[-2:]
        if job.status is None:
            return job.why
        why = f" ({job.why})" if job.why else ""
        return f"rank {rank} on node {job.node.name}: status {job.status}{why}: {' / '.join(line[:300] for line in said[:3])}"

    def keep(self, case: Case, coordinator: Job, jobs: list[Job]) -> tuple[dict | None, list[dict | None]]:
        """Everything that came back, as files; the report and the ranks' records."""
        folder = self.folder / case.name
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in coordinator.files.items():
            (folder / name).write_text(text, encoding="utf-8")
        records: list[dict | None] = []
        for rank, job in enumerate(jobs):
            (folder / f"{job.node.name}.txt").write_text("\n".join(job.lines) + "\n", encoding="utf-8")
            text = job.files.get(f"rank{rank}.json")
            records.append(json.loads(text) if text else None)
            if text:
                (folder / f"rank{rank}.json").write_text(text, encoding="utf-8")
        text = coordinator.files.get("cluster.json")
        return (json.loads(text) if text else None), records

    # ---- all of it ----

    def totals(self) -> None:
        """Bytes between every pair of nodes over all cases, and every failure that a report named."""
        pairs: dict[tuple[str, str], dict] = {}
        for entry in self.result["cases"]:
            for pair in entry.get("node_pairs", []):
                ends = (pair["node_a"], pair["node_b"])
                total = pairs.setdefault(ends, {"node_a": ends[0], "node_b": ends[1], "a_to_b_bytes": 0, "b_to_a_bytes": 0})
                total["a_to_b_bytes"] += pair["a_to_b"]["total_bytes"]
                total["b_to_a_bytes"] += pair["b_to_a"]["total_bytes"]
        self.result["node_pairs"] = list(pairs.values())
        self.result["failures"] = [
            {"case": entry["name"], **{key: event[key] for key in ("source", "operation", "error_detail")}}
            for entry in self.result["cases"] for event in entry.get("failures", [])
        ]  # fmt: skip

    def cases(self) -> None:
        lost = ""
        for case in self.chosen():
            if lost:
                self.result["cases"].append({"name": case.name, "passed": False, "error": f"not run: {lost}"})
                continue
            try:
                entry = self.run_case(case)
            except RuntimeError as error:
                entry = self.result["cases"][-1]
                entry["error"] = str(error)
            print(f"{case.name}: {'OK' if entry['passed'] else 'FAILED: ' + entry['error']}", flush=True)
            if any(rank["status"] is None for rank in entry.get("ranks", [])):
                lost = "; ".join(self.look())
            self.totals()
            self.write()

    def run(self) -> int:
        """The exit status."""
        try:
            self.result["error"] = "; ".join(self.look()) or None
            if self.result["error"]:
                raise Refused(self.result["error"])
            self.cases()
            self.result["complete"] = True
        except Interrupted as signal_name:
            self.result["error"] = f"interrupted by {signal_name}"
        except Refused as refusal:
            print(f"multihost: error: {refusal}", file=sys.stderr)
        finally:
            self.hosts.stop_all()
            self.totals()
            self.result["finished"] = now()
            self.result["passed"] = self.result["complete"] and all(entry["passed"] for entry in self.result["cases"])
            self.write()
        failed = [entry["name"] for entry in self.result["cases"] if not entry["passed"]]
        verdict = "PASS" if self.result["passed"] else f"FAIL: {', '.join(failed) or self.result['error']}"
        print(f"multihost: {verdict}, {len(self.nodes)} nodes, {self.options.mode}; {self.folder / 'result.json'}")
        return 0 if self.result["passed"] else 130 if str(self.result["error"]).startswith("interrupted") else 1


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    return Controller(options, Signals()).run()


if __name__ == "__main__":
    sys.exit(main())
