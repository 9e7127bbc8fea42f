"""torch's own accounting sees every block, and the device's limit is one."""

import gc

import pytest
import torch

CUDA = torch.device("cuda", 0)
MIB = 1 << 20


def case_results_are_accounted():
    x = torch.ones(MIB // 4, device=CUDA)
    before = torch.cuda.memory_allocated()
    y = x + 1
    assert torch.cuda.memory_allocated() - before == MIB
    del y
    assert torch.cuda.memory_allocated() == before


def case_no_block_is_lost_in_a_training_loop():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    sizes = []
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(2, 3, 8, 8, device=CUDA)).square().mean().backward()
        optimizer.step()
        gc.collect()
        sizes.append(torch.cuda.memory_allocated())
    assert len(set(sizes[2:])) == 1, sizes


def case_past_the_limit_is_out_of_memory():
    total = torch.cuda.get_device_properties(0).total_memory
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        torch.empty(total + 1, dtype=torch.uint8, device=CUDA)
    x = torch.ones(3, device=CUDA)
    with pytest.raises(torch.OutOfMemoryError):
        x.expand(total, 3).contiguous()
    assert (x + 1).tolist() == [2.0, 2.0, 2.0]


def case_peak_and_cache_statistics():
    torch.cuda.reset_peak_memory_stats()
    x = torch.ones(4 * MIB, dtype=torch.uint8, device=CUDA)
    del x
    assert torch.cuda.max_memory_allocated() >= 4 * MIB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < torch.cuda.max_memory_reserved()


def case_host_kernels_do_not_take_host_tensors_from_the_device():
    before = torch.cuda.memory_allocated()
    x = torch.randn(1000) @ torch.randn(1000, 10)
    torch.ones(3, device=CUDA).cpu()
    assert torch.cuda.memory_allocated() == before and x.device.type == "cpu"


def case_pinned_memory():
    x = torch.arange(8.0).pin_memory()
    assert x.is_pinned() and torch.equal(x.to(CUDA, non_blocking=True).cpu(), x)
