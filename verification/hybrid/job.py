"""The launcher's side: one torchrun job under fgpu, its ranks' records, and what the cluster report must show.

The compute mode is the environment's (FAKEGPU_MODE, simulate unless set), so that the same command checks a real GPU
in hybrid mode. The folder keeps rank<N>.json, cluster_report.json and .md, output.txt and result.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

VERIFICATION = Path(__file__).resolve().parent.parent
ROOT = VERIFICATION.parent
for folder in (ROOT, VERIFICATION):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from check_cluster_report import check  # noqa: E402

from fakegpu import report as cluster_report  # noqa: E402

SECONDS = 300
Expected = Counter  # (operation, data type, reduction, bytes): calls


def run(worker: str, world: int, folder: Path, *arguments: str) -> tuple[list[dict], dict]:
    """Run the worker on `world` ranks of the two-node cluster; the ranks' records and the report's document."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("rank*.json"):
        old.unlink()
    report = folder / "cluster_report.json"
    command = [
        sys.executable, "-m", "fakegpu", "run", "--report", str(report),
        "--cluster-config", str(VERIFICATION / "data" / f"cluster_hybrid_{world}r.yaml"),
        "torchrun", "--standalone", "--nproc-per-node", str(world), str(ROOT / worker), "--report-dir", str(folder), *arguments,
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=SECONDS, check=False)
    (folder / "output.txt").write_text(done.stdout + done.stderr)
    if done.returncode:
        wrong = [line for line in done.stdout.splitlines() if "FAILED" in line] or (done.stdout + done.stderr).splitlines()
        raise AssertionError("\n".join([f"exit status {done.returncode}", *wrong[-20:]]))
    records = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world)]
    document = json.loads(report.read_text(encoding="utf-8"))
    problems = check(document, cluster_report.schema())
    if document["resilience"]["failure_count"] or document["operation_timeline"]["dropped_entries"]:
        problems.append("the report has failures or dropped operations")
    if problems:
        raise AssertionError("; ".join(problems))
    return records, document


def compare_operations(document: dict, expected: Expected, ours: Callable[[dict], bool]) -> dict:
    """Every operation of the report for which ours(entry) must be expected, as often; readable counts."""
    found = Counter(
        (entry["operation"], entry["data_type"], entry["reduce_op"], entry["logical_payload_bytes"])
        for entry in document["operation_timeline"]["entries"]
        if ours(entry)
    )
    if found != expected:
        more, less = found - expected, expected - found
        raise AssertionError(f"operations of the report: not expected {dict(more)}, missing {dict(less)}")
    return {
        " ".join([operation, dtype, *([reduction] if reduction else []), f"{size} B"]): calls
        for (operation, dtype, reduction, size), calls in found.items()
    }


def same_everywhere(records: list[dict], *keys: str) -> None:
    """The ranks' records agree, to the bit, on what is under each key."""
    for key in keys:
        for record in records[1:]:
            if record[key] != records[0][key]:
                raise AssertionError(f"{key} of rank {record['rank']} differs from rank 0's")


def main(name: str, parser: argparse.ArgumentParser, body: Callable[[argparse.Namespace, Path], dict]) -> int:
    """Parse, run body(options, folder), write result.json, print one line; the exit status."""
    parser.add_argument("--report-dir", type=Path, help="folder for records, report and result (build/NAME)")
    options = parser.parse_args()
    folder = (options.report_dir or ROOT / "build" / name).absolute()
    try:
        evidence, wrong = body(options, folder), ""
    except (AssertionError, subprocess.TimeoutExpired) as error:
        evidence, wrong = {}, str(error)
    result = {"name": name, "passed": not wrong, "mode": os.environ.get("FAKEGPU_MODE", "simulate"), **evidence}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result | ({"error": wrong} if wrong else {}), indent=2) + "\n")
    print(f"{name}: FAIL: {wrong}" if wrong else f"{name}: PASS, {evidence.get('summary', '')}; {folder}")
    return 1 if wrong else 0
