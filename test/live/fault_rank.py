"""A rank for test_faults.py: five all-reduces of int32 through libnccl.so.2, one line for each.

usage: fault_rank.py FOLDER; the folder is where rank 0 leaves the unique id. Prints "NUMBER VALUES" after each
operation, or "failed NUMBER: TEXT" and ends with status 7.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

from fakegpu.nccl_ctypes import Nccl, NcclError


def exchange_id(nccl: Nccl, rank: int, folder: Path) -> bytes:
    path = folder / "id"
    if rank == 0:
        (folder / "part").write_bytes(nccl.unique_id())
        (folder / "part").rename(path)
    while not path.exists():
        time.sleep(0.01)
    return path.read_bytes()


def main() -> int:
    rank, nranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    nccl = Nccl()
    comm = nccl.init(nranks, exchange_id(nccl, rank, Path(sys.argv[1])), rank)
    for number in range(5):
        values = np.full(4, rank + 1 + number, np.int32)
        try:
            comm.all_reduce(values, values)
        except NcclError as error:
            print(f"failed {number}: {error}", flush=True)
            return 7
        print(number, values.tolist(), flush=True)
    comm.destroy()
    return 0


if __name__ == "__main__":
    sys.exit(main())
