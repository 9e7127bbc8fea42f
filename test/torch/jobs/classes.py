"""PyTorch's ways to communicate, with exactly known results, on 4 ranks: groups of all kinds, objects, batches, lists."""

import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def full(value, count=3):
    return torch.full((count,), float(value), device=DEVICE)


def equal(tensor, expected):
    assert tensor.tolist() == expected, f"got {tensor.tolist()}, expected {expected}"


def summed(group, expected):
    tensor = full(RANK + 1)
    dist.all_reduce(tensor, group=group)
    equal(tensor, [float(expected)] * 3)


def new_groups():
    """Every rank makes both groups and uses its own."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    summed(groups[RANK % 2], 4 if RANK % 2 == 0 else 6)


def locally_synchronized_groups():
    """Only the members make their group."""
    group = dist.new_group([0, 1] if RANK < 2 else [2, 3], use_local_synchronization=True)
    summed(group, 3 if RANK < 2 else 7)


def subgroups():
    group, _ = dist.new_subgroups(group_size=2)
    summed(group, 3 if RANK < 2 else 7)
    group, _ = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
    summed(group, 5)


def split_groups():
    """The order of ranks within a split counts."""
    group = dist.split_group(split_ranks=[[3, 0], [1, 2]])
    summed(group, 5)
    outputs = torch.empty(2, device=DEVICE)
    dist.all_gather_into_tensor(outputs, full(RANK, 1), group=group)
    equal(outputs, [float(rank) for rank in dist.get_process_group_ranks(group)])


def objects():
    outputs = [None] * WORLD
    dist.all_gather_object(outputs, {"rank": RANK, "text": "x" * RANK})
    assert outputs == [{"rank": rank, "text": "x" * rank} for rank in range(WORLD)], outputs
    shared = [("from", 2), 7] if RANK == 2 else [None, None]
    dist.broadcast_object_list(shared, src=2)
    assert shared == [("from", 2), 7], shared
    mine = [None]
    dist.scatter_object_list(mine, [10, 11, 12, 13] if RANK == 1 else None, src=1)
    assert mine == [10 + RANK], mine
    gathered = [None] * WORLD if RANK == 3 else None
    dist.gather_object(RANK * RANK, gathered, dst=3)
    assert gathered == ([0, 1, 4, 9] if RANK == 3 else None), gathered


def batched_pairs():
    """A ring, and a second message in the other direction, as one batch."""
    right, left = (RANK + 1) % WORLD, (RANK - 1) % WORLD
    from_left, from_right = full(-1), full(-1, 2)
    batch = [dist.P2POp(dist.isend, full(RANK), right), dist.P2POp(dist.irecv, from_left, left),
             dist.P2POp(dist.isend, full(10 + RANK, 2), left), dist.P2POp(dist.irecv, from_right, right)]  # fmt: skip
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    equal(from_left, [float(left)] * 3)
    equal(from_right, [10.0 + right] * 2)


def uneven_lists():
    """Tensors of different sizes: rank r gives r + 1 elements."""
    outputs = [full(-1, rank + 1) for rank in range(WORLD)]
    dist.all_gather(outputs, full(RANK, RANK + 1))
    for rank, output in enumerate(outputs):
        equal(output, [float(rank)] * (rank + 1))
    part = full(-1, RANK + 1)
    dist.reduce_scatter(part, [full((RANK + 1) * (block + 1), block + 1) for block in range(WORLD)])
    equal(part, [10.0 * (RANK + 1)] * (RANK + 1))
    pieces = [full(-1, 1 + other) for other in range(WORLD)]
    dist.all_to_all(pieces, [full(10 * RANK + other, 1 + RANK) for other in range(WORLD)])
    for other, piece in enumerate(pieces):
        equal(piece, [10.0 * other + RANK] * (1 + other))


def functional_collectives():
    world = dist.group.WORLD
    equal(functional.all_reduce(full(RANK), "sum", world), [6.0] * 3)
    equal(functional.all_gather_tensor(full(RANK, 1), 0, world), [0.0, 1.0, 2.0, 3.0])
    equal(functional.broadcast(full(RANK), 2, world), [2.0] * 3)
    equal(functional.reduce_scatter_tensor(torch.arange(4.0, device=DEVICE), "avg", 0, world), [float(RANK)])
    equal(functional.all_to_all_single(torch.arange(4.0, device=DEVICE) + 4 * RANK, None, None, world),
          [float(RANK + 4 * other) for other in range(WORLD)])  # fmt: skip
    first, second = functional.all_reduce_coalesced([full(RANK), full(1, 2)], "max", world)
    equal(first, [3.0] * 3)
    equal(second, [1.0] * 2)


def coalesced_gathers():
    """All-gathers and reduce-scatters under the coalescing manager, asynchronous."""
    outputs = [torch.empty(WORLD, device=DEVICE) for _ in range(2)]
    with dist._coalescing_manager(device=DEVICE, async_ops=True) as work:
        for index, output in enumerate(outputs):
            dist.all_gather_into_tensor(output, full(RANK + 10 * index, 1))
    work.wait()
    for index, output in enumerate(outputs):
        equal(output, [10.0 * index + rank for rank in range(WORLD)])


def rooted():
    tensor = full(RANK + 1)
    dist.reduce(tensor, dst=1, op=dist.ReduceOp.MAX)
    if RANK == 1:
        equal(tensor, [4.0] * 3)
    part = full(-1, 2)
    dist.scatter(part, [full(rank * 3, 2) for rank in range(WORLD)] if RANK == 3 else None, src=3)
    equal(part, [3.0 * RANK] * 2)


def registered_pool():
    """Tensors of a memory pool whose segments are registered with the communicator."""
    backend = dist.group.WORLD._get_backend(DEVICE)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.full((1 << 20,), float(RANK), device=DEVICE)
    backend.register_mem_pool(pool)
    dist.all_reduce(tensor)
    assert bool((tensor == 6).all())
    torch.cuda.synchronize()
    backend.deregister_mem_pool(pool)


def aborted_group():
    """A group that is aborted or destroyed leaves the others in order."""
    group = dist.new_group(list(range(WORLD)))
    summed(group, 10)
    torch.cuda.synchronize()
    group._get_backend(DEVICE).abort()
    other = dist.new_group(list(range(WORLD)))
    summed(other, 10)
    dist.destroy_process_group(other)
    summed(None, 10)


CASES = (new_groups, locally_synchronized_groups, subgroups, split_groups, objects, batched_pairs, uneven_lists,
         functional_collectives, coalesced_gathers, rooted, registered_pool, aborted_group)  # fmt: skip


def main():
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl", device_id=DEVICE)
    for case in CASES:
        case()
        print(f"ok {RANK} {case.__name__}\n", end="", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
