"""FullyShardedDataParallel: strategies, precision, offload, every kind of state dict, against one process.

torchrun ... fsdp1.py [--only NAMES]
"""

import copy
import functools
import warnings

import torch
import torch.nn as nn
from common import STEPS, World, alone, batches, gpt, initial, loss_of, main, near, optimizer_of, same, train, values
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    LocalStateDictConfig,
    MixedPrecision,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

warnings.simplefilter("ignore", FutureWarning)


def wrapped(world: World, model: nn.Module | None = None, **options) -> FullyShardedDataParallel:
    from common import Block

    options = {"auto_wrap_policy": ModuleWrapPolicy({Block}), "device_id": world.device.index} | options
    return FullyShardedDataParallel(model or gpt(), **options)


def shard_loss(world: World):
    data = batches()
    return lambda net, step: loss_of(net(world.part(data[step][0])), world.part(data[step][1]))


def full(net: FullyShardedDataParallel) -> dict:
    with FullyShardedDataParallel.summon_full_params(net, writeback=False):
        return values((name.replace("_fsdp_wrapped_module.", ""), value) for name, value in net.named_parameters())


def trained(world: World, net: FullyShardedDataParallel, optimizer: str = "SGD") -> dict:
    train(net, shard_loss(world), optimizer)
    return full(net)


def strategy(world, kind: ShardingStrategy, optimizer: str = "SGD", **options):
    same(trained(world, wrapped(world, sharding_strategy=kind, **options), optimizer), alone(optimizer), optimizer)


def full_shard_of_parameters_kept(world):
    strategy(world, ShardingStrategy.FULL_SHARD, use_orig_params=True)


def full_shard_adamw(world):
    strategy(world, ShardingStrategy.FULL_SHARD, "AdamW")


def hybrid(world, kind: ShardingStrategy):
    """Shard inside groups of two (one on a world of two), replicate across them."""
    shape = (world.size // 2, 2) if world.size > 2 else (1, 2)
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("replicate", "shard"))
    strategy(world, kind, device_mesh=mesh)


def mixed_precision(world, dtype: torch.dtype, **reduce):
    policy = MixedPrecision(param_dtype=dtype, **reduce)
    near(trained(world, wrapped(world, mixed_precision=policy)), alone(), initial())


def cpu_offload(world):
    net = wrapped(world, cpu_offload=CPUOffload(offload_params=True))
    assert all(parameter.device.type == "cpu" for parameter in net.parameters())
    same(trained(world, net), alone())


def clipped(world):
    net = wrapped(world)
    optimizer, loss = optimizer_of("SGD", net.parameters()), shard_loss(world)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(net, step).backward()
        net.clip_grad_norm_(0.1)
        optimizer.step()
    same(full(net), alone(clip=0.1))


def no_sync(world):
    net, data = wrapped(world), batches()
    optimizer = optimizer_of("SGD", net.parameters())
    for tokens, targets in data:
        optimizer.zero_grad()
        (x0, x1), (y0, y1) = world.part(tokens).chunk(2), world.part(targets).chunk(2)
        with net.no_sync():
            (loss_of(net(x0), y0) / 2).backward()
        (loss_of(net(x1), y1) / 2).backward()
        optimizer.step()
    same(full(net), alone())


def ignored_modules(world):
    """The embedding stays whole on every rank; its gradients are the program's to average."""
    model = gpt()
    net = wrapped(world, model, ignored_modules=[model.tokens], use_orig_params=True)
    model.tokens.to(world.device)
    optimizer, loss = optimizer_of("SGD", net.parameters()), shard_loss(world)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(net, step).backward()
        torch.distributed.all_reduce(model.tokens.weight.grad, torch.distributed.ReduceOp.AVG)
        optimizer.step()
    same(full(net), alone())


def uneven(world):
    """Layers whose elements no number of ranks divides, trained on parts of different sizes."""
    torch.manual_seed(8)
    whole = nn.Sequential(nn.Linear(7, 11), nn.Tanh(), nn.Linear(11, 3), nn.Tanh(), nn.Linear(3, 1))
    rows = torch.randn(STEPS, world.size, world.size, 7)  # rank r uses r + 1 rows
    policy = functools.partial(lambda module, recurse, **_: recurse or isinstance(module, nn.Linear))
    net = wrapped(world, copy.deepcopy(whole), auto_wrap_policy=policy)
    train(net, lambda model, step: model(rows[step, world.rank, : world.rank + 1].to(world.device)).square().mean())
    train(whole, lambda model, step: sum(model(rows[step, rank, : rank + 1]).square().mean()
                                         for rank in range(world.size)) / world.size)  # fmt: skip
    same(full(net), values(whole.named_parameters()))


STATES = {
    "full": (StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True), FullOptimStateDictConfig()),
    "sharded": (StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(), ShardedOptimStateDictConfig()),
    "local": (StateDictType.LOCAL_STATE_DICT, LocalStateDictConfig(), None),
}


def state_dict(world, kind: str):
    """Saved after one step and loaded into a fresh model (and optimizer), training goes on as if never interrupted."""
    chosen = STATES[kind]
    net = wrapped(world)
    optimizer = train(net, shard_loss(world), steps=1)
    fresh = wrapped(world, gpt().apply(lambda module: [p.data.zero_() for p in module.parameters()] and None))
    again = optimizer_of("SGD", fresh.parameters())
    arguments = [argument for argument in chosen if argument is not None]
    with FullyShardedDataParallel.state_dict_type(net, *arguments):
        saved = net.state_dict()
        moments = FullyShardedDataParallel.optim_state_dict(net, optimizer) if kind != "local" else optimizer.state_dict()
    with FullyShardedDataParallel.state_dict_type(fresh, *arguments):
        fresh.load_state_dict(saved)
        if kind != "local":
            moments = FullyShardedDataParallel.optim_state_dict_to_load(fresh, again, moments)
        again.load_state_dict(moments)
    loss = shard_loss(world)
    for step in range(1, STEPS):
        again.zero_grad()
        loss(fresh, step).backward()
        again.step()
    same(full(fresh), alone())
    if kind == "full":
        same(values(saved.items()), alone(steps=1))


CHECKS = {
    "full_shard": lambda world: strategy(world, ShardingStrategy.FULL_SHARD),
    "shard_grad_op": lambda world: strategy(world, ShardingStrategy.SHARD_GRAD_OP),
    "no_shard": lambda world: strategy(world, ShardingStrategy.NO_SHARD),
    "hybrid_shard": lambda world: hybrid(world, ShardingStrategy.HYBRID_SHARD),
    "hybrid_shard_zero2": lambda world: hybrid(world, ShardingStrategy._HYBRID_SHARD_ZERO2),
    "mixed_bf16": lambda world: mixed_precision(world, torch.bfloat16),
    "mixed_fp16": lambda world: mixed_precision(world, torch.float16),
    "mixed_bf16_reduce_fp32": lambda world: mixed_precision(world, torch.bfloat16, reduce_dtype=torch.float32),
    "state_dict_full": lambda world: state_dict(world, "full"),
    "state_dict_sharded": lambda world: state_dict(world, "sharded"),
    "state_dict_local": lambda world: state_dict(world, "local"),
} | {check.__name__: check for check in (full_shard_of_parameters_kept, full_shard_adamw, cpu_offload, clipped, no_sync,
                                         ignored_modules, uneven)}  # fmt: skip

if __name__ == "__main__":
    main(CHECKS)
