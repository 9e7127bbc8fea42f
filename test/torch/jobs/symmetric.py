"""Symmetric memory on four ranks: signals, peers' buffers and the operators over them, against sums worked out here."""

import datetime
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device, timeout=datetime.timedelta(seconds=60))
GROUP = dist.group.WORLD.group_name
OPS = torch.ops.symm_mem


def values(which, count, dtype):
    """What rank `which` puts in."""
    return torch.randn(count, generator=torch.Generator().manual_seed(which)).to(dtype)


def buffer(count, dtype):
    made = symm_mem.empty(count, dtype=dtype, device=device)
    handle = symm_mem.rendezvous(made, GROUP)
    made.copy_(values(rank, count, dtype))
    return made, handle


def total(count, dtype):
    """Added up in the order of the ranks, rounded after each."""
    found = values(0, count, dtype)
    for other in range(1, world):
        found = found + values(other, count, dtype)
    return found


def signals():
    _, handle = buffer(16, torch.float32)
    handle.barrier(channel=1)
    handle.put_signal((rank + 1) % world, channel=2)
    handle.wait_signal((rank - 1) % world, channel=2)
    handle.barrier()
    torch.cuda.synchronize()


def peers():
    made, handle = buffer(16, torch.float32)
    handle.barrier()
    for other in range(world):
        assert torch.equal(handle.get_buffer(other, (16,), torch.float32).cpu(), values(other, 16, torch.float32))
    handle.barrier()
    handle.get_buffer((rank + 1) % world, (16,), torch.float32).fill_(rank)
    handle.barrier()
    assert made.unique().tolist() == [(rank - 1) % world]


def all_reduces():
    for dtype in (torch.float32, torch.bfloat16):
        for count in (8, 1000, 70000):
            expected = total(count, dtype)
            made, _ = buffer(count, dtype)
            assert torch.equal(OPS.one_shot_all_reduce(made, "sum", GROUP).cpu(), expected)
            out = torch.empty_like(made)
            OPS.two_shot_all_reduce_out(made, "sum", GROUP, out)
            assert torch.equal(out.cpu(), expected)
            made.zero_()
            local = values(rank, count, dtype).to(device)
            assert torch.equal(OPS.one_shot_all_reduce_copy(made, local, "sum", GROUP).cpu(), expected)
            made.copy_(local)
            OPS.two_shot_all_reduce_(made, "sum", GROUP)
            assert torch.equal(made.cpu(), expected)


def reduce_scatters():
    made, _ = buffer(64, torch.float32)
    out = torch.empty(64 // world, device=device)
    OPS.reduce_scatter_out(made, GROUP, False, out)
    assert torch.equal(out.cpu(), total(64, torch.float32).chunk(world)[rank])
    table = made.view(2, 32)
    made.copy_(values(rank, 64, torch.float32))
    out = torch.empty(2, 32 // world, device=device)
    OPS.reduce_scatter_out(table, GROUP, True, out)
    assert torch.equal(out.cpu(), total(64, torch.float32).view(2, 32).chunk(world, dim=1)[rank])


def fused():
    a, b = values(rank, 32, torch.float32).view(4, 8).to(device), torch.eye(8, device=device)
    gathered, (product,) = OPS.fused_all_gather_matmul(a, [b], 0, GROUP)
    whole = torch.cat([values(other, 32, torch.float32).view(4, 8) for other in range(world)])
    assert torch.equal(gathered.cpu(), whole) and torch.equal(product.cpu(), whole)
    mine = OPS.fused_matmul_reduce_scatter(whole.to(device) * (rank + 1), b, "sum", 0, GROUP)
    torch.testing.assert_close(mine.cpu(), whole.chunk(world)[rank] * sum(range(1, world + 1)))


def in_a_graph():
    made, handle = buffer(64, torch.float32)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        handle.barrier()
        result = OPS.one_shot_all_reduce(made, "sum", GROUP)
    for _ in range(2):
        graph.replay()
    assert torch.equal(result.cpu(), total(64, torch.float32))


def issuing_does_not_wait():
    _, handle = buffer(16, torch.float32)
    if rank == 0:
        handle.wait_signal(1, channel=3)
        assert not torch.cuda.current_stream().query()
    dist.barrier(dist.new_group(backend="gloo"))
    if rank == 1:
        handle.put_signal(0, channel=3)
    torch.cuda.synchronize()


for case in (signals, peers, all_reduces, reduce_scatters, fused, in_a_graph, issuing_does_not_wait):
    case()
    sys.stdout.write(f"ok {rank} {case.__name__}\n")
    sys.stdout.flush()
    dist.barrier()
_, handle = buffer(16, torch.float32)
if rank == 0:
    handle.wait_signal(1, channel=0, timeout_ms=200)
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        sys.stdout.write(f"caught {rank} late: {' '.join(str(error).split())}\n")
        sys.stdout.flush()
os._exit(0)
