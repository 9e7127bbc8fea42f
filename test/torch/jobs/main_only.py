"""A gather that only the main process calls, with torch's time-out of 5 seconds; torch's flight recorder writes dumps."""

import datetime
import os

import torch
import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=5))
tensor = torch.full((4,), float(rank), device="cuda")
dist.all_reduce(tensor)
torch.cuda.synchronize()
print(f"ok {rank} first\n", end="", flush=True)
is_main_process = rank == 0
if is_main_process:
    dist.gather(tensor, [torch.empty_like(tensor) for _ in range(world)], dst=0)
    torch.cuda.synchronize()
store.wait(["never set"], datetime.timedelta(seconds=120))
