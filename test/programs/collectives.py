"""Every collective of torch.distributed with backend nccl against values written down by hand; any world size >= 2.

An ordinary torchrun program. Rank r contributes r + 1 everywhere, so that each expectation is one formula.
"""

import os
import sys

import torch
import torch.distributed as dist


def check(name: str, found: torch.Tensor, expected: list) -> None:
    want = torch.tensor(expected, dtype=found.dtype)
    if not torch.equal(found.cpu(), want):
        raise SystemExit(f"rank {dist.get_rank()}: {name}: found {found.tolist()}, expected {want.tolist()}")


def collectives(rank: int, n: int, device: torch.device) -> None:
    def mine(size: int = 3, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full((size,), rank + 1, dtype=dtype, device=device)

    total = n * (n + 1) // 2
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64):
        tensor = mine(dtype=dtype)
        dist.all_reduce(tensor)
        check(f"all_reduce {dtype}", tensor, [total] * 3)
    tensor = mine()
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    check("all_reduce max", tensor, [n] * 3)
    tensor = mine()
    dist.reduce(tensor, dst=n - 1)
    check("reduce", tensor, [total if rank == n - 1 else rank + 1] * 3)
    tensor = mine()
    dist.broadcast(tensor, src=1)
    check("broadcast", tensor, [2] * 3)
    gathered = torch.empty(n, device=device)
    dist.all_gather_into_tensor(gathered, mine(1))
    check("all_gather", gathered, list(range(1, n + 1)))
    part = torch.empty(1, device=device)
    dist.reduce_scatter_tensor(part, torch.arange(n, dtype=torch.float32, device=device) * (rank + 1))
    check("reduce_scatter", part, [rank * total])
    swapped = torch.empty(n, device=device)
    dist.all_to_all_single(swapped, torch.arange(n, dtype=torch.float32, device=device) + 10 * rank)
    check("all_to_all", swapped, [10 * peer + rank for peer in range(n)])
    dist.barrier()


def point_to_point(rank: int, n: int, device: torch.device) -> None:
    """A ring of grouped sends and receives, then a subgroup that only half of the ranks are in."""
    incoming = torch.empty(4, device=device)
    outgoing = torch.full((4,), float(rank), device=device)
    requests = dist.batch_isend_irecv([
        dist.P2POp(dist.isend, outgoing, (rank + 1) % n),
        dist.P2POp(dist.irecv, incoming, (rank - 1) % n),
    ])
    for request in requests:
        request.wait()
    check("ring", incoming, [(rank - 1) % n] * 4)
    even = list(range(0, n, 2))
    group = dist.new_group(even)
    if rank in even:
        tensor = torch.full((2,), float(rank), device=device)
        dist.all_reduce(tensor, group=group)
        check("subgroup all_reduce", tensor, [sum(even)] * 2)
    dist.barrier()


def main() -> None:
    # `--device N` puts all ranks on one device
    device = torch.device("cuda", int(sys.argv[2] if sys.argv[1:2] == ["--device"] else os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank, n = dist.get_rank(), dist.get_world_size()
    collectives(rank, n, device)
    point_to_point(rank, n, device)
    objects: list = [None] * n
    dist.all_gather_object(objects, {"rank": rank})
    if objects != [{"rank": peer} for peer in range(n)]:
        raise SystemExit(f"rank {rank}: all_gather_object: found {objects}")
    print(f"rank {rank} of {n}: every collective exact", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
