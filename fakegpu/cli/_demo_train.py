"""The demo's training script: an ordinary DDP program, and the same training in one process on the CPU.

Under torchrun it trains on CUDA devices with the nccl backend; alone it trains on the CPU with the whole batch.
Both must end with the same parameters. It knows nothing of the simulator. Run by `fgpu demo`; the package itself
never imports it.
"""

import argparse
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, SAMPLES, CLASSES = 40, 240, 3


def spirals() -> tuple[torch.Tensor, torch.Tensor]:
    """Points on three interleaved spirals and their classes, in a fixed random order."""
    generator = torch.Generator().manual_seed(7)
    label = torch.arange(SAMPLES) % CLASSES
    radius = torch.rand(SAMPLES, generator=generator)
    angle = 4 * radius + label * (2 * torch.pi / CLASSES) + 0.1 * torch.randn(SAMPLES, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), label


def train(model: nn.Module, points: torch.Tensor, labels: torch.Tensor, world_size: int) -> list[float]:
    """Losses over the whole batch, one per step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(points), labels)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        if world_size > 1:
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        losses.append(mean.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True, help="JSON file for losses and final parameters (rank 0)")
    options = parser.parse_args()
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cpu")
    if world_size > 1:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl")
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, CLASSES))
    model.to(device)
    if world_size > 1:
        model = DistributedDataParallel(model, device_ids=[device.index])
    points, labels = (tensor[rank::world_size].to(device) for tensor in spirals())
    losses = train(model, points, labels, world_size)
    if rank == 0:
        parameters = torch.cat([p.detach().reshape(-1).cpu() for p in model.parameters()])
        where = "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump({"device": where, "losses": losses, "parameters": parameters.tolist()}, file)
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
