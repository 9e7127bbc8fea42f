"""./ftest torch-distributed: PyTorch's own DistributedTest under ./fgpu, compared with the committed list of outcomes.

Starts worker.py once per world size (again after a crash or a time-out, with the tests that are left), reads its
results, prints one line per test and a summary. Wrong is: a failure, a time-out, a skip that expected.yaml does not
have with this reason, a pass that it expects and that is not there. Judging is in outcome.py.
"""

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

import outcome  # noqa: E402 - beside this file, which is also started as a script

LAUNCHER = f"{shlex.quote(str(ROOT / 'fgpu'))} --device-count 4"
TEST_SECONDS = 300  # torch's bound per test, but for the longest
# convolutions of 1000 x 1000 images, about 30 CPU seconds a step: hours on two cores, where torch's table supposes a GPU
LONGEST = {"test_ddp_uneven_inputs": 6 * 3600}
WORKER_SECONDS = 620  # ours, above torch's: no line from the worker for so long is a hang
LOG_LINES = 60


def environment(world_size: int, start_method: str, scratch: str) -> dict[str, str]:
    """What distributed_test reads when it is imported."""
    # a fork server must not have asked CUDA for its devices, or its children cannot use them; NVML may be asked
    check = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"} if start_method == "forkserver" else {}
    return {**os.environ, **check, "BACKEND": "nccl", "WORLD_SIZE": str(world_size), "TEMP_DIR": scratch,
            "START_METHOD": start_method, "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(TEST_SECONDS),
            "TEST_SECONDS": json.dumps(LONGEST),
            "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE) + os.pathsep + os.environ.get("PYTHONPATH", "")}


class Worker:
    """One worker process, its results so far and its output."""

    def __init__(self, launcher: list[str], names: list[str], variables: dict[str, str], folder: Path) -> None:
        self.results, self.log = folder / "results.jsonl", folder / "output.log"
        self.results.touch()
        self.position = 0
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [*launcher, sys.executable, str(HERE / "worker.py"), str(self.results)], env=variables,
                stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, start_new_session=True)
        self.process.stdin.write("\n".join(names))
        self.process.stdin.close()

    def lines(self) -> list[dict]:
        """Result lines written since the last call."""
        with open(self.results) as file:
            file.seek(self.position)
            text = file.read()
        whole = text[:text.rfind("\n") + 1]
        self.position += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def end(self) -> None:
        """End the worker and everything it started; its launcher sees to what left the session."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(15)

    def tail(self, start: int) -> str:
        """The last lines of output since byte `start`, without C++ stack frames."""
        with open(self.log, "rb") as file:
            file.seek(start)
            lines = file.read().decode(errors="replace").splitlines()
        return "\n".join([line for line in lines if line and not line.lstrip().startswith("frame #")][-LOG_LINES:])


def follow(worker: Worker, report) -> tuple[set[str], str]:
    """Report each outcome; the finished tests and the one that was running when the worker ended ('' if none)."""
    done, running, log_start = set(), "", 0
    heard = time.monotonic()
    while True:
        ended = worker.process.poll() is not None
        for line in worker.lines():
            heard = time.monotonic()
            if line["state"] == "started":
                running, log_start = line["test"], worker.log.stat().st_size
                continue
            if line["state"] == "failed":
                line["log"] = worker.tail(log_start)
            done.add(line["test"])
            running = ""
            report(line)
        if ended:
            break
        if time.monotonic() - heard > LONGEST.get(running, WORKER_SECONDS):
            worker.end()
        time.sleep(0.1)  # pacing only: nothing is concluded from it
    if running:
        report({"test": running, "state": "failed", "seconds": round(time.monotonic() - heard, 1),
                "text": f"the worker ended in this test, exit status {worker.process.returncode}",
                "log": worker.tail(log_start)})
        done.add(running)
    return done, running


def run_world(world_size: int, names: list[str], options: argparse.Namespace) -> dict[str, dict]:
    """Run the tests at one world size; outcome by test."""
    found: dict[str, dict] = {}

    def report(line: dict) -> None:
        found[line["test"]] = line
        print(f"[{world_size}] {len(found)}/{len(names)} {line['test']} {line['state']} {line['seconds']}s", flush=True)
        if line["state"] == "failed":
            print(f"{line['text']}\n---- output ----\n{line['log']}\n----", flush=True)

    left = list(names)
    while left:
        with tempfile.TemporaryDirectory(prefix="fakegpu-dt-") as folder:
            variables = environment(world_size, options.start_method, folder)
            worker = Worker(shlex.split(options.launcher), left, variables, Path(folder))
            try:
                done, running = follow(worker, report)
                output = worker.tail(0)
            finally:
                worker.end()
        if not done:
            print(f"the worker did not start, exit status {worker.process.returncode}:\n{output}", flush=True)
            break
        left = [name for name in left if name not in done]
    return found


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ftest torch-distributed", description=__doc__)
    parser.add_argument("tests", nargs="*", help="only these (default: all of expected.yaml)")
    parser.add_argument("--exclude", action="append", default=[], metavar="TEST", help="leave a test out")
    parser.add_argument("--world-size", type=int, action="append", choices=(2, 4), help="default: 2, then 4")
    parser.add_argument("--start-method", choices=("spawn", "forkserver"), default="spawn",
                        help="forkserver forks each child from a process that has imported torch: several times faster")
    parser.add_argument("--launcher", default=LAUNCHER, help="command in front of the worker (default: %(default)s)")
    parser.add_argument("--only-failed", metavar="FILE", help="run the tests that failed in this --json result")
    parser.add_argument("--json", metavar="FILE", help="write the outcomes")
    parser.add_argument("--write-expected", action="store_true", help="rewrite expected.yaml from a run without failure")
    return parser.parse_args(arguments)


def all_tests() -> list[str]:
    """Names of all tests that the wheel has; torch makes some while it is imported."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "worker.py"), "--list"]
        done = subprocess.run(command, env=environment(2, "spawn", folder), stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.split()


def choose(options: argparse.Namespace, world_size: int, listed: list[str]) -> list[str]:
    """Names of the tests to run; the longest come last."""
    chosen = options.tests or listed
    if options.only_failed:
        before = json.loads(Path(options.only_failed).read_text()).get(str(world_size), {})
        chosen = [name for name, line in before.items() if line["state"] == "failed"]
    return sorted((name for name in chosen if name not in options.exclude), key=lambda name: (name in LONGEST, name))


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # as an interrupt: the worker is ended
    expected = outcome.load()
    everything: dict[str, dict] = {}
    problems: list[str] = []
    for world_size in options.world_size or [2, 4]:
        listed = outcome.names(expected, world_size)
        chosen = choose(options, world_size, all_tests() if options.write_expected else listed)
        began = time.monotonic()
        found = run_world(world_size, chosen, options)
        everything[str(world_size)] = found
        if options.json:
            Path(options.json).write_text(json.dumps(everything, indent=1))
        problems += outcome.judge(expected, world_size, chosen, found)
        counts = {state: sum(line["state"] == state for line in found.values()) for state in outcome.STATES}
        print(f"world size {world_size}: " + ", ".join(f"{number} {state}" for state, number in counts.items())
              + f", {time.monotonic() - began:.0f} s", flush=True)
    if options.write_expected:
        return outcome.write(everything)
    print("\n".join(problems) if problems else "torch-distributed: as expected")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
