"""One rank of an NCCL program by ctypes under any launcher: finds its place itself, adds, prints `rank R of N: OK`.

Started by tests below torchrun, mpirun, srun or a shell loop. Optional argument: a name for the world.
"""

import os
import sys

import numpy as np

from fakegpu.membership import world_id
from fakegpu.nccl_ctypes import Nccl

PLACES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def place() -> tuple[int, int]:
    """Rank and world size, as programs usually look for them."""
    for rank, size in PLACES:
        if rank in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    raise SystemExit("no launcher's variables")


def main() -> None:
    rank, size = place()
    comm = Nccl().init(size, world_id(sys.argv[1] if len(sys.argv) > 1 else "launched"), rank)
    data = np.arange(1000, dtype=np.float32) + rank
    comm.all_reduce(data, data)
    expected = np.arange(1000, dtype=np.float32) * size + size * (size - 1) / 2
    comm.destroy()
    print(f"rank {rank} of {size}: {'OK' if (data == expected).all() else 'WRONG'}", flush=True)


if __name__ == "__main__":
    main()
