"""Two ranks over libnccl.so.2 by ctypes, and ways to go wrong: started by tests under fgpu.

`two_ranks.py SCENARIO`: good, ignored (mismatch, errors dropped, handle kept), handled (mismatch, both destroy and exit
0), killed (rank 1 dies before the operation), shrunk (rank 1 dies, rank 0 goes on alone). Exits 0 whatever the ranks do.
"""

import os
import signal
import subprocess
import sys

import numpy as np

from fakegpu.membership import world_id
from fakegpu.nccl_ctypes import Nccl, NcclError


def rank_main(scenario: str, rank: int) -> None:
    comm = Nccl().init(2, world_id("two_ranks"), rank)
    data = np.full(4, rank + 1, np.float32)
    comm.all_reduce(data, data)
    assert data.tolist() == [3, 3, 3, 3]
    if scenario in ("killed", "shrunk") and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    count = 4 if scenario in ("good", "killed", "shrunk") or rank == 0 else 2
    try:
        comm.all_reduce(data[:count], data[:count])
    except NcclError as error:
        print(f"rank {rank} sees: {error}", flush=True)
    if scenario == "shrunk":
        alone = comm.shrink([1], abort=True)
        alone.all_reduce(data, data)
        print(f"rank 0 went on alone: {data.tolist()}", flush=True)
        alone.destroy()
    elif scenario in ("good", "handled"):
        comm.destroy()


def main() -> None:
    scenario = sys.argv[1]
    if len(sys.argv) > 2:
        rank_main(scenario, int(sys.argv[2]))
        return
    ranks = [
        subprocess.Popen([sys.executable, __file__, scenario, str(rank)],
                         env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"})
        for rank in range(2)
    ]
    print("statuses", [process.wait() for process in ranks], flush=True)


if __name__ == "__main__":
    main()
