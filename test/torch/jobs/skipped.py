"""Rank 1 leaves out one all-reduce; torch's time-out is 5 seconds."""

import datetime
import os

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=5))
tensor = torch.ones(4, device="cuda")
dist.all_reduce(tensor)
torch.cuda.synchronize()
print(f"ok {rank} first\n", end="", flush=True)
if rank == 0:
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
store.wait(["never set"], datetime.timedelta(seconds=120))
