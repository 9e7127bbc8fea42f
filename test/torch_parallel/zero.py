"""ZeroRedundancyOptimizer with DDP, against one process. torchrun ... zero.py [--only NAMES]"""

import torch
from common import LR, STEPS, World, alone, batches, gpt, loss_of, main, same, values
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

OPTIONS = {"SGD": (torch.optim.SGD, {"momentum": 0.9}), "AdamW": (torch.optim.AdamW, {})}


def make(world: World, name: str, **options):
    kind, settings = OPTIONS[name]
    net = DistributedDataParallel(gpt().to(world.device), device_ids=[world.device.index], gradient_as_bucket_view=True)
    return net, ZeroRedundancyOptimizer(net.parameters(), kind, lr=LR[name], **settings, **options)


def steps(world: World, net, optimizer, first: int = 0, last: int = STEPS) -> None:
    for tokens, targets in batches()[first:last]:
        optimizer.zero_grad()
        loss_of(net(world.part(tokens)), world.part(targets)).backward()
        optimizer.step()


def trained(world: World, name: str, **options) -> None:
    net, optimizer = make(world, name, **options)
    steps(world, net, optimizer)
    same(values(net.module.named_parameters()), alone(name), name)


def state_dict(world):
    """Collected on rank 0 after a step, handed to all ranks, loaded: training goes on as if never interrupted."""
    net, optimizer = make(world, "AdamW")
    steps(world, net, optimizer, 0, 1)
    optimizer.consolidate_state_dict(to=0)
    saved = [optimizer.state_dict() if world.rank == 0 else None]
    torch.distributed.broadcast_object_list(saved, 0)
    fresh, again = make(world, "AdamW")
    fresh.load_state_dict(net.state_dict())
    again.load_state_dict(saved[0])
    steps(world, fresh, again, 1)
    same(values(fresh.module.named_parameters()), alone("AdamW"), "AdamW")


def overlapped(world):
    """The optimizer's step runs inside the communication hook; the first iterations only record the buckets."""
    net = DistributedDataParallel(gpt().to(world.device), device_ids=[world.device.index], gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=LR["SGD"], momentum=0.9)
    net.register_comm_hook(None, hook_with_zero_step(allreduce_hook, net, optimizer))
    warm_up, data = 2, batches()
    for tokens, targets in [data[0]] * warm_up + data:  # no parameter moves before the buckets are known
        loss_of(net(world.part(tokens)), world.part(targets)).backward()
        net.zero_grad()
    same(values(net.module.named_parameters()), alone())


CHECKS = {
    "sgd": lambda world: trained(world, "SGD"),
    "adamw": lambda world: trained(world, "AdamW"),
    "parameters_as_bucket_view": lambda world: trained(world, "SGD", parameters_as_bucket_view=True),
    "state_dict": state_dict,
    "overlapped": overlapped,
}

if __name__ == "__main__":
    main(CHECKS)
