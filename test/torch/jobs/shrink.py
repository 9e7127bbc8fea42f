"""shrink_group on 4 ranks: the rest of a group goes on without rank 3, which neither leaves nor ends the old group."""

import os

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
DEVICE = torch.device("cuda", RANK)
torch.cuda.set_device(DEVICE)
dist.init_process_group("nccl", device_id=DEVICE)
group = dist.new_group([0, 1, 2, 3])
tensor = torch.ones(2, device=DEVICE)
dist.all_reduce(tensor, group=group)
assert tensor.tolist() == [4.0, 4.0], tensor
if RANK != 3:
    smaller = dist.shrink_group([3], group=group)
    tensor = torch.ones(2, device=DEVICE)
    dist.all_reduce(tensor, group=smaller)
    assert tensor.tolist() == [3.0, 3.0], tensor
tensor = torch.ones(2, device=DEVICE)
dist.all_reduce(tensor)
assert tensor.tolist() == [4.0, 4.0], tensor
print(f"ok {RANK} shrink\n", end="", flush=True)
dist.destroy_process_group()
