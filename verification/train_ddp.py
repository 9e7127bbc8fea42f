"""Trains small models with DistributedDataParallel and compares every rank's parameters with one CPU process.

    torchrun --nproc-per-node 4 verification/train_ddp.py [--steps 10] [--json FILE]

Nothing here knows what kind of GPU it runs on: backend nccl, device cuda. Exit status 1 if a comparison or a device
check fails; one line per rank says which.

Bounds. SGD: atol 1e-6, rtol 1e-5 (the same sums in another order). AdamW divides a gradient by its own running size,
so an element whose gradient is small against the rounding of the sums it comes from turns that rounding into a visible
part of a step of size lr. Elements with a gradient of exactly zero in theory (a bias in front of a norm layer, the key
bias of attention) would move by lr per step in a random direction; the models have none. Measured: about lr/10000
after 10 steps; the bound is lr/20 for the worst element and lr/1000 for the mean.
"""

import argparse
import copy
import json
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

SEED = 20
BATCH = 16  # divisible by the world sizes 1, 2, 4, 8, 16
CLASSES = 10
VOCABULARY, LENGTH, WIDTH, HEADS = 64, 16, 32, 4
SGD_LR, ADAMW_LR = 0.05, 1e-3


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, stride=2, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, width // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.blocks(self.tokens(tokens) + self.places)).flatten(0, 1)


def images(steps: int):
    generator = torch.Generator().manual_seed(SEED)
    return [(torch.randn(BATCH, 3, 16, 16, generator=generator),
             torch.randint(0, CLASSES, (BATCH,), generator=generator)) for _ in range(steps)]


def sentences(steps: int):
    generator = torch.Generator().manual_seed(SEED + 1)
    return [(torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator),
             torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator)) for _ in range(steps)]


def optimizer_of(name: str, model: nn.Module):
    if name == "SGD":
        return torch.optim.SGD(model.parameters(), lr=SGD_LR, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=ADAMW_LR)


def loss_of(model, x, y):
    return F.cross_entropy(model(x), y.flatten())


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


def train_whole(model: nn.Module, optimizer_name: str, data) -> dict[str, torch.Tensor]:
    """One process, the full batch, on the CPU."""
    model = copy.deepcopy(model)
    optimizer = optimizer_of(optimizer_name, model)
    for x, y in data:
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    return state(model)


def train_shards(model: nn.Module, optimizer_name: str, data, rank: int, world: int) -> dict[str, torch.Tensor]:
    """One process that runs the shards one by one and averages their gradients: what plain batch norm means under
    data parallelism. Every step starts from rank 0's buffers (DDP broadcasts them); the result has `rank`'s own."""
    model = copy.deepcopy(model)
    optimizer = optimizer_of(optimizer_name, model)
    size = BATCH // world
    first = kept = {}
    for x, y in data:
        optimizer.zero_grad()
        start = {name: buffer.clone() for name, buffer in model.named_buffers()}
        for shard in range(world):
            load_buffers(model, start)
            part = slice(shard * size, (shard + 1) * size)
            (loss_of(model, x[part], y[part]) / world).backward()
            after = {name: buffer.clone() for name, buffer in model.named_buffers()}
            if shard == rank:
                kept = after
            if shard == 0:
                first = after
        optimizer.step()
        load_buffers(model, first)
    load_buffers(model, kept)
    return state(model)


def load_buffers(model: nn.Module, values: dict[str, torch.Tensor]) -> None:
    for name, buffer in model.named_buffers():
        buffer.copy_(values[name])


def train_ddp(model: nn.Module, optimizer_name: str, data, device: torch.device, rank: int, world: int):
    model = DistributedDataParallel(copy.deepcopy(model).to(device), device_ids=[device.index])
    optimizer = optimizer_of(optimizer_name, model)
    part = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
    for x, y in data:
        optimizer.zero_grad()
        loss_of(model, x[part].to(device), y[part].to(device)).backward()
        optimizer.step()
    return state(model.module)


def difference(found, expected, optimizer_name: str) -> tuple[float, bool]:
    """(largest difference, within the bounds of the module's text)."""
    worst, right = 0.0, True
    for name, wanted in expected.items():
        delta = (found[name].double() - wanted.double()).abs()
        worst = max(worst, delta.max().item())
        if optimizer_name == "SGD":
            right &= bool((delta <= 1e-6 + 1e-5 * wanted.double().abs()).all())
        else:
            right &= delta.max().item() <= ADAMW_LR / 20 and delta.mean().item() <= ADAMW_LR / 1000
    return worst, right


def check_device(device: torch.device) -> list[str]:
    """What is wrong with the device as torch sees it."""
    wrong = []
    if not torch.cuda.is_available():
        wrong.append("torch.cuda.is_available() is False")
    if torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        wrong.append(f"device_count() is {torch.cuda.device_count()}")
    if not torch.cuda.get_device_name(device):
        wrong.append("get_device_name() is empty")
    before = torch.cuda.memory_allocated(device)
    block = torch.empty(1 << 20, dtype=torch.uint8, device=device)
    if torch.cuda.memory_allocated(device) - before != block.nbytes:
        wrong.append(f"memory_allocated() rose by {torch.cuda.memory_allocated(device) - before}, not {block.nbytes}")
    del block
    total = torch.cuda.get_device_properties(device).total_memory
    try:
        torch.empty(total + 1, dtype=torch.uint8, device=device)
        wrong.append(f"{total + 1} bytes fit on a device with {total}")
    except torch.OutOfMemoryError:
        pass
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", help="rank 0 writes the differences here")
    arguments = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if BATCH % world:
        raise SystemExit(f"train_ddp: the world size {world} must divide the batch of {BATCH}")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", timeout=timedelta(seconds=120))
    torch.manual_seed(SEED)
    conv, gpt = ConvNet(), GPT()
    pictures, texts = images(arguments.steps), sentences(arguments.steps)
    wrong, notes, record = check_device(device), [], {}
    for optimizer in ("SGD", "AdamW"):
        synced = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(conv))
        cases = {
            "conv SyncBatchNorm": (synced, pictures, train_whole(conv, optimizer, pictures)),
            "conv BatchNorm": (conv, pictures, train_shards(conv, optimizer, pictures, rank, world)),
            "GPT": (gpt, texts, train_whole(gpt, optimizer, texts)),
        }
        for name, (model, data, expected) in cases.items():
            found = train_ddp(model, optimizer, data, device, rank, world)
            worst, right = difference(found, expected, optimizer)
            record[f"{name} {optimizer}"] = worst
            notes.append(f"{name} {optimizer} {worst:.1e}")
            if not right:
                wrong.append(f"{name} {optimizer} differs by {worst:.1e}")
    dist.destroy_process_group()
    verdict = "FAILED: " + "; ".join(wrong) if wrong else "OK, largest differences: " + ", ".join(notes)
    # one write: ranks share the terminal, and torchrun's children are unbuffered
    sys.stdout.write(f"rank {rank} of {world} on {torch.cuda.get_device_name(device)}: {verdict}\n")
    sys.stdout.flush()
    if arguments.json and rank == 0:
        with open(arguments.json, "w") as file:
            json.dump({"world_size": world, "steps": arguments.steps, "differences": record, "wrong": wrong}, file)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
