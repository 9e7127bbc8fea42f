"""Generators behave as on hardware: seeds, states, offsets; the values are not Philox's."""

import pytest
import torch

CUDA = torch.device("cuda", 0)


def case_manual_seed_repeats():
    torch.manual_seed(1)
    a = torch.randn(4, device=CUDA)
    b = torch.randn(4, device=CUDA)
    torch.manual_seed(1)
    assert torch.equal(a, torch.randn(4, device=CUDA)) and not torch.equal(a, b)


def case_state_round_trip():
    torch.cuda.manual_seed(3)
    torch.rand(2, device=CUDA)
    state = torch.cuda.get_rng_state()
    a = torch.rand(5, device=CUDA)
    torch.cuda.set_rng_state(state)
    assert torch.equal(a, torch.rand(5, device=CUDA))


def case_each_call_advances_the_offset_by_four():
    g = torch.Generator("cuda").manual_seed(5)
    assert g.get_offset() == 0
    torch.rand(3, device=CUDA, generator=g)
    torch.empty(100, device=CUDA).normal_(generator=g)
    assert g.get_offset() == 8 and g.initial_seed() == 5
    again = torch.Generator("cuda").manual_seed(5)
    again.set_offset(4)
    a = torch.empty(3, device=CUDA).normal_(generator=again)
    g.set_offset(4)
    assert torch.equal(a, torch.empty(3, device=CUDA).normal_(generator=g))


def case_cuda_draws_leave_the_cpu_generator_alone():
    torch.manual_seed(2)
    want = torch.randn(3)
    torch.manual_seed(2)
    torch.nn.functional.dropout(torch.ones(1000, device=CUDA))
    torch.randn(7, device=CUDA)
    assert torch.equal(want, torch.randn(3))


def case_wrong_generator_is_refused_in_torchs_words():
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.empty(3, device=CUDA).normal_(generator=torch.Generator())


def case_devices_have_their_own_streams_of_numbers():
    torch.manual_seed(9)
    a, b = torch.rand(8, device="cuda:0"), torch.rand(8, device="cuda:1")
    assert a.device.index == 0 and b.device.index == 1 and torch.equal(a.cpu(), b.cpu())
    assert not torch.equal(torch.rand(8, device="cuda:0").cpu(), b.cpu())


def case_dropout_statistics_and_scale():
    torch.manual_seed(0)
    y = torch.nn.functional.dropout(torch.ones(20_000, device=CUDA), 0.25)
    kept = (y != 0).float().mean().item()
    assert abs(kept - 0.75) < 0.02 and torch.allclose(y[y != 0], torch.tensor(1 / 0.75, device=CUDA))


def case_checkpoint_recomputes_the_same_mask():
    from torch.utils.checkpoint import checkpoint

    layer = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.5)).cuda()
    x = torch.randn(4, 16, device=CUDA, requires_grad=True)
    torch.manual_seed(4)
    (plain,) = torch.autograd.grad(layer(x).sum(), x)
    torch.manual_seed(4)
    (again,) = torch.autograd.grad(checkpoint(layer, x, use_reentrant=False).sum(), x)
    assert torch.equal(plain, again)
