"""fully_shard (FSDP2): precisions, resharding, HSDP, offload, checkpoints, against one process.

torchrun ... fsdp2.py [--only NAMES]
"""

import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from common import STEPS, World, alone, batches, gpt, initial, loss_of, main, near, optimizer_of, same, train, values
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard


def sharded(world: World, model=None, **options):
    net = (model or gpt()).to("cpu" if "offload_policy" in options else world.device)
    for block in net.blocks:
        fully_shard(block, **options)
    return fully_shard(net, **options)


def shard_loss(world: World, index=None, count=None):
    data = batches()
    return lambda net, step: loss_of(net(world.part(data[step][0], index, count)), world.part(data[step][1], index, count))


def full(net) -> dict:
    return values((name, value.full_tensor() if value.device.type == "cuda" else value.cuda().full_tensor())
                  for name, value in net.named_parameters())  # fmt: skip


def trained(world: World, net, optimizer: str = "SGD", **options) -> dict:
    train(net, shard_loss(world), optimizer, **options)
    return full(net)


def sgd(world):
    same(trained(world, sharded(world)), alone())


def adamw(world):
    same(trained(world, sharded(world), "AdamW"), alone("AdamW"), "AdamW")


def clipped(world):
    same(trained(world, sharded(world), clip=0.1), alone(clip=0.1))


def keep_after_forward(world):
    same(trained(world, sharded(world, reshard_after_forward=False)), alone())


def reshard_to_two(world):
    """After the forward a parameter stays sharded over two ranks instead of all."""
    same(trained(world, sharded(world, reshard_after_forward=2)), alone())


def precision(world, dtype: torch.dtype, reduced: torch.dtype):
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduced)
    near(trained(world, sharded(world, mp_policy=policy)), alone(), initial())


def hsdp(world):
    shape = (world.size // 2, 2)
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("replicate", "shard"))
    same(trained(world, sharded(world, mesh=mesh)), alone())


def offload(world):
    net = sharded(world, offload_policy=CPUOffloadPolicy())
    train(net, shard_loss(world))
    assert all(parameter.device.type == "cpu" for parameter in net.parameters())
    same(full(net), alone())


def accumulate(world):
    """Two halves of a rank's part, the first without communication."""
    net, data = sharded(world), batches()
    optimizer = optimizer_of("SGD", net.parameters())
    for tokens, targets in data:
        optimizer.zero_grad()
        for last, x, y in zip((False, True), world.part(tokens).chunk(2), world.part(targets).chunk(2)):
            net.set_requires_gradient_sync(last)
            (loss_of(net(x), y) / 2).backward()
        optimizer.step()
    same(full(net), alone())


def started_on_meta(world):
    """Sharded before it has memory, then filled from a full state dict of rank 0."""
    with torch.device("meta"):
        net = gpt()
    for block in net.blocks:
        fully_shard(block)
    fully_shard(net).to_empty(device=world.device)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(net, gpt().state_dict() if world.rank == 0 else {}, options=options)
    same(trained(world, net), alone())


def go_on(world, net, optimizer) -> None:
    """The remaining steps after the first; the result must be that of a run without an interruption."""
    loss = shard_loss(world)
    for step in range(1, STEPS):
        optimizer.zero_grad()
        loss(net, step).backward()
        optimizer.step()
    same(full(net), alone("AdamW"), "AdamW")


def full_state_dict(world):
    net, options = sharded(world), StateDictOptions(full_state_dict=True, cpu_offload=True)
    optimizer = train(net, shard_loss(world), "AdamW", steps=1)
    saved, moments = get_model_state_dict(net, options=options), get_optimizer_state_dict(net, optimizer, options=options)
    if world.rank == 0:
        same(values(saved.items()), alone("AdamW", steps=1), "AdamW")
    fresh = sharded(world)
    again = optimizer_of("AdamW", fresh.parameters())
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(fresh, saved, options=options)
    set_optimizer_state_dict(fresh, again, moments, options=options)
    go_on(world, fresh, again)


def distributed_checkpoint(world):
    """Saved by all ranks, loaded into a model of another sharding (HSDP)."""
    folder = [tempfile.mkdtemp() if world.rank == 0 else None]
    dist.broadcast_object_list(folder, 0)
    net = sharded(world)
    optimizer = train(net, shard_loss(world), "AdamW", steps=1)
    model_state, optimizer_state = get_state_dict(net, optimizer)
    checkpoint.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder[0])
    mesh = init_device_mesh("cuda", (world.size // 2, 2), mesh_dim_names=("replicate", "shard"))
    fresh = sharded(world, mesh=mesh)
    again = optimizer_of("AdamW", fresh.parameters())
    model_state, optimizer_state = get_state_dict(fresh, again)
    state = {"model": model_state, "optimizer": optimizer_state}
    checkpoint.load(state, checkpoint_id=folder[0])
    set_state_dict(fresh, again, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    go_on(world, fresh, again)
    dist.barrier()
    if world.rank == 0:
        shutil.rmtree(folder[0])


PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16}
CHECKS = {
    f"{name}_reduce_{'fp32' if reduced is torch.float32 else name}": lambda world, d=dtype, r=reduced: precision(world, d, r)
    for name, dtype in PRECISIONS.items() for reduced in (torch.float32, dtype)
} | {check.__name__: check for check in (sgd, adamw, clipped, keep_after_forward, reshard_to_two, hsdp, offload, accumulate,
                                         started_on_meta, full_state_dict, distributed_checkpoint)}  # fmt: skip

if __name__ == "__main__":
    main(CHECKS)
