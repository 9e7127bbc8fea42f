"""Worker: a mistake between hosts, by ctypes. `faults.py mismatch|missing --report-dir DIR`, with RANK and WORLD_SIZE.

mismatch: the last rank reduces with max, the others with sum; every rank must get the error, and again afterwards.
missing: only the last rank makes the communicator; its time-out must name the ranks that did not come.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import numpy as np

from fakegpu.membership import world_id
from fakegpu.nccl_ctypes import MAX, SUM, Nccl, NcclError


def text_of(call) -> str:
    try:
        call()
    except NcclError as error:
        return str(error)
    return ""


def mismatch(rank: int, world: int) -> tuple[dict, list[str]]:
    comm = Nccl().init(world, world_id("multihost mismatch"), rank)
    data = np.full(8, rank + 1, np.float32)
    comm.all_reduce(data, data)
    wrong = [] if data.tolist() == [world * (world + 1) / 2] * 8 else [f"the sum is {data.tolist()}"]
    first = text_of(lambda: comm.all_reduce(data, data, MAX if rank == world - 1 else SUM))
    again = text_of(lambda: comm.all_reduce(data, data))
    comm.abort()
    if "sum" not in first or "max" not in first:
        wrong.append(f"the mismatch is told as {first!r}")
    if not again:
        wrong.append("the error did not persist")
    return {"first": first, "again": again}, wrong


def missing(rank: int, world: int) -> tuple[dict, list[str]]:
    if rank != world - 1:
        return {"joined": False}, []
    text = text_of(lambda: Nccl().init(world, world_id("multihost missing"), rank))
    return {"joined": True, "text": text}, [] if "0" in text else ["no time-out, although no other rank came"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("mismatch", "missing"))
    parser.add_argument("--report-dir", type=Path, required=True)
    options = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    record, wrong = (mismatch if options.what == "mismatch" else missing)(rank, world)
    (options.report_dir / f"rank{rank}.json").write_text(json.dumps({"rank": rank, "wrong": wrong, **record}))
    print(f"rank {rank}: {'FAILED: ' + '; '.join(wrong) if wrong else 'OK'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
