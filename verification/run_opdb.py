#!/usr/bin/env python3
"""PyTorch's whole operator database on a fake device against the CPU, and against the manifest of outcomes.

    verification/run_opdb.py [--samples 8] [--workers 2] [--write]        also: ./ftest op-db   (long)

Runs opdb.py in shards below fgpu and prints the counts per dtype. Exit status 1 when an operator disagrees with the
CPU, or when an outcome is not the one that data/torch_opdb.yaml names: an entry that is not in that file must agree.
--write makes the file from this run; README.md's table comes from it (generate_docs.py).
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
MANIFEST = ROOT / "data" / "torch_opdb.yaml"
AGREE = "agree"
DISAGREE = "DISAGREE"
COLUMNS = ("agree", "agree (random)", "refused", "not on CUDA", "no CPU reference", DISAGREE)
HEADER = """\
# What PyTorch's operator database (op_db) gives on a fake device: checks per dtype and outcome, and every entry whose
# outcome is not plain agreement with the CPU. Written by verification/run_opdb.py --write, checked by ./ftest op-db.
#   agree (random)    sizes, dtype and device agree; values are random or unwritten memory
#   refused           a documented refusal (data/api/torch_ops.yaml)
#   not on CUDA       torch itself has no such operator on CUDA
#   no CPU reference  runs, and torch's CPU build has nothing to compare with
"""


def shard(index: int, count: int, samples: int, folder: Path) -> list[dict]:
    """The records of one part of the database; SystemExit with its output when it did not finish."""
    out = folder / f"{index}.json"
    command = [sys.executable, "-m", "fakegpu", "run", "--quiet", "--device-count", "1", sys.executable,
               str(ROOT / "verification" / "opdb.py"), "--samples", str(samples), "--shard", f"{index}/{count}",
               "--json", str(out)]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if not out.exists():
        raise SystemExit(f"op-db: a part ended with status {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return json.loads(out.read_text())


def counts(records: list[dict]) -> dict[str, dict[str, int]]:
    """{dtype: {outcome: checks}}, outcomes that occur."""
    table: dict[str, collections.Counter] = {}
    for record in records:
        table.setdefault(record["dtype"], collections.Counter())[record["status"]] += 1
    return {dtype: {name: row[name] for name in COLUMNS if row[name]} for dtype, row in table.items()}


def others(records: list[dict]) -> dict[str, dict[str, list[str]]]:
    """{outcome: {entry: dtypes}} of everything but plain agreement."""
    found: dict[str, dict[str, list[str]]] = {}
    for record in records:
        if record["status"] not in (AGREE, DISAGREE):
            found.setdefault(record["status"], {}).setdefault(record["entry"], []).append(record["dtype"])
    return {outcome: dict(sorted(entries.items())) for outcome, entries in sorted(found.items())}


def differences(records: list[dict], manifest: dict) -> list[str]:
    """One line per check whose outcome is not the manifest's."""
    expected = {(entry, dtype): outcome for outcome, entries in manifest["others"].items()
                for entry, dtypes in entries.items() for dtype in dtypes}  # fmt: skip
    lines = []
    for record in records:
        key = (record["entry"], record["dtype"])
        wanted = expected.pop(key, AGREE)
        if record["status"] != wanted:
            lines.append(f"{key[0]} [{key[1]}]: {record['status']}, the manifest says {wanted}; {record['detail']}")
    lines += [f"{entry} [{dtype}]: {outcome} in the manifest, not run" for (entry, dtype), outcome in expected.items()]
    return lines


def write(records: list[dict], torch_version: str) -> None:
    content = {"version": 1, "torch": torch_version, "checks": counts(records), "others": others(records)}
    text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=118)
    MANIFEST.write_text(HEADER + text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="make the manifest from this run")
    parser.add_argument("--from-json", nargs="+", type=Path, help="records of opdb.py --json instead of a run")
    options = parser.parse_args()
    if options.from_json:
        records = [record for path in options.from_json for record in json.loads(path.read_text())]
    else:
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as pool:
            parts = pool.map(lambda i: shard(i, options.workers, options.samples, Path(folder)), range(options.workers))
            records = [record for part in parts for record in part]
    print(f"{'dtype':10}" + "".join(f"{column:>18}" for column in COLUMNS))
    for dtype, row in counts(records).items():
        print(f"{dtype:10}" + "".join(f"{row.get(column, 0):18}" for column in COLUMNS))
    wrong = [f"{r['entry']} [{r['dtype']}]: {r['detail']}" for r in records if r["status"] == DISAGREE]
    if options.write and not wrong:
        from importlib.metadata import version

        write(records, version("torch"))
    elif not wrong:
        wrong = differences(records, yaml.safe_load(MANIFEST.read_text(encoding="utf-8")))
    print("\n".join(wrong[:40]))
    print(f"op-db: {len(records)} checks: {f'FAILED, {len(wrong)} not as documented' if wrong else 'OK'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
