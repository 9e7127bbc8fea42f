#!/usr/bin/env python3
"""The TCP path, as two hosts would use it: self-contained run, coordinator with two separate rank commands, refusals.

Checks the values, the JSON result and the cluster report; a wrong parameter on one side must be named on both. Exit
status 1 with the first broken promise; `--json FILE` writes the evidence. `./ftest tcp_bandwidth` runs it.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAKEGPU = [sys.executable, "-m", "fakegpu"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
SECONDS = 120


def start(*arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [*FAKEGPU, *arguments],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out, err


def expect(condition: bool, text: str, detail: object = "") -> None:
    if not condition:
        raise SystemExit(f"tcp bandwidth: FAILED: {text}\n{detail}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@contextmanager
def coordinator(folder: Path):
    """A coordinator process of its own; shut down by the command, as the documents say."""
    address = f"127.0.0.1:{free_port()}"
    process = start(
        "coordinator",
        "--listen",
        address,
        "--cluster-config",
        "verification/data/cluster_tcp_2r.yaml",
        "--report",
        str(folder / "cluster.json"),
    )
    try:
        ready = process.stdout.readline()
        expect(address in ready, "the coordinator says when it is ready", ready)
        yield address
        code, _, err = finish(start("coordinator", "--shutdown", address))
        expect(code == 0, "--shutdown stops the coordinator", err)
        code, _, err = finish(process)
        expect(code == 0, "the coordinator ends with status 0", err)
    finally:
        process.kill()
        process.communicate()


def check_report(path: Path, calls: int) -> dict:
    report = json.loads(path.read_text(encoding="utf-8"))
    expect(
        report["collectives"]["all_reduce"]["calls"] == calls,
        f"the report counts {calls} all-reduces",
        report["collectives"],
    )
    expect(report["cluster"]["node_count"] == 2, "the report has two nodes", report["cluster"])
    pair = report["node_pairs"][0]
    expect(pair["a_to_b"]["total_bytes"] > 0 and pair["b_to_a"]["total_bytes"] > 0, "traffic in both directions", pair)
    expect(all(rank["timeouts"] == 0 for rank in report["ranks"]), "no time-outs", report["ranks"])
    code, out, err = finish(
        subprocess.Popen(
            [sys.executable, "verification/check_cluster_report.py", str(path)],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    )
    expect(code == 0, "the report fits its schema", out + err)
    expect(path.with_suffix(".md").exists(), "a Markdown report lies beside it")
    return report


def self_contained(folder: Path) -> dict:
    result, report = folder / "bandwidth.json", folder / "cluster.json"
    code, out, err = finish(
        start(
            "bandwidth",
            "--listen",
            f"127.0.0.1:{free_port()}",
            "--nodes",
            "2",
            "--ranks-per-node",
            "1",
            "--size",
            "4MiB",
            "--warmup",
            "2",
            "--iterations",
            "10",
            "--json",
            str(result),
            "--cluster-report",
            str(report),
        )
    )
    expect(code == 0, "the self-contained run succeeds", out + err)
    expect("# Out of bounds values : 0 OK" in out, "the table ends as nccl-tests' does", out)
    found = json.loads(result.read_text(encoding="utf-8"))
    expect(found["correct"] is True and found["sample"] == [3, 3, 3], "the sum is right", found)
    expect([rank["sample"] for rank in found["per_rank"]] == [[3, 3, 3]] * 2, "on both ranks", found["per_rank"])
    ratio = found["socket_payload_gbps_per_rank"] / found["algbw_gbps"]
    expect(abs(ratio - 2) < 1e-9, "payload in both directions is twice the algorithmic bandwidth", ratio)
    check_report(report, 12)
    return {key: found[key] for key in ("algbw_gbps", "socket_payload_gbps_per_rank", "latency_us", "modeled")}


def two_commands(folder: Path) -> None:
    with coordinator(folder) as address:
        common = (
            "bandwidth",
            "--connect",
            address,
            "--world-size",
            "2",
            "--session",
            "check",
            "--size",
            "1MiB",
            "-n",
            "5",
        )
        both = [start(*common, "--ranks", str(rank)) for rank in range(2)]
        for process in both:
            code, out, err = finish(process)
            expect(code == 0 and "sample [3, 3, 3], correct" in out, "two separate commands meet", out + err)
    check_report(folder / "cluster.json", 7)


def mismatches(folder: Path) -> None:
    """Both sides must name what differs."""
    base = {"--session": "check", "--size": "1MiB", "--iterations": "5", "--timeout": "5"}
    with coordinator(folder) as address:
        for flag, value in (("--size", "2MiB"), ("--iterations", "6"), ("--session", "other"), ("--world-size", "3")):
            sides = [base, base | {flag: value}]
            processes = [
                start(
                    "bandwidth",
                    "--connect",
                    address,
                    "--world-size",
                    "2",
                    "--ranks",
                    str(rank),
                    *(word for pair in side.items() for word in pair),
                )
                for rank, side in enumerate(sides)
            ]
            for process in processes:
                code, out, err = finish(process)
                expect(code == 1 and flag in err, f"a different {flag} is an error that names it", (code, out, err))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measured = self_contained(folder)
        two_commands(folder)
        mismatches(folder)
    if options.json:
        options.json.write_text(json.dumps({"check": "tcp_bandwidth", "ok": True, **measured}, indent=1))
    print(
        f"tcp bandwidth: OK: sample [3, 3, 3] on both ranks, {measured['algbw_gbps']:.2f} Gbit/s algorithmic, "
        f"modelled {measured['modeled']['bandwidth_gbps']:.2f} Gbit/s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
