"""One rank of a torch DDP program under mpirun or srun: ranks meet through a file, weights must equal one process's.

`launched_ddp.py FILE`: FILE does not exist yet. Prints `rank R of N: OK`. An ordinary program; knows nothing of fakegpu.
"""

import os
import sys

import torch
import torch.distributed as dist
from launched_nccl import place

STEPS, BATCH = 3, 8


def train(model: torch.nn.Module, data: torch.Tensor, target: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(data), target).backward()
        optimizer.step()


def main() -> None:
    rank, size = place()
    local = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", os.environ.get("MPI_LOCALRANKID", rank)))
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=size)
    torch.manual_seed(0)
    alone = torch.nn.Linear(5, 3)
    parallel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 3).to(device), device_ids=[local])
    parallel.module.load_state_dict(alone.state_dict())
    data, target = torch.randn(BATCH * size, 5), torch.randn(BATCH * size, 3)
    train(alone, data, target)
    train(parallel, data[rank::size].to(device), target[rank::size].to(device))
    same = all(torch.allclose(a, b.cpu(), atol=1e-6) for a, b in zip(alone.parameters(), parallel.parameters()))
    dist.destroy_process_group()
    print(f"rank {rank} of {size}: {'OK' if same else 'WRONG'}", flush=True)


if __name__ == "__main__":
    main()
