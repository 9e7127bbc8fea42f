"""Two ranks that wait for each other, torch's time-out being 5 seconds. Argument: how they come to.

pairs: both send a large tensor, then receive. mixed: one is in an all-reduce, the other in a receive from it.
"""

import datetime
import os
import sys

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
device = torch.device("cuda", rank)
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=5), device_id=device)
tensor = torch.ones(1 << 20, device=device)
dist.all_reduce(tensor)
batch = [dist.P2POp(dist.isend, tensor, 1 - rank), dist.P2POp(dist.irecv, torch.empty_like(tensor), 1 - rank)]
for work in dist.batch_isend_irecv(batch):  # grouped, the exchange passes
    work.wait()
torch.cuda.synchronize()
print(f"ok {rank} grouped\n", end="", flush=True)
if sys.argv[1] == "pairs":
    dist.send(tensor, 1 - rank)
    dist.recv(tensor, 1 - rank)
elif rank == 0:
    dist.all_reduce(tensor)
else:
    dist.recv(tensor, 0)
torch.cuda.synchronize()
store.wait(["never set"], datetime.timedelta(seconds=120))
