"""DTensor: every change of placement, uneven shards, and operators on them, against the whole tensor.

torchrun ... dtensor.py [--only NAMES]
"""

import torch
from common import World, main
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

SHAPE = (13, 6, 9)  # no number of ranks divides all of it
PLACES = {"shard0": Shard(0), "shard1": Shard(1), "shard2": Shard(2), "replicate": Replicate()}


def whole(world: World, dtype=torch.float32) -> torch.Tensor:
    """Small whole numbers: a sum of partial values has no rounding."""
    torch.manual_seed(10)
    return torch.randint(-8, 9, SHAPE, device=world.device).to(dtype)


def redistribute(world: World, dtype: torch.dtype = torch.float32) -> None:
    mesh, expected = init_device_mesh("cuda", (world.size,)), whole(world, dtype)
    for source in PLACES.values():
        start = distribute_tensor(expected, mesh, [source])
        for target in PLACES.values():
            moved = start.redistribute(mesh, [target])
            if isinstance(target, Shard):
                chunks = expected.chunk(world.size, target.dim)
                mine = chunks[world.rank] if world.rank < len(chunks) else expected.narrow(target.dim, 0, 0)
                assert torch.equal(moved.to_local(), mine), (source, target)
            assert torch.equal(moved.full_tensor(), expected), (source, target)


def partial(world: World) -> None:
    """Sum, average, largest and smallest over what each rank holds."""
    mesh = init_device_mesh("cuda", (world.size,))
    mine = whole(world) + world.rank
    stack = torch.stack([whole(world) + rank for rank in range(world.size)])
    results = {"sum": stack.sum(0), "avg": stack.mean(0), "max": stack.amax(0), "min": stack.amin(0)}
    for kind, expected in results.items():
        start = DTensor.from_local(mine, mesh, [Partial(kind)])
        for target in PLACES.values():
            assert torch.equal(start.redistribute(mesh, [target]).full_tensor(), expected), (kind, target)


def two_dimensions(world: World) -> None:
    mesh, expected = init_device_mesh("cuda", (world.size // 2, 2)), whole(world)
    pairs = [(a, b) for a in PLACES.values() for b in PLACES.values()]
    for source in pairs:
        for target in pairs:
            moved = distribute_tensor(expected, mesh, source).redistribute(mesh, target)
            assert torch.equal(moved.full_tensor(), expected), (source, target)


def gradients(world: World) -> None:
    """A matrix product of cut factors, forward and backward."""
    mesh = init_device_mesh("cuda", (world.size,))
    torch.manual_seed(11)
    a, b = torch.randn(12, 10, device=world.device), torch.randn(10, 7, device=world.device)
    plain = [a.clone().requires_grad_(), b.clone().requires_grad_()]
    expected = (plain[0] @ plain[1]).relu()
    expected.square().sum().backward()
    for place_a, place_b in ((Shard(0), Replicate()), (Replicate(), Shard(1)), (Shard(1), Shard(0)), (Shard(0), Shard(1))):
        cut = [distribute_tensor(a, mesh, [place_a]).requires_grad_(), distribute_tensor(b, mesh, [place_b]).requires_grad_()]
        found = (cut[0] @ cut[1]).relu()
        found.square().sum().backward()
        torch.testing.assert_close(found.full_tensor(), expected)
        for ours, theirs in zip(cut, plain):
            torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)


def random_numbers(world: World) -> None:
    """Dropout of a cut tensor draws as the uncut one would: a number depends on its place, not on its rank."""
    mesh = init_device_mesh("cuda", (world.size,))
    ones = distribute_tensor(torch.ones(world.size * 4, 8, device=world.device), mesh, [Shard(0)])
    torch.manual_seed(12)
    dropped = torch.nn.functional.dropout(ones, 0.5)
    kept = dropped.full_tensor()
    assert 0 < (kept != 0).float().mean() < 1
    parts = kept.chunk(world.size)
    assert any(not torch.equal(parts[0], part) for part in parts[1:]), "all ranks drew the same"
    torch.manual_seed(12)
    assert torch.equal(torch.nn.functional.dropout(ones, 0.5).full_tensor(), kept)


CHECKS = {
    "redistribute": redistribute,
    "redistribute_bf16": lambda world: redistribute(world, torch.bfloat16),
    "redistribute_int64": lambda world: redistribute(world, torch.int64),
    "partial": partial,
    "two_dimensions": two_dimensions,
    "gradients": gradients,
    "random_numbers": random_numbers,
}

if __name__ == "__main__":
    main(CHECKS)
