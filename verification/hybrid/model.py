"""The worker's side: the network of reference.py in torch, its process group, and the record a rank writes.

A worker runs under torchrun, backend nccl, device cuda, and knows nothing else about where it runs. Ranks may share a
device: local rank modulo the number of devices.
"""

import argparse
import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from hybrid import reference


class Network(nn.Module):
    """Two linear layers; with branches also a second outer layer, for odd ranks, and one that nobody uses."""

    def __init__(self, branches: bool = False):
        super().__init__()
        self.inner = nn.Linear(reference.IN, reference.HIDDEN)
        self.outer = nn.Linear(reference.HIDDEN, reference.OUT)
        if branches:
            self.other = nn.Linear(reference.HIDDEN, reference.OUT)
            self.spare = nn.Linear(reference.HIDDEN, reference.OUT)

    def forward(self, x, branch: str = "outer"):
        return getattr(self, branch)(self.inner(x))


def network(branches: bool = False) -> Network:
    """On the current device, with the worked-out initial parameters; layers beyond the first two start like `outer`."""
    model = Network(branches)
    for name, parameter in model.named_parameters():
        like = name if name in reference.SHAPES else f"outer.{name.split('.')[1]}"
        parameter.data = torch.tensor(reference.floats(reference.initial(like)))
    return model.cuda()


def loss(output: torch.Tensor) -> torch.Tensor:
    return (output * torch.tensor(reference.LOSS, dtype=output.dtype, device=output.device)).sum()


def sample(rank: int, step: int, micro: int = 0) -> torch.Tensor:
    return torch.tensor([reference.floats(reference.sample(rank, step, micro))], device="cuda")


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=reference.LEARNING_RATE)


def values(named) -> dict:
    """Nested lists of {name: tensor}; a missing tensor (no gradient) is None."""
    return {name: None if tensor is None else tensor.detach().float().cpu().tolist() for name, tensor in named}


def arguments(*more: tuple[str, dict]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="a worker; start it with torchrun")
    parser.add_argument("--report-dir", type=Path, help="every rank writes rank<N>.json there")
    for flag, options in more:
        parser.add_argument(flag, **options)
    return parser.parse_args()


def join() -> tuple[int, int]:
    """Device and process group; answers rank and world size."""
    local = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", timeout=timedelta(seconds=120))
    return dist.get_rank(), dist.get_world_size()


def leave(record: dict, folder: Path | None, wrong: list[str]) -> int:
    """Write the record, say how this rank fared, end the group; the worker's exit status."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.synchronize()
    dist.destroy_process_group()
    record |= {"rank": rank, "world_size": world, "device": torch.cuda.get_device_name(), "torch": torch.__version__,
               "wrong": wrong}
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"rank{rank}.json").write_text(json.dumps(record, indent=1) + "\n")
    # one write: ranks share the terminal
    sys.stdout.write(f"rank {rank} of {world}: {'FAILED: ' + '; '.join(wrong) if wrong else 'OK'}\n")
    sys.stdout.flush()
    return 1 if wrong else 0
