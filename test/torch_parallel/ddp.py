"""DistributedDataParallel in the ways programs use it, against one process. torchrun ... ddp.py [--only NAMES]"""

import copy

import common
import torch
import torch.nn as nn
from common import BATCH, STEPS, World, alone, batches, gpt, initial, loss_of, main, near, same, train, values
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


def wrapped(world: World, model: nn.Module | None = None, **options) -> DistributedDataParallel:
    return DistributedDataParallel((model or gpt()).to(world.device), device_ids=[world.device.index], **options)


def shard_loss(world: World):
    data = batches()
    return lambda net, step: loss_of(net(world.part(data[step][0])), world.part(data[step][1]))


def trained(world: World, net: DistributedDataParallel, optimizer: str = "SGD", **options) -> dict:
    train(net, shard_loss(world), optimizer, **options)
    return values(net.module.named_parameters())


def sgd(world):
    same(trained(world, wrapped(world)), alone())


def adamw(world):
    same(trained(world, wrapped(world), "AdamW"), alone("AdamW"), "AdamW")


def many_buckets(world):
    same(trained(world, wrapped(world, bucket_cap_mb=0.01)), alone())


def bucket_view(world):
    net = wrapped(world, gradient_as_bucket_view=True)
    same(trained(world, net), alone())


def static_graph(world):
    same(trained(world, wrapped(world, static_graph=True, gradient_as_bucket_view=True)), alone())


def clipped(world):
    same(trained(world, wrapped(world), clip=0.1), alone(clip=0.1))


def no_sync(world):
    """Two halves of the rank's part, the first without communication."""
    net, data = wrapped(world), batches()
    optimizer = common.optimizer_of("SGD", net.parameters())
    for tokens, targets in data:
        optimizer.zero_grad()
        halves = list(zip(world.part(tokens).chunk(2), world.part(targets).chunk(2)))
        with net.no_sync():
            for x, y in halves[:-1]:
                (loss_of(net(x), y) / len(halves)).backward()
        x, y = halves[-1]
        (loss_of(net(x), y) / len(halves)).backward()
        optimizer.step()
    same(values(net.module.named_parameters()), alone())


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.ways = nn.ModuleList([nn.Linear(8, 4) for _ in range(3)])

    def forward(self, x, way):
        return self.ways[way](self.first(x))


def unused_parameters(world):
    """Ranks take different ways through the model; the third way is nobody's."""
    torch.manual_seed(5)
    whole = Branches()
    net = wrapped(world, copy.deepcopy(whole), find_unused_parameters=True)
    rows = torch.randn(STEPS, world.size, 2, 8)
    train(net, lambda model, step: model(rows[step, world.rank].to(world.device), world.rank % 2).square().mean())
    train(whole, lambda model, step: sum(model(rows[step, rank], rank % 2).square().mean()
                                         for rank in range(world.size)) / world.size)  # fmt: skip
    same(values(net.module.named_parameters()), values(whole.named_parameters()))


def uneven_inputs(world):
    """Join: rank r has r + 1 batches; a rank without one adds nothing to the average over all ranks."""
    torch.manual_seed(6)
    whole = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    rows = torch.randn(world.size, world.size, 2, 8)
    net = wrapped(world, copy.deepcopy(whole))
    optimizer = common.optimizer_of("SGD", net.parameters())
    with net.join(divide_by_initial_world_size=True):
        for step in range(world.rank + 1):
            optimizer.zero_grad()
            net(rows[step, world.rank].to(world.device)).square().mean().backward()
            optimizer.step()
    expected = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    expected.load_state_dict(whole.state_dict())
    train(expected, lambda model, step: sum(model(rows[step, rank]).square().mean()
                                            for rank in range(step, world.size)) / world.size, steps=world.size)  # fmt: skip
    # momentum belongs to a rank, and only the last one takes every step; join hands its parameters to all
    same(values(net.module.named_parameters()), values(expected.named_parameters()))


def hooked(world, hook, state=None, share: float = common.LOW):
    net = wrapped(world)
    net.register_comm_hook(state, hook)
    near(trained(world, net), alone(), initial(), share)


def fp16_hook(world):
    hooked(world, default_hooks.fp16_compress_hook)


def bf16_hook(world):
    hooked(world, default_hooks.bf16_compress_hook)


def allreduce_hook(world):
    net = wrapped(world)
    net.register_comm_hook(None, default_hooks.allreduce_hook)
    same(trained(world, net), alone())


def power_sgd(world):
    """Of full rank, after one plain step: the approximation is exact but for its orthogonalisation's rounding."""
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=48, start_powerSGD_iter=2, min_compression_rate=0.1)
    hooked(world, powerSGD_hook.powerSGD_hook, state)
    assert state.iter > 2 and state.total_numel_before_compression, "nothing was compressed"


def power_sgd_low_rank(world):
    """Rank one loses most of a gradient, error feedback returns it later: all ranks agree, and the model learns."""
    net = wrapped(world)
    net.register_comm_hook(powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    found = trained(world, net)
    first, last = (loss_of(model.to(world.device)(batches()[0][0].to(world.device)), batches()[0][1].to(world.device))
                   for model in (gpt(), net.module))  # fmt: skip
    assert last < first
    for name, tensor in found.items():
        mine = tensor.to(world.device)
        rank0 = mine.clone()
        torch.distributed.broadcast(rank0, 0)
        assert torch.equal(mine, rank0), f"{name} differs from rank 0's"


def sync_batch_norm(world):
    """Statistics over all ranks' rows are those of the whole batch."""
    torch.manual_seed(7)
    whole = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    images, classes = torch.randn(STEPS, BATCH, 3, 8, 8), torch.randint(0, 5, (STEPS, BATCH))
    net = wrapped(world, nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(whole)))
    loss = nn.CrossEntropyLoss()
    train(net, lambda model, step: loss(model(world.part(images[step])), world.part(classes[step])))
    train(whole, lambda model, step: loss(model(images[step]), classes[step]))
    statistics = ("1.running_mean", "1.running_var")
    found, expected = net.module.state_dict(), whole.state_dict()
    same(values(net.module.named_parameters()), values(whole.named_parameters()))
    same({name: found[name].cpu() for name in statistics}, {name: expected[name] for name in statistics})


def autocast_bf16(world):
    data = batches()

    def loss(net, step):
        with torch.autocast("cuda", torch.bfloat16):
            logits = net(world.part(data[step][0]))
        return loss_of(logits, world.part(data[step][1]))

    net = wrapped(world)
    train(net, loss)
    near(values(net.module.named_parameters()), alone(), initial())


CHECKS = (sgd, adamw, many_buckets, bucket_view, static_graph, clipped, no_sync, unused_parameters, uneven_inputs, allreduce_hook,
          fp16_hook, bf16_hook, power_sgd, power_sgd_low_rank, sync_batch_norm, autocast_bf16)  # fmt: skip

if __name__ == "__main__":
    main({check.__name__: check for check in CHECKS})
