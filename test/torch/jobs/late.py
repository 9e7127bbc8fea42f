"""A collective is issued while the peer is late: rank 1 begins only after rank 0's call has returned.

Would issuing wait for the peer, neither rank could go on. Ordered by a key in the store, not by time.
"""

import os

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
dist.init_process_group("nccl")
tensor = torch.full((4,), rank + 1.0, device="cuda")
warm = torch.ones(1, device="cuda")
dist.all_reduce(warm)  # the communicator is made here
torch.cuda.synchronize()
if rank == 1:
    store.wait(["issued"])
work = dist.all_reduce(tensor, async_op=True)
if rank == 0:
    assert not work.is_completed()
    event = torch.cuda.Event()
    work.wait()  # orders the stream, not the host
    event.record()
    assert not event.query()
    store.set("issued", "")
work.wait()
torch.cuda.synchronize()
assert tensor.tolist() == [3.0] * 4, tensor
print(f"ok {rank} late\n", end="", flush=True)
dist.destroy_process_group()
