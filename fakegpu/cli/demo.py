"""Train a small DDP model on 4 fake GPUs over two logical nodes and in one process, and compare.

The training script (_demo_train.py) is an ordinary torchrun program. Exit status 1 if the two trainings differ.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from fakegpu.cli._parser import Parser

SCRIPT = Path(__file__).resolve().parent / "_demo_train.py"
TOLERANCE = 1e-5  # 40 steps of float32 SGD whose gradients are summed in another order
REPORT_LINES = 28
GPUS, NODES = 4, 2


def _run(title: str, command: list[str], environment: dict[str, str]) -> None:
    print(title, flush=True)
    print("  $ " + " ".join(Path(word).name if word.startswith("/") else word for word in command), flush=True)
    done = subprocess.run(command, env=environment, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def _compare(one: dict, four: dict) -> float:
    """Print both trainings side by side; the largest difference of a parameter."""
    print(f"\n  step    loss, 1 process ({one['device']})    loss, {GPUS} ranks ({four['device']})")
    steps = len(one["losses"])
    for step in [*range(0, steps, 8), steps - 1]:
        print(f"  {step:>4}    {one['losses'][step]:<24.8f}    {four['losses'][step]:.8f}")
    difference = max(abs(a - b) for a, b in zip(one["parameters"], four["parameters"], strict=True))
    losses = max(abs(a - b) for a, b in zip(one["losses"], four["losses"], strict=True))
    print(f"\n  {len(one['parameters'])} parameters: largest difference {difference:.3g} (allowed {TOLERANCE:g})")
    print(f"  largest difference of a loss: {losses:.3g}")
    return max(difference, losses)


def _show_report(report: Path) -> None:
    lines = report.read_text(encoding="utf-8").splitlines()
    print("\nWhat the ranks said to each other:\n")
    print("\n".join("  " + line for line in lines[:REPORT_LINES]))
    if len(lines) > REPORT_LINES:
        print(f"  ... {len(lines) - REPORT_LINES} more lines in {report}")


def main(argv: list[str] | None = None) -> int:
    """Run both trainings and compare."""
    parser = Parser("fgpu demo", description=__doc__)
    parser.add_argument("--keep", metavar="FOLDER", help="folder for the reports (a temporary one by default)")
    options = parser.parse_args(argv)
    folder = Path(options.keep or tempfile.mkdtemp(prefix="fakegpu-demo-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    one, four, report = folder / "one.json", folder / "four.json", folder / "report.json"
    _run("1. one process on the CPU, the whole batch", [sys.executable, str(SCRIPT), "--out", str(one)], environment)
    _run(
        f"2. {GPUS} ranks on {GPUS} fake GPUs, two logical nodes, a quarter of the batch each",
        [
            sys.executable,
            "-m",
            "fakegpu",
            "run",
            "--nodes",
            str(NODES),
            "--device-count",
            str(GPUS),
            "--report",
            str(report),
            "torchrun",
            "--standalone",
            "--nproc-per-node",
            str(GPUS),
            str(SCRIPT),
            "--out",
            str(four),
        ],
        environment,
    )
    difference = _compare(json.loads(one.read_text()), json.loads(four.read_text()))
    _show_report(report.with_suffix(".md"))
    same = difference <= TOLERANCE
    print(f"\n{'The same training, without a GPU.' if same else 'THE TRAININGS DIFFER.'} Reports: {folder}")
    return 0 if same else 1
