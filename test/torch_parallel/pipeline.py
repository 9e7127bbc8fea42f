"""Pipeline schedules with one or two stages per rank, against one process. torchrun ... pipeline.py [--only NAMES]

Also used by mesh.py. A model of as many blocks as there are stages; the first stage embeds, the last has the head.
"""

import copy

import torch
import torch.nn as nn
from common import GPT, World, batches, gpt, loss_of, main, optimizer_of, same, train, values
from torch.distributed.pipelining import PipelineStage, schedules

MICRO_BATCHES = 8
SINGLE = (schedules.ScheduleGPipe, schedules.Schedule1F1B)
MULTI = (schedules.ScheduleLoopedBFS, schedules.ScheduleInterleaved1F1B, schedules.ScheduleInterleavedZeroBubble)
VSHAPED = (schedules.ScheduleZBVZeroBubble,)


class Stage(nn.Module):
    """One block of a GPT, with the embedding in front or the head behind where it is the first or the last."""

    def __init__(self, whole: GPT, index: int):
        super().__init__()
        whole = copy.deepcopy(whole)
        self.blocks = nn.ModuleDict({str(index): whole.blocks[index]})
        if index == 0:
            self.tokens, self.places = whole.tokens, whole.places
        if index == len(whole.blocks) - 1:
            self.norm, self.head = whole.norm, whole.head

    def forward(self, x):
        if hasattr(self, "tokens"):
            x = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks.values():
            x = block(x)
        return self.head(self.norm(x)) if hasattr(self, "head") else x


def stage_indices(rank: int, ranks: int, kind) -> list[int]:
    if kind in SINGLE:
        return [rank]
    return [rank, 2 * ranks - 1 - rank] if kind in VSHAPED else [rank, rank + ranks]


def run(world: World, kind, rank: int, ranks: int, group=None, part=lambda rows: rows, wrap=lambda stage: stage,
        micro_batches: int = MICRO_BATCHES, steps: int = 2) -> dict:  # fmt: skip
    """Train this rank's stages; their parameters under the names of the whole model."""
    count = ranks * (1 if kind in SINGLE else 2)
    whole, indices = gpt(count), stage_indices(rank, ranks, kind)
    modules = [wrap(Stage(whole, index).to(world.device)) for index in indices]
    stages = [PipelineStage(module, index, count, world.device, group=group) for module, index in zip(modules, indices)]
    schedule = kind(stages[0] if kind in SINGLE else stages, micro_batches, loss_fn=loss_of)
    optimizer = optimizer_of("SGD", [parameter for module in modules for parameter in module.parameters()])
    for tokens, targets in batches(steps):
        optimizer.zero_grad()
        x = [part(tokens).to(world.device)] if 0 in indices else []
        y = {"target": part(targets).to(world.device)} if count - 1 in indices else {}
        schedule.step(*x, **y)
        optimizer.step()
    return {name: value for module in modules for name, value in module.named_parameters()}


def expected(count: int, steps: int = 2) -> dict:
    whole = gpt(count)
    train(whole, lambda net, step: loss_of(net(batches(steps)[step][0]), batches(steps)[step][1]), steps=steps)
    return values(whole.named_parameters())


def schedule(world: World, kind) -> None:
    found = values(run(world, kind, world.rank, world.size).items())
    wanted = expected(world.size * (1 if kind in SINGLE else 2))
    same(found, {name: wanted[name] for name in found})


CHECKS = {kind.__name__.removeprefix("Schedule"): lambda world, k=kind: schedule(world, k) for kind in (*SINGLE, *MULTI, *VSHAPED)}

if __name__ == "__main__":
    main(CHECKS)
