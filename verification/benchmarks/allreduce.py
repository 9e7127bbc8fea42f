#!/usr/bin/env python3
"""All-reduce of libnccl.so.2 against torch's gloo, in turn in one run: medians, ratios, floors.

    python3 verification/benchmarks/allreduce.py [--ranks 2,4] [--rounds 7] [--json FILE]

Each rank is a process that holds both; a round times ours, then gloo's, so that a busy machine hits both alike. Buffers
are device memory (ncclMemAlloc) for ours, host tensors for gloo. Floors: 64 MiB float32 at least 1.5x gloo through
shared memory and 0.25x by TCP through the coordinator; 4 KiB at most 300 us at 2 ranks on the Unix socket.
Exit status 1 below a floor, 2 without torch.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import ranks  # noqa: E402

LARGE, SMALL = 64 << 20, 4 << 10
FLOORS = {("shm", LARGE): 1.5, ("tcp", LARGE): 0.25}
SMALL_LIMIT_US = 300.0


def device_array(nccl, nbytes: int) -> np.ndarray:
    pointer = ctypes.c_void_p()
    nccl.ncclMemAlloc(ctypes.byref(pointer), nbytes)
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(pointer.value), np.float32)


def seconds(call) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def body(comm, store: str, rounds: int, sizes: list[int]) -> dict:
    """Seconds of ours and of gloo, per size: each round measures both."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=comm.rank, world_size=comm.nranks)
    found = {}
    for nbytes in sizes:
        mine, tensor = device_array(comm.nccl, nbytes), torch.ones(nbytes // 4)
        result = device_array(comm.nccl, nbytes)
        mine[:] = 1.0
        repeat = 3 if nbytes > 1 << 20 else 100
        times: dict[str, list[float]] = {"ours": [], "gloo": []}
        for number in range(rounds + 1):
            for name, call in (("ours", lambda: comm.all_reduce(mine, result)), ("gloo", lambda: dist.all_reduce(tensor))):
                dist.barrier()
                taken = [seconds(call) for _ in range(repeat)]
                if number:  # the first round warms up
                    times[name] += taken
            tensor.fill_(1.0)
        if not (result == comm.nranks).all():
            raise AssertionError(f"wrong result of {nbytes} bytes")
        found[nbytes] = times
    dist.destroy_process_group()
    return found


def measure(nranks: int, transport: str, rounds: int) -> list[dict]:
    """Per size: the median over all operations, of the slowest rank."""
    with tempfile.TemporaryDirectory() as folder:
        sizes = [LARGE, SMALL]
        answers = ranks.run(body, nranks, f"{folder}/store", rounds, sizes, timeout=400.0,
                            transport="tcp" if transport == "tcp" else "unix", OMP_NUM_THREADS="1")
    rows = []
    for nbytes in sizes:
        medians = {}
        for name in ("ours", "gloo"):
            medians[name] = max(statistics.median(answer[nbytes][name]) for answer in answers) * 1e6
        rows.append({"ranks": nranks, "transport": transport, "bytes": nbytes, "ours_us": round(medians["ours"], 1),
                     "gloo_us": round(medians["gloo"], 1), "ratio": round(medians["gloo"] / medians["ours"], 2)})
    return rows


def judge(row: dict) -> str:
    """Why a row is below its floor; empty when it holds."""
    floor = FLOORS.get((row["transport"], row["bytes"]))
    if floor is not None and row["ratio"] < floor:
        return f"{row['ratio']}x gloo, floor {floor}x"
    if (row["transport"], row["bytes"], row["ranks"]) == ("shm", SMALL, 2) and row["ours_us"] > SMALL_LIMIT_US:
        return f"{row['ours_us']} us, limit {SMALL_LIMIT_US:.0f} us"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--transports", default="shm,tcp")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if subprocess.run([sys.executable, "-c", "import torch.distributed"], capture_output=True, check=False).returncode:
        print("allreduce: torch is needed to measure gloo: pip install torch", file=sys.stderr)
        return 2
    rows, failed = [], []
    print(f"{'ranks':>5} {'path':>4} {'bytes':>9} {'ours us':>10} {'gloo us':>10} {'ratio':>6}")
    for transport in options.transports.split(","):
        for nranks in map(int, options.ranks.split(",")):
            for row in measure(nranks, transport, options.rounds):
                problem = judge(row)
                failed += [f"{row['ranks']} ranks {row['transport']} {row['bytes']} bytes: {problem}"] * bool(problem)
                rows.append(row | {"holds": not problem})
                print(f"{row['ranks']:5} {row['transport']:>4} {row['bytes']:9} {row['ours_us']:10} {row['gloo_us']:10} "
                      f"{row['ratio']:6} {problem}", flush=True)
    print(f"allreduce: {'FAIL: ' + '; '.join(failed) if failed else 'OK, every floor holds'}")
    if options.json:
        evidence = {"name": "allreduce", "passed": not failed, "cpus": os.cpu_count(), "rows": rows}
        options.json.write_text(json.dumps(evidence, indent=2) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
