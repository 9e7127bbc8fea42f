"""A few training steps whose traffic can be worked out by hand: DDP, FSDP2, tensor parallel. Knows nothing of fakegpu.

usage: torchrun ... train_traffic.py ddp|fsdp2|tp STEPS
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

IN, HIDDEN, OUT, BATCH = 64, 100, 10, 8


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(IN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUT)).cuda()


def wrap(kind: str, net: nn.Module) -> nn.Module:
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(net)
    if kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        fully_shard(net[0])
        fully_shard(net[2])
        return fully_shard(net)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    return parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def main() -> None:
    kind, steps = sys.argv[1], int(sys.argv[2])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    net = wrap(kind, model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        net(torch.ones(BATCH, IN, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
