"""Reads after a collective that failed: every way to wait for its stream must tell, none may hand out old values.

Started with TORCH_NCCL_ASYNC_ERROR_HANDLING=0, so that torch's watchdog does not end the process first. Each way has
a process group of its own, which is aborted afterwards; then the stream goes on and a right collective works.
"""

import os

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def polled(event):
    while not event.query():
        pass


def recorded():
    event = torch.cuda.Event()
    event.record()
    return event


def other_stream(tensor):
    event, side = recorded(), torch.cuda.Stream()
    side.wait_event(event)
    side.synchronize()


WAYS = {
    "synchronize": lambda tensor: torch.cuda.synchronize(),
    "stream": lambda tensor: torch.cuda.current_stream().synchronize(),
    "stream_query": lambda tensor: polled(torch.cuda.current_stream()),
    "event": lambda tensor: recorded().synchronize(),
    "event_query": lambda tensor: polled(recorded()),
    "operator": lambda tensor: tensor * 2,
    "item": lambda tensor: tensor[0].item(),
    "copy": lambda tensor: tensor.cpu(),
    "other_stream": other_stream,
}


def main():
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl")
    for name, way in WAYS.items():
        group = dist.new_group([0, 1])
        tensor = torch.ones(8 + RANK, device=DEVICE)
        dist.all_reduce(tensor, group=group, async_op=True).wait()  # orders the stream, not the host
        try:
            way(tensor)
            print(f"went on {RANK} {name}\n", end="", flush=True)
        except RuntimeError as error:
            print(f"caught {RANK} {name}: {str(error).splitlines()[0]}\n", end="", flush=True)
        group._get_backend(DEVICE).abort()
        torch.cuda.synchronize()
    tensor = torch.full((3,), RANK + 1.0, device=DEVICE)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [3.0] * 3, tensor
    print(f"ok {RANK} afterwards\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
