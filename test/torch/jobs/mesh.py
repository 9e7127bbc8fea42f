"""A mesh of all ranks, then a (2, ranks/2) mesh; sums along every dimension; at the end rank 0 alone destroys, or all do."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
flat = init_device_mesh("cuda", (world,))
value = torch.full((3,), float(rank), device="cuda")
dist.all_reduce(value, group=flat.get_group())
assert value.tolist() == [sum(range(world))] * 3, value
square = init_device_mesh("cuda", (2, world // 2), mesh_dim_names=("outer", "inner"))
half = world // 2
for name, members in (("outer", [rank % half, rank % half + half]),
                      ("inner", [rank // half * half + i for i in range(half)])):
    value = torch.full((3,), float(rank), device="cuda")
    dist.all_reduce(value, group=square[name].get_group())
    assert value.tolist() == [sum(members)] * 3, (name, value)
print(f"ok {rank} meshes\n", end="", flush=True)
if sys.argv[1] == "all" or rank == 0:
    dist.destroy_process_group()
print(f"ok {rank} end\n", end="", flush=True)
