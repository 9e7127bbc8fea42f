"""Collectives inside a CUDA graph on 2 ranks: nothing moves while capturing, every launch moves the current values."""

import os

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
torch.cuda.set_device(RANK)
dist.init_process_group("nccl")
x, gathered = torch.zeros(1000, device="cuda"), torch.zeros(2000, device="cuda")
for _ in range(2):  # communicators are made before the capture
    dist.all_reduce(x)
    dist.all_gather_into_tensor(gathered, x)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
    dist.all_reduce(y)
    dist.all_gather_into_tensor(gathered, y + RANK)
    z = gathered.sum()
for value in (1.0, 5.0):
    x.fill_(value * (RANK + 1))
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [6 * value] * 1000, y
    assert gathered[:1000].tolist() == [6 * value] * 1000 and gathered[1000:].tolist() == [6 * value + 1] * 1000
    assert z.item() == 1000 * (12 * value + 1), z
print(f"ok {RANK} launches\n", end="", flush=True)
graph.reset()
dist.destroy_process_group()
