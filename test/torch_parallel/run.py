#!/usr/bin/env python3
"""Runs the scripts of this folder under fgpu and torchrun on 2, 4 and 8 ranks; `./ftest torch-parallel`.

    test/torch_parallel/run.py [--ranks 2,4,8] [--scripts ddp,fsdp2] [--json FILE]

One line per script and size; a failed one prints what its ranks said. Exit status 1 if a check failed or is missing.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SCRIPTS = ("ddp", "fsdp1", "fsdp2", "zero", "tensor_parallel", "context_parallel", "dtensor", "pipeline", "mesh")
RANKS = (2, 4, 8)
SECONDS = 400


def launch(script: str, ranks: int, only: str = "") -> tuple[int, str]:
    """Exit status and output of one job."""
    command = [sys.executable, "-m", "fakegpu", "run", "--quiet", "--device-count", str(ranks), "torchrun", "--standalone",
               "--nproc-per-node", str(ranks), str(HERE / f"{script}.py"), *(["--only", only] if only else [])]  # fmt: skip
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TMPDIR": folder, "PYTHONWARNINGS": "ignore"}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace")  # fmt: skip
        try:
            output = process.communicate(timeout=SECONDS)[0]
            return process.returncode, output
        except subprocess.TimeoutExpired:
            process.terminate()  # the launcher ends what it started
            return 124, process.communicate(timeout=60)[0] + f"\nended after {SECONDS} s"


def verdict(script: str, ranks: int, only: str = "") -> dict:
    """What every rank said about every check; `failed` is empty when all is well."""
    started = time.monotonic()
    status, output = launch(script, ranks, only)
    said: dict[str, set[int]] = {}
    for rank, name in re.findall(r"^ok (\d+) (\w+)$", output, re.MULTILINE):
        said.setdefault(name, set()).add(int(rank))
    skipped = sorted(set(re.findall(r"^skipped \(.*\): \d+ (\w+)$", output, re.MULTILINE)))
    failed = [name for name, who in said.items() if len(who) != ranks]
    failed += re.findall(r"^wrong \d+ (\w+):", output, re.MULTILINE)
    if status and not failed:
        failed = [f"exit status {status}"]
    return {"script": script, "ranks": ranks, "passed": sorted(said.keys() - set(failed)), "skipped": skipped,
            "failed": sorted(set(failed)), "seconds": round(time.monotonic() - started, 1),
            "output": output if failed or not said else ""}  # fmt: skip


def first_error(output: str) -> str:
    """What the first rank that failed said; the end of everything if no rank said anything."""
    found = re.search(r"^wrong \d+ \w+: .*?^(?=wrong|ok|\[|[WE]\d)", output, re.MULTILINE | re.DOTALL)
    return found[0] if found else output[-6000:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)))
    parser.add_argument("--scripts", default=",".join(SCRIPTS))
    parser.add_argument("--json", help="write all verdicts here")
    options = parser.parse_args()
    results = []
    for ranks in map(int, options.ranks.split(",")):
        for script in options.scripts.split(","):
            result = verdict(script, ranks)
            results.append(result)
            state = f"FAILED: {', '.join(result['failed'])}" if result["failed"] else "ok"
            note = f", skipped: {', '.join(result['skipped'])}" if result["skipped"] else ""
            print(f"{script:18}{ranks} ranks {len(result['passed']):4} checks {result['seconds']:6.1f} s  {state}{note}", flush=True)
            if result["output"]:
                print(first_error(result["output"]), file=sys.stderr, flush=True)
    wrong = [f"{result['script']} on {result['ranks']}" for result in results if result["failed"] or not result["passed"]]
    checks = sum(len(result["passed"]) for result in results)
    print(f"torch-parallel: {'FAILED: ' + ', '.join(wrong) if wrong else f'OK, {checks} checks'}")
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
