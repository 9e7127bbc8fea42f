"""Random failures, many times: whoever survives ends with the right error or the right result, and nothing is left.

usage: chaos.py [--scenarios 500] [--seed 1] [--workers 3] [--only NUMBER] [--json EVIDENCE]

Each scenario is made from the seed and its number: 2 to 8 ranks over the Python client or libnccl.so.2, a Unix socket
or TCP, some operations, and one fault at a random place: a rank killed before or within an operation (alone, or while a
child of it lives on and holds its sockets), paused or frozen, or its connection cut, torn in the middle of a frame,
delayed or held for ever by a proxy. One coordinator per transport serves all of them. Survivors must hear of a dead
rank within a second, in a text that names it. Exit status 1 and the scenario's number when something is not as it must be.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from chaos_parts import KINDS, proxy_process, rank_process  # noqa: E402

from fakegpu.control import ask_status  # noqa: E402
from fakegpu.nccl_ctypes import Nccl  # noqa: E402
from fakegpu.settings import parse_address  # noqa: E402

FAULTS = ("none", "kill", "kill-within", "kill-parent", "pause", "freeze", "cut", "truncate", "delay", "hold")
BY_PROXY = ("cut", "truncate", "delay", "hold")
HARMLESS = ("none", "pause", "delay")
SILENT = ("freeze", "hold")  # found by the time-out only; the victim never hears of anything
DEADLY = ("kill", "kill-within", "kill-parent")
PATIENCE_S = 60.0
DEATH_HEARD_S = 1.0  # from the process's death, or the call after it, to the error
MEMORY_GROWTH_KIB = 48 * 1024  # of a coordinator: its timeline is bounded, the allocator keeps some


class Scenario:
    """Everything about scenario `number` of a seed."""

    def __init__(self, seed: int, number: int, nccl: Nccl) -> None:
        chance = random.Random(f"{seed}/{number}")
        self.number, self.nccl = number, nccl
        self.session = f"chaos-{seed}-{number}"
        self.fault = FAULTS[number % len(FAULTS)]
        self.ranks = chance.choice((2, 2, 3, 3, 4, 5, 8))
        self.engine = chance.choice(("python", "nccl"))
        self.transport = "tcp" if self.fault in BY_PROXY else chance.choice(("unix", "tcp"))
        self.victim = chance.randrange(self.ranks)
        count = chance.randint(3, 8)
        self.operations = [(chance.choice(KINDS), chance.choice((1, 10, 1000, 40_000))) for _ in range(count)]
        self.at = chance.randrange(count)
        self.downstream = chance.random() < 0.5
        # bytes of the victim's connection; its greeting takes some hundreds, what comes then depends on the sizes
        self.amount = chance.randint(0, 5000 if self.fault in BY_PROXY else 3000)
        if self.fault in BY_PROXY and chance.random() < 0.5:
            self.amount *= 40
        self.timeout_ms = 2500 if self.fault in SILENT else 40_000
        self.life = (-1, -1)  # a pipe: a victim's child lives until its writing end is closed

    def __str__(self) -> str:
        return (f"scenario {self.number}: {self.fault} of rank {self.victim} of {self.ranks}, {self.engine} over "
                f"{self.transport}, operation {self.at} of {self.operations}, amount {self.amount}"
                f"{' downstream' if self.downstream else ''}")  # fmt: skip


def fork(body, *arguments) -> int:
    """A child that runs a body and nothing else."""
    child = os.fork()
    if child:
        return child
    try:
        body(*arguments)
        os._exit(0)
    except BaseException as error:
        os.write(2, f"chaos: {body.__name__}: {error!r}\n".encode())
        os._exit(1)


def play(scenario: Scenario, addresses: dict[str, str]) -> tuple[str, str]:
    """(what came of it, "" or what is wrong) of one scenario."""
    where = addresses[scenario.transport]
    proxy, victims_way = 0, where
    if scenario.fault in BY_PROXY:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            victims_way = f"127.0.0.1:{listener.getsockname()[1]}"
            proxy = fork(proxy_process, scenario, listener, where)
    pids, pipes = [], []
    scenario.life = os.pipe()
    for rank in range(scenario.ranks):
        reader, writer = os.pipe()
        pids.append(fork(rank_process, scenario, rank, victims_way if rank == scenario.victim else where, writer))
        os.close(writer)
        pipes.append(reader)
    answers, died = collect(scenario, pids, pipes)
    for end in scenario.life:
        os.close(end)
    for pid in [*pids, *([proxy] if proxy else [])]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(pid, 0)
    return judge(scenario, answers, died)


def collect(scenario: Scenario, pids: list[int], pipes: list[int]) -> tuple[list[dict | None], float]:
    """What every rank reported, and when the victim ended. None: it ended without a word; "hang": it never ended."""
    answers: list = [{"hang": True}] * len(pids)
    until, resume = time.monotonic() + PATIENCE_S, scenario.fault == "pause"
    waiting: dict[int, int] = dict(zip(pipes, range(len(pipes))))
    victim, died = os.pidfd_open(pids[scenario.victim]), 0.0
    while waiting and time.monotonic() < until:
        if set(waiting.values()) == {scenario.victim} and scenario.fault in SILENT:
            break  # it hears of nothing, ever
        if resume and stopped(pids[scenario.victim]):
            time.sleep(0.05)  # how long it pauses; everybody else waits for it, which is the point
            os.kill(pids[scenario.victim], signal.SIGCONT)
            resume = False
        for pipe in select.select([*waiting, *([] if died else [victim])], [], [], 0.02 if resume else 1.0)[0]:
            if pipe == victim:
                died = time.monotonic()
                continue
            data = os.read(pipe, 65536)
            answers[waiting.pop(pipe)] = pickle.loads(data) if data else None
    for pipe in [*pipes, victim]:
        os.close(pipe)
    return answers, died


def stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def names(text: str, rank: int) -> bool:
    """Whether a text speaks of a rank: "rank 3", "ranks 0, 2-4" or "(0-1, 3)"."""
    for listed in re.findall(r"\branks? ((?:\d+(?:-\d+)?(?:, | and |,)?)+)", text):
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", listed):
            if int(first) <= rank <= int(last or first):
                return True
    return False


def judge(scenario: Scenario, answers: list[dict | None], died: float) -> tuple[str, str]:
    """See play."""
    if os.environ.get("CHAOS_VERBOSE"):
        print(scenario, *enumerate(answers), sep="\n    ", flush=True)
    survivors = {rank: answer for rank, answer in enumerate(answers) if rank != scenario.victim}
    total = len(scenario.operations)
    for rank, answer in enumerate(answers):
        if answer and answer.get("wrong"):
            return "", f"rank {rank} got a wrong value: {answer['wrong']}"
        if rank in survivors and (answer is None or "hang" in answer):
            return "", f"rank {rank} {'hangs' if answer else 'died'}, though nothing was done to it"
    failed = {rank: answer["error"] for rank, answer in survivors.items() if answer["error"]}
    victim = answers[scenario.victim]
    if not failed:
        if any(answer["right"] != total for answer in survivors.values()):
            return "", "a rank neither failed nor did everything"
        whole = victim is not None and victim.get("right") == total and not victim.get("error")
        if scenario.fault in HARMLESS and not whole:
            return "", f"rank {scenario.victim}: {victim}"
        return "right" if whole else "right, before the victim's end", ""
    if scenario.fault in HARMLESS:
        return "", f"errors without a cause: {failed}"
    for rank, text in failed.items():
        if not names(text, scenario.victim):
            return "", f"rank {rank}'s error does not name rank {scenario.victim}: {text}"
        late = survivors[rank]["failed"] - max(died, survivors[rank]["called"])
        if scenario.fault in DEADLY and late > DEATH_HEARD_S:
            return "", f"rank {rank} heard of the death after {late:.2f} s: {text}"
    if victim is not None and "hang" in victim and scenario.fault not in SILENT:
        return "", "the victim hangs"
    if len(failed) == len(survivors) and scenario.ranks > 2 and all("init" not in text.lower() for text in failed.values()):
        bad = {rank: answer["shrunk"] for rank, answer in survivors.items() if answer["shrunk"]}
        if bad:
            return "", f"shrinking to the survivors failed: {bad}"
        return "error, then shrunk", ""
    return "error", ""


class Coordinators:
    """A coordinator process per transport, and what of the system's they use."""

    def __init__(self) -> None:
        self.processes, self.addresses = {}, {}
        for transport, where in (("unix", f"/tmp/fakegpu-chaos-{os.getpid()}"), ("tcp", "127.0.0.1:0")):
            command = [sys.executable, "-m", "fakegpu", "coordinator", "--transport", transport, "--address", where]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=None if os.environ.get("CHAOS_VERBOSE") else subprocess.DEVNULL, text=True)
            self.processes[transport] = process
            self.addresses[transport] = process.stdout.readline().split()[-1]

    def usage(self) -> dict:
        """Threads, descriptors and resident memory of both; shared segments and connections; all when idle."""
        found: dict = {"shm": len(os.listdir("/dev/shm"))}
        for transport, process in self.processes.items():
            root = Path(f"/proc/{process.pid}")
            if process.poll() is not None:
                raise SystemExit(f"chaos: the {transport} coordinator ended with {process.returncode}")
            status = self.idle(transport)
            threads, most = len(os.listdir(root / "task")), 1 + max(1, min(4, (os.cpu_count() or 1) // 2))
            found[transport] = {
                "threads": max(threads, most),  # its pool starts when the first large reduction comes
                "descriptors": self.settled(lambda root=root: len(os.listdir(root / "fd"))),
                "rss_kib": int((root / "status").read_text().partition("VmRSS:")[2].split()[0]),
                "communicators": len(status["communicators"]),
                "gathering": status["gathering"],
                "buffered_bytes": status["buffered_bytes"],
            }
        return found

    @staticmethod
    def settled(count: Callable[[], int]) -> int:
        """A count once it stays the same: our own last question may still be on its way out."""
        found = count()
        for _ in range(20):
            time.sleep(0.05)
            before, found = found, count()
            if before == found:
                break
        return found

    def idle(self, transport: str) -> dict:
        """Its status, once it has seen that all connections but our own are gone."""
        until = time.monotonic() + 15
        while True:
            status = ask_status(parse_address(self.addresses[transport]))
            if status["connections"] <= 1 and not status["communicators"] or time.monotonic() > until:
                return status
            time.sleep(0.05)

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
            process.communicate()


def worker(seed: int, numbers: range, addresses: dict[str, str], pipe: int) -> None:
    """Play some scenarios, one after the other, and say how each ended."""
    nccl = Nccl()
    for number in numbers:
        scenario = Scenario(seed, number, nccl)
        started = time.monotonic()
        outcome, wrong = play(scenario, addresses)
        row = (scenario.fault, outcome, f"{scenario}: {wrong}" if wrong else "", time.monotonic() - started)
        os.write(pipe, json.dumps(row).encode() + b"\n")


def run(seed: int, numbers: range, workers: int, addresses: dict[str, str]) -> list[tuple]:
    reader, writer = os.pipe()
    pids = [fork(worker, seed, numbers[index::workers], addresses, writer) for index in range(workers)]
    os.close(writer)
    with os.fdopen(reader) as lines:
        rows = [tuple(json.loads(line)) for line in lines]
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    if any(statuses) or len(rows) != len(numbers):
        raise SystemExit(f"chaos: {len(rows)} of {len(numbers)} scenarios ended; workers' statuses {statuses}")
    return rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--only", type=int, help="play this scenario alone")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    coordinators = Coordinators()
    try:
        numbers = range(options.scenarios) if options.only is None else range(options.only, options.only + 1)
        run(options.seed, range(10_000, 10_000 + len(FAULTS)), options.workers, coordinators.addresses)  # warm
        first = coordinators.usage()
        started = time.monotonic()
        rows = run(options.seed, numbers, options.workers, coordinators.addresses)
        seconds, last = time.monotonic() - started, coordinators.usage()
    finally:
        coordinators.stop()
    counts = Counter((fault, outcome or "WRONG") for fault, outcome, _, _ in rows)
    for (fault, outcome), count in sorted(counts.items()):
        print(f"  {fault:<12} {outcome:<32} {count:>4}")
    problems = [wrong for _, _, wrong, _ in rows if wrong]
    for name in ("unix", "tcp"):
        print(f"  {name} coordinator first {first[name]}")
        print(f"  {name} coordinator last  {last[name]}")
        grown = last[name]["rss_kib"] - first[name]["rss_kib"]
        if grown > MEMORY_GROWTH_KIB:
            problems.append(f"{name} coordinator: memory grew by {grown} KiB, allowed {MEMORY_GROWTH_KIB}")
        for key in ("threads", "descriptors", "communicators", "gathering", "buffered_bytes"):
            if last[name][key] > first[name][key]:
                problems.append(f"{name} coordinator: {key} grew from {first[name][key]} to {last[name][key]}")
    if last["shm"] > first["shm"]:
        problems.append(f"/dev/shm: {first['shm']} entries before, {last['shm']} after")
    for problem in problems:
        print(f"  {problem}")
    verdict = "ok" if not problems else f"{len(problems)} problems"
    print(f"chaos: {verdict}: {len(rows)} scenarios, seed {options.seed}, {seconds:.0f} s")
    if options.json:
        evidence = {"seed": options.seed, "scenarios": len(rows), "problems": problems, "first": first, "last": last,
                    "counts": [[*key, count] for key, count in sorted(counts.items())]}  # fmt: skip
        options.json.write_text(json.dumps(evidence, indent=2) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
