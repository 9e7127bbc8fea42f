"""What the scripts here share: a small GPT, its data, training in one CPU process, and how close a result must be.

A script is an ordinary torchrun program: it lists its checks and calls main(). A check raises where something is
wrong; the rank says which check it was and ends, and torchrun ends the others.

Bounds. SGD with momentum: 1e-6 + 1e-5 of the value: the same sums in another order. AdamW divides a gradient by its
own running size, so that rounding of a gradient near zero becomes a visible part of a step of size lr: lr/20 for the
worst element, lr/1000 for the mean. Low precision: an element of a gradient computed with p significant bits is off
by about 2**-p of the terms it sums up, in both directions, so parameters are compared as one vector: its distance
from the float32 result is at most `LOW` (2 %) of the way it has moved. Measured: bf16 0.6 %, fp16 0.1 %.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.tensor import DTensor

VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS = 48, 16, 32, 8, 2
BATCH, STEPS = 16, 3
LR = {"SGD": 0.1, "AdamW": 1e-3}
LOW = 0.02


class Attention(nn.Module):
    """Four separate layers, so that a tensor-parallel plan can cut each by heads."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        # the width is read from the projection: a rank may hold a part of the heads
        q, k, v = (layer(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, layers: int = LAYERS):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(layers)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@dataclass
class World:
    """Where this process runs."""

    rank: int
    size: int
    device: torch.device

    def part(self, tensor: torch.Tensor, index: int | None = None, count: int | None = None) -> torch.Tensor:
        """This rank's rows of a batch, on its device."""
        index, count = (self.rank, self.size) if index is None else (index, count)
        return tensor.chunk(count)[index].to(self.device)


def gpt(layers: int = LAYERS) -> GPT:
    """The same parameters in every process, on the CPU."""
    torch.manual_seed(3)
    return GPT(layers)


def batches(steps: int = STEPS, rows: int = BATCH) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(4)
    shape = (2, rows, LENGTH)
    return [tuple(torch.randint(0, VOCABULARY, shape, generator=generator).unbind()) for _ in range(steps)]


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def optimizer_of(name: str, parameters) -> torch.optim.Optimizer:
    parameters = list(parameters)
    # torch's multi-tensor operators do not take plain and distributed tensors in one list
    mixed = len({isinstance(parameter, DTensor) for parameter in parameters}) > 1
    how = {"lr": LR[name], "foreach": False if mixed else None}
    if name == "SGD":
        return torch.optim.SGD(parameters, momentum=0.9, **how)
    return torch.optim.AdamW(parameters, **how)


def values(named) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in named}


def train(model: nn.Module, step_loss: Callable, optimizer_name: str = "SGD", steps: int = STEPS, clip: float = 0):
    """The training loop of every check: step_loss(model, step) is the loss to differentiate; answers the optimizer."""
    optimizer = optimizer_of(optimizer_name, model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        step_loss(model, step).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return optimizer


def alone(optimizer_name: str = "SGD", model: nn.Module | None = None, steps: int = STEPS, clip: float = 0):
    """Parameters after one CPU process trained with the whole batches."""
    model, data = copy.deepcopy(model) if model is not None else gpt(), batches(steps)
    train(model, lambda net, step: loss_of(net(data[step][0]), data[step][1]), optimizer_name, steps, clip)
    return values(model.named_parameters())


def same(found: dict, expected: dict, optimizer_name: str = "SGD") -> None:
    """Within the bounds of the module's text, under the same names."""
    assert found.keys() == expected.keys(), f"names differ: {sorted(found.keys() ^ expected.keys())}"
    for name, wanted in expected.items():
        delta = (found[name].double() - wanted.double()).abs()
        if optimizer_name == "SGD":
            right = bool((delta <= 1e-6 + 1e-5 * wanted.double().abs()).all())
        else:
            right = delta.max().item() <= LR["AdamW"] / 20 and delta.mean().item() <= LR["AdamW"] / 1000
        assert right, f"{name} differs by {delta.max().item():.2e}"


def near(found: dict, expected: dict, initial: dict, share: float = LOW) -> None:
    """As a vector within `share` of the way that the expected parameters have moved."""
    assert found.keys() == expected.keys(), f"names differ: {sorted(found.keys() ^ expected.keys())}"

    def vector(tensors: dict) -> torch.Tensor:
        return torch.cat([tensors[name].double().flatten() for name in expected])

    away, moved = (vector(found) - vector(expected)).norm(), (vector(expected) - vector(initial)).norm()
    assert away <= share * moved, f"differs by {away / moved:.1%} of the way moved"
    assert away > 0, "equal to float32: nothing was computed in low precision"


def initial() -> dict:
    return values(gpt().named_parameters())


def main(checks: dict[str, Callable[[World], None]]) -> None:
    """Run the checks of a script, all or those named by --only; one line per rank and check."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", help="names of checks, separated by commas")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else list(checks)
    torch.set_num_threads(1)
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", timeout=timedelta(seconds=180), device_id=torch.device("cuda", local))
    world = World(dist.get_rank(), dist.get_world_size(), torch.device("cuda", local))
    for name in chosen:
        try:
            verdict = checks[name](world) or "ok"
        except Exception:
            sys.stdout.write(f"wrong {world.rank} {name}: {traceback.format_exc()}\n")
            sys.stdout.flush()
            os._exit(1)
        sys.stdout.write(f"{verdict} {world.rank} {name}\n")  # one write: ranks share the terminal
        sys.stdout.flush()
    torch.cuda.synchronize()
    dist.destroy_process_group()
