"""DDP over a model compiled in torch's default way, against one process that computes the whole batch."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)

    def forward(self, x):
        return self.outer(torch.nn.functional.gelu(self.inner(x)))


def make():
    torch.manual_seed(0)
    return Model().cuda()


dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
x = torch.linspace(-1, 1, 16 * 8, device="cuda").reshape(8, 16)
model = torch.compile(DistributedDataParallel(make()))
(model(x[rank::world]) ** 2).mean().backward()
whole = make()
(whole(x) ** 2).mean().backward()
for ours, theirs in zip(model.parameters(), whole.parameters()):
    torch.testing.assert_close(ours.grad, theirs.grad)
print(f"ok {rank} compiled\n", end="", flush=True)
dist.destroy_process_group()
