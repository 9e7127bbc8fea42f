#!/usr/bin/env python3
"""Start-up promises: `./fgpu true` with its coordinator under 0.6 s; the preloaded libraries add under 5 ms to a process
that never uses them. Medians; `--json FILE` writes the evidence. Exit status 1 when a promise is broken."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from fakegpu.launch.environment import preload_paths  # noqa: E402
from fakegpu.settings import Settings  # noqa: E402

LIMIT_FGPU_S, LIMIT_PRELOAD_MS = 0.6, 5.0


def median_seconds(command: list[str], runs: int, environment: dict[str, str] | None = None) -> float:
    """Median wall time of a command that must succeed; one run before counts for the caches."""
    times = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def preload_cost_ms(runs: int) -> float:
    """What LD_PRELOAD of the libraries adds to /bin/true; pairs in turn, so that a busy machine hits both."""
    preload = ":".join(map(str, preload_paths(Settings.from_env({}))))
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    loaded = {**plain, "LD_PRELOAD": preload}
    pairs = [(median_seconds(["/bin/true"], 3, plain), median_seconds(["/bin/true"], 3, loaded)) for _ in range(runs)]
    return statistics.median(with_libraries - without for without, with_libraries in pairs) * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    fgpu = median_seconds(["./fgpu", "true"], options.runs)
    preload = preload_cost_ms(options.runs)
    result = {"fgpu_true_s": fgpu, "limit_s": LIMIT_FGPU_S, "preload_ms": preload, "limit_preload_ms": LIMIT_PRELOAD_MS,
              "runs": options.runs}
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    good = fgpu < LIMIT_FGPU_S and preload < LIMIT_PRELOAD_MS
    print(f"startup: {'OK' if good else 'FAILED'}: ./fgpu true {fgpu:.3f} s (limit {LIMIT_FGPU_S}), "
          f"libraries add {preload:.2f} ms to a process (limit {LIMIT_PRELOAD_MS})")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
