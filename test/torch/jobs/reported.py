"""Programs from reports about objects, DDP, DTensor and pipelines, for two ranks: `reported.py CASE ...`.

`without_set_device` leaves all ranks on device 0, as programs do that never call set_device.
"""

import datetime
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn.parallel import DistributedDataParallel as DDP


def without_set_device(rank, device):
    words = [None] * dist.get_world_size()
    dist.all_gather_object(words, ("hello", "world")[rank])
    assert words == ["hello", "world"], words


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        a = self.a(x)
        return a, self.b(a)


def static_graph_without_the_second_loss(rank, device):
    model = DDP(Two().to(device), device_ids=[rank], static_graph=True)
    first, _ = model(torch.ones(2, 4, device=device) * (rank + 1))
    first.sum().backward()  # a second backward would be refused by torch, on gloo too
    assert model.module.b.weight.grad is None
    assert torch.equal(model.module.a.weight.grad, torch.full((4, 4), 2 * 1.5, device=device))


def static_graph_with_no_sync(rank, device):
    model, alone = DDP(Two().to(device), device_ids=[rank], static_graph=True), Two().to(device)
    inputs = [torch.randn(2, 4, generator=torch.Generator().manual_seed(9)) * (k + 1) for k in range(6)]

    def loss(module, x):
        first, second = module(x.to(device))
        return (first + second).pow(2).sum()

    loss(model, inputs[rank]).backward()
    model.zero_grad(set_to_none=False)
    with model.no_sync():
        loss(model, inputs[2 + rank]).backward()
    loss(model, inputs[4 + rank]).backward()
    (sum(loss(alone, x) for x in inputs[2:]) / 2).backward()
    for mine, expected in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(mine.grad, expected.grad, rtol=1e-6, atol=1e-5)


def one_batch_fewer(rank, device, join):
    model = DDP(nn.Linear(4, 1).to(device), device_ids=[rank])
    with torch.distributed.algorithms.join.Join([model]) if join else torch.enable_grad():
        for _ in range(3 - rank):
            model(torch.ones(2, 4, device=device)).sum().backward()
    torch.cuda.synchronize()


def with_join(rank, device):
    one_batch_fewer(rank, device, True)


def without_join(rank, device):
    one_batch_fewer(rank, device, False)


def strided_shard(rank, device):
    mesh = init_device_mesh("cuda", (2,))
    sharded = distribute_tensor(torch.arange(5.0, device=device), mesh, [_StridedShard(0, split_factor=2)], src_data_rank=None)
    local = sharded.to_local()
    assert local.tolist() == ([0.0, 1.0, 3.0], [2.0, 4.0])[rank], local
    assert sharded.full_tensor().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0], sharded.full_tensor()


def viewed_shards(rank, device):
    mesh, whole = init_device_mesh("cuda", (2,)), torch.arange(96.0, device=device).view(12, 8)
    sharded = distribute_tensor(whole, mesh, [Shard(1)])
    try:
        found = sharded.view(16, 6).full_tensor()
    except RuntimeError as error:  # torch refuses the view of unevenly cut rows
        found = sharded.redistribute(mesh, [Replicate()]).view(16, 6).full_tensor()
        print(f"caught {rank} view: {' '.join(str(error).split())}\n", end="", flush=True)
    assert torch.equal(found, whole.view(16, 6)) and isinstance(sharded, DTensor)


def one_microbatch_in_two_stages(rank, device):
    torch.manual_seed(rank)
    stage = PipelineStage(nn.Linear(4, 4).to(device), rank, 2, device)
    try:
        schedule = Schedule1F1B(stage, n_microbatches=1, loss_fn=lambda out, target: (out - target).pow(2).mean())
        schedule.step(*([torch.ones(2, 4, device=device)] if rank == 0 else []),
                      **({"target": torch.zeros(2, 4, device=device)} if rank == 1 else {}))
    except ValueError as error:
        print(f"caught {rank} schedule: {' '.join(str(error).split())}\n", end="", flush=True)


def main() -> None:
    cases = [globals()[name] for name in sys.argv[1:]]
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=5 if without_join in cases else 60))
    rank = dist.get_rank()
    device = torch.device("cuda", 0 if without_set_device in cases else rank)
    if without_set_device not in cases:
        torch.cuda.set_device(device)
    for case in cases:
        case(rank, device)
        sys.stdout.write(f"ok {rank} {case.__name__}\n")
        sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
