"""Combinations in two and three dimensions, against one process. torchrun ... mesh.py [--only NAMES]

Checks that need more ranks than there are say so.
"""

import torch
from common import World, alone, batches, gpt, loss_of, main, same, train, values
from fsdp2 import sharded
from pipeline import SINGLE, expected, run
from tensor_parallel import full, parallel
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import schedules


def part_loss(world: World, index: int, count: int):
    data = batches()
    return lambda net, step: loss_of(net(world.part(data[step][0], index, count)), world.part(data[step][1], index, count))


def needs(ranks: int):
    """The check is skipped, by name, where there are fewer ranks."""

    def decorate(check):
        def checked(world: World):
            return f"skipped (needs {ranks} ranks):" if world.size < ranks else check(world)

        return checked

    return decorate


def data_and_tensor(world: World, sequence: bool, optimizer: str = "SGD") -> None:
    """FSDP2 over half of the ranks, tensor parallelism over pairs."""
    mesh = init_device_mesh("cuda", (world.size // 2, 2), mesh_dim_names=("data", "tensor"))
    net = sharded(world, parallel(gpt().to(world.device), mesh["tensor"], sequence), mesh=mesh["data"])
    train(net, part_loss(world, mesh["data"].get_local_rank(), world.size // 2), optimizer)
    same(full(net), alone(optimizer), optimizer)


def replicated_sharded_tensor(world: World) -> None:
    """Three dimensions: replicas of shards of tensor-parallel pairs."""
    mesh = init_device_mesh("cuda", (world.size // 4, 2, 2), mesh_dim_names=("replicate", "shard", "tensor"))
    net = sharded(world, parallel(gpt().to(world.device), mesh["tensor"]), mesh=mesh["replicate", "shard"])
    index = mesh["replicate"].get_local_rank() * 2 + mesh["shard"].get_local_rank()
    train(net, part_loss(world, index, world.size // 2))
    same(full(net), alone())


def pipeline_and_data(world: World, kind) -> None:
    """Pipelines of two ranks, each on its part of the batch, parameters sharded across the pipelines."""
    mesh = init_device_mesh("cuda", (2, world.size // 2), mesh_dim_names=("pipe", "data"))
    data, pipe = mesh["data"], mesh["pipe"]
    index, count = data.get_local_rank(), data.size()
    found = run(world, kind, pipe.get_local_rank(), 2, pipe.get_group(), lambda rows: rows.chunk(count)[index],
                lambda stage: fully_shard(stage, mesh=data), micro_batches=4)  # fmt: skip
    wanted = expected(2 if kind in SINGLE else 4)
    found = values((name, value.full_tensor()) for name, value in found.items())
    same(found, {name: wanted[name] for name in found})


CHECKS = {
    "fsdp_tensor": lambda world: data_and_tensor(world, False),
    "fsdp_tensor_sequence": lambda world: data_and_tensor(world, True),
    "fsdp_tensor_adamw": lambda world: data_and_tensor(world, True, "AdamW"),
    "hsdp_tensor": needs(4)(replicated_sharded_tensor),
    "pipeline_fsdp_1f1b": lambda world: pipeline_and_data(world, schedules.Schedule1F1B),
    "pipeline_fsdp_interleaved": lambda world: pipeline_and_data(world, schedules.ScheduleInterleaved1F1B),
}

if __name__ == "__main__":
    main(CHECKS)
