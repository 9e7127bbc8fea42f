"""Tensor parallelism, plain, with sequence parallelism and with a parallel loss, against one process.

torchrun ... tensor_parallel.py [--only NAMES]; also used by mesh.py
"""

import torch
from common import World, alone, batches, gpt, loss_of, main, optimizer_of, same, train, values
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

PLAIN = {
    **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
    "attention.o": RowwiseParallel(),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
}


def sequence_plan() -> dict:
    """Between the blocks every rank has a part of each sequence; norms work on it."""
    gather = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
    return {
        "norm1": SequenceParallel(), "norm2": SequenceParallel(),
        "attention": PrepareModuleInput(**gather),
        **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
        "attention.o": RowwiseParallel(output_layouts=Shard(1)),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }  # fmt: skip


def parallel(net, mesh: DeviceMesh, sequence: bool = False, split_logits: bool = False):
    """Cut a GPT over the mesh; `split_logits` leaves the vocabulary's dimension cut for loss_parallel."""
    for block in net.blocks:
        parallelize_module(block, mesh, sequence_plan() if sequence else PLAIN)
    shard = Shard(1) if sequence else Replicate()
    logits = {"output_layouts": Shard(-1), "use_local_output": False} if split_logits else {"output_layouts": Replicate()}
    outer = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=shard),
        "head": ColwiseParallel(input_layouts=shard, **logits),
    }
    if sequence:
        outer |= {"norm": SequenceParallel(),
                  "places": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0))}  # fmt: skip
    return parallelize_module(net, mesh, outer)


def full(net) -> dict:
    return values((name, value.full_tensor() if isinstance(value, DTensor) else value)
                  for name, value in net.named_parameters())  # fmt: skip


def whole_loss(world: World):
    """Every rank of a tensor-parallel group sees the same rows."""
    data = [(tokens.to(world.device), targets.to(world.device)) for tokens, targets in batches()]
    return lambda net, step: loss_of(net(data[step][0]), data[step][1])


def trained(world: World, optimizer: str = "SGD", **cut) -> None:
    net = parallel(gpt().to(world.device), init_device_mesh("cuda", (world.size,)), **cut)
    train(net, whole_loss(world), optimizer)
    same(full(net), alone(optimizer), optimizer)


def parallel_loss(world: World) -> None:
    """The cross entropy of logits that no rank has whole."""
    net = parallel(gpt().to(world.device), init_device_mesh("cuda", (world.size,)), split_logits=True)
    data = [(tokens.to(world.device), targets.to(world.device)) for tokens, targets in batches()]
    optimizer = optimizer_of("SGD", net.parameters())
    for tokens, targets in data:
        optimizer.zero_grad()
        with loss_parallel():
            torch.nn.functional.cross_entropy(net(tokens).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    same(full(net), alone())


CHECKS = {
    "plain": trained,
    "plain_adamw": lambda world: trained(world, "AdamW"),
    "sequence": lambda world: trained(world, sequence=True),
    "parallel_loss": parallel_loss,
}

if __name__ == "__main__":
    main(CHECKS)
