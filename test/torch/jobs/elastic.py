"""Elastic DDP training: `elastic.py CHECKPOINT [--die-at STEP]`; rank 1 of the first generation kills itself in a step.

Each step ends with a checkpoint of model, optimizer, random number generators and the place in the sampler; a restarted
group goes on from there. Prints a hash of the parameters and of a last random number: `ok RANK final HASH`.
"""

import argparse
import hashlib
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, BATCH = 8, 4
parser = argparse.ArgumentParser()
parser.add_argument("checkpoint", type=Path)
parser.add_argument("--die-at", type=int, default=-1)
options = parser.parse_args()
rank, generation = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.manual_seed(7 + rank)
data = TensorDataset(torch.arange(STEPS * BATCH * 2 * 3, dtype=torch.float32).reshape(-1, 3) / 100)
sampler = DistributedSampler(data, shuffle=True, seed=3)
model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Dropout(0.3), torch.nn.Linear(5, 1)).cuda()
ddp = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.05)
batches = list(DataLoader(data, batch_size=BATCH, sampler=sampler))  # in the order of the sampler's seed and epoch
done = 0
mine = options.checkpoint.with_suffix(f".rank{rank}")
if options.checkpoint.exists():
    state = torch.load(options.checkpoint, map_location="cuda")
    own = torch.load(f"{mine}.{state['done']}", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(own["cpu"])
    torch.cuda.set_rng_state(own["cuda"])
    done = state["done"]
print(f"ok {rank} generation {generation} from step {done}\n", end="", flush=True)
for (batch,) in batches[done:]:
    if generation == 0 and rank == 1 and done == options.die_at:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    noise = torch.rand(len(batch), 1)
    loss = (ddp(batch.cuda()) - noise.cuda()).square().mean()
    loss.backward()
    optimizer.step()
    done += 1
    torch.save({"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state()}, f"{mine}.{done}")
    dist.barrier()  # the checkpoint is one of all ranks, or none
    if rank == 0:
        written = options.checkpoint.with_suffix(".new")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done}, written)
        written.rename(options.checkpoint)
digest = hashlib.sha256()
for parameter in model.parameters():
    digest.update(parameter.detach().cpu().numpy().tobytes())
digest.update(torch.rand(3).numpy().tobytes() + torch.rand(3, device="cuda").cpu().numpy().tobytes())
print(f"ok {rank} final {digest.hexdigest()}\n", end="", flush=True)
dist.destroy_process_group()
