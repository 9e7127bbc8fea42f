"""Small collective programs with exactly known results, on 4 ranks; some on a subgroup."""

import hashlib
import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def equal(tensor, expected, dtype=None):
    want = torch.as_tensor(expected, dtype=dtype or tensor.dtype)
    got = tensor.detach().cpu()
    assert got.shape == want.shape and torch.equal(got, want), f"got {got.tolist()}, expected {want.tolist()}"


def uneven_all_to_all(_):
    """Rank a sends a + b + 1 elements to rank b, all of value 10 a + b."""
    inputs = torch.cat([torch.full((RANK + b + 1,), 10.0 * RANK + b) for b in range(WORLD)]).to(DEVICE)
    outputs = torch.empty(sum(a + RANK + 1 for a in range(WORLD)), device=DEVICE)
    dist.all_to_all_single(outputs, inputs, [a + RANK + 1 for a in range(WORLD)], [RANK + b + 1 for b in range(WORLD)])
    equal(outputs, torch.cat([torch.full((a + RANK + 1,), 10.0 * a + RANK) for a in range(WORLD)]))


def empty_all_gather(_):
    outputs = [torch.ones(1, 0, 2, device=DEVICE) for _ in range(WORLD)]
    dist.all_gather(outputs, torch.ones(1, 0, 2, device=DEVICE))
    assert [tuple(output.shape) for output in outputs] == [(1, 0, 2)] * WORLD


def strided_gather(_):
    """The column [0, 1] of a matrix, or torch's refusal of what is not contiguous; never [0, 0]."""
    column = torch.tensor([[0.0, 0.0], [1.0, 1.0]], device=DEVICE)[:, 0]
    outputs = [torch.full((2,), -1.0, device=DEVICE) for _ in range(WORLD)] if RANK == 0 else None
    try:
        dist.gather(column, outputs, dst=0)
    except (ValueError, RuntimeError) as error:
        assert "contiguous" in str(error), error
        return
    for output in outputs or ():
        equal(output, [0.0, 1.0])


def strided_reduce_scatter(_):
    whole = torch.arange(24, dtype=torch.float32, device=DEVICE).view(4, 3, 2).transpose(1, 2)
    part = functional.reduce_scatter_tensor(whole, "sum", scatter_dim=0, group=dist.group.WORLD)
    if RANK == 0:
        equal(part, [[[0.0, 8.0, 16.0], [4.0, 12.0, 20.0]]])


def complex_sum(_):
    tensor = torch.full((3,), 1 + 2j, dtype=torch.complex64, device=DEVICE) * RANK
    dist.all_reduce(tensor)
    equal(tensor, [(1 + 2j) * 6] * 3)
    refused(lambda: dist.all_reduce(tensor, op=dist.ReduceOp.MAX), "complex")


def refused(call, text):
    """The call raises and says why."""
    try:
        call()
    except (RuntimeError, ValueError) as error:
        assert text in str(error), f"{error!r} does not contain {text!r}"
        return
    raise AssertionError("not refused")


def bitwise_refused(_):
    tensor = torch.ones(3, dtype=torch.int32, device=DEVICE)
    refused(lambda: dist.all_reduce(tensor, op=dist.ReduceOp.BXOR), "BXOR")


def integer_average(groups):
    """The quotient is truncated toward zero."""
    if RANK < 2:
        for values, result in (((1, 2), 1), ((-3, 0), -1)):
            tensor = torch.full((4,), values[RANK], dtype=torch.int32, device=DEVICE)
            dist.all_reduce(tensor, op=dist.ReduceOp.AVG, group=groups[2])
            equal(tensor, [result] * 4)


def bfloat16_average(groups):
    """The factor is rounded to bfloat16; products and sum are float32; one rounding at the end. Not sum / 3."""
    if RANK < 3:
        values = [torch.linspace(0.1, 7.7, 64).mul(rank + 1).bfloat16() for rank in range(3)]
        for operation, factor in ((dist.ReduceOp.AVG, 1 / 3), (dist._make_nccl_premul_sum(0.3), 0.3)):
            tensor = values[RANK].to(DEVICE)
            dist.all_reduce(tensor, op=operation, group=groups[3])
            scale = torch.tensor(factor).bfloat16().float()
            total = torch.zeros(64)
            for value in values:
                total = total + value.float() * scale
            equal(tensor, total.bfloat16())


def wrapping_sum(groups):
    if RANK < 2:
        tensor = torch.tensor([120, 100][RANK], dtype=torch.int8, device=DEVICE)
        dist.all_reduce(tensor, group=groups[2])
        equal(tensor, -36)


def fp8_all_gather(_):
    bits = torch.arange(256, dtype=torch.uint8).roll(RANK)
    outputs = [torch.zeros(256, dtype=torch.float8_e4m3fn, device=DEVICE) for _ in range(WORLD)]
    dist.all_gather(outputs, bits.view(torch.float8_e4m3fn).to(DEVICE))
    for rank, output in enumerate(outputs):
        equal(output.view(torch.uint8), torch.arange(256, dtype=torch.uint8).roll(rank))


def one_hash(_):
    """Random float16 values: whatever the rounding, all ranks have the same bits."""
    generator = torch.Generator().manual_seed(RANK)
    tensor = torch.randn(50_001, generator=generator).half().to(DEVICE)
    dist.all_reduce(tensor)
    digest = hashlib.sha256(tensor.cpu().numpy().tobytes()).hexdigest()
    digests = [None] * WORLD
    dist.all_gather_object(digests, digest)
    assert len(set(digests)) == 1, digests


def rank_order(_):
    """The order of results is that of ranks, however devices are numbered."""
    outputs = torch.empty(WORLD, device=DEVICE)
    dist.all_gather_into_tensor(outputs, torch.tensor([float(RANK)], device=DEVICE))
    equal(outputs, list(map(float, range(WORLD))))


def send_to_self(_):
    tensor = torch.ones(3, device=DEVICE)
    refused(lambda: dist.send(tensor, RANK), "destination rank should not be the same")


def coalesced(_):
    """Two all-reduces as one group, asynchronous; an empty block; one more all-reduce."""
    first, second = torch.full((3,), float(RANK), device=DEVICE), torch.full((5,), 2.0, device=DEVICE)
    with dist._coalescing_manager(async_ops=True) as work:
        dist.all_reduce(first)
        dist.all_reduce(second)
    work.wait()
    equal(first, [6.0] * 3)
    equal(second, [8.0] * 5)
    with dist._coalescing_manager(device=DEVICE):
        pass
    dist.all_reduce(first)
    equal(first, [24.0] * 3)


def gathered_objects(groups):
    if RANK < 2:
        outputs = [None, None]
        dist.all_gather_object(outputs, ["hello", "world"][RANK], group=groups[2])
        assert outputs == ["hello", "world"], outputs


CASES = (uneven_all_to_all, empty_all_gather, strided_gather, strided_reduce_scatter, complex_sum, bitwise_refused,
         integer_average, bfloat16_average, wrapping_sum, fp8_all_gather, one_hash, rank_order, send_to_self, coalesced,
         gathered_objects)


def main():
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl")
    groups = {size: dist.new_group(list(range(size))) for size in (2, 3)}
    for case in CASES:
        case(groups)
        print(f"ok {RANK} {case.__name__}\n", end="", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
