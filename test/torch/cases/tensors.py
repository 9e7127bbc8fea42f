"""Aliases, results, devices: what every operator shares."""

import pytest
import torch

CUDA = torch.device("cuda", 0)


def on(data, **kw):
    return torch.tensor(data, device=CUDA, **kw)


def case_result_is_a_cuda_tensor_with_the_right_values():
    y = on([1.0, 2.0]) * 3 + torch.tensor(1.0)
    assert y.device == CUDA and y.tolist() == [4.0, 7.0]


def case_view_outputs_share_the_storage():
    x = on([[1.0, 2.0], [3.0, 4.0]])
    row, flat = x[1], x.reshape(-1)
    x.mul_(2)
    assert row.tolist() == [6.0, 8.0] and flat.tolist() == [2.0, 4.0, 6.0, 8.0]
    assert flat.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def case_written_argument_is_returned_itself():
    x, out = on([1.0]), torch.empty(1, device=CUDA)
    assert x.add_(1) is x and torch.add(x, 1, out=out) is out and out.item() == 3.0


def case_out_is_resized_and_keeps_its_identity():
    out = torch.empty(0, device=CUDA)
    view = out.untyped_storage()
    torch.mm(torch.ones(3, 4, device=CUDA), torch.ones(4, 5, device=CUDA), out=out)
    assert out.shape == (3, 5) and out.device == CUDA and bool((out == 4).all())
    assert view.data_ptr() == out.data_ptr() and view.device.type == "cuda"


def case_conjugate_and_negative_bits_travel():
    z = on([1 + 2j, 3 - 1j])
    assert z.conj().is_conj() and torch.equal((z.conj() * 1).cpu(), z.cpu().conj())
    assert torch.equal((z.conj().imag + 0).cpu(), z.cpu().conj().imag + 0)
    assert z.conj()[1:].is_conj()


def case_empty_and_zero_dim_tensors():
    assert (torch.empty(0, 3, device=CUDA) @ torch.empty(3, 2, device=CUDA)).shape == (0, 2)
    assert on(2.0).sqrt().shape == () and torch.empty(0, device=CUDA).sum().item() == 0.0


def case_two_outputs_with_one_storage_stay_together():
    values, indices = torch.sort(on([3.0, 1.0, 2.0]))
    assert values.tolist() == [1.0, 2.0, 3.0] and indices.tolist() == [1, 2, 0]
    a, b = torch.split(on([1.0, 2.0, 3.0, 4.0]), 2)
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def case_mixed_devices_raise_torchs_own_text():
    x = torch.ones(2, 2, device=CUDA)
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu!"):
        x + torch.ones(2, 2)
    with pytest.raises(RuntimeError, match=r"got mat2 is on cpu, different from other tensors on cuda:0 "
                                           r"\(when checking argument in method wrapper_CUDA_mm\)"):
        x @ torch.ones(2, 2)
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cuda:1!"):
        x + torch.ones(2, 2, device="cuda:1")
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        torch.ones(2)[on([0])]


def case_mixtures_that_hardware_takes():
    x = torch.zeros(3, device=CUDA)
    x[torch.tensor([0, 2])] = 1.0
    x += torch.tensor(1.0)
    assert x.tolist() == [2.0, 1.0, 2.0]
    assert x.masked_fill(x > 1, torch.tensor(5.0)).tolist() == [5.0, 1.0, 5.0]
    torch._foreach_copy_([x], [torch.tensor([7.0, 8.0, 9.0])])
    assert x.tolist() == [7.0, 8.0, 9.0]


def case_copies_between_devices():
    x = torch.arange(6.0).view(2, 3)
    a = x.cuda(0)
    b = a.to("cuda:1")
    assert b.device.index == 1 and torch.equal(b.cpu(), x) and torch.equal(a.t().contiguous().cpu(), x.t())
    assert torch.equal(a.half().cpu(), x.half()) and torch.equal(a.to("cpu", torch.float64), x.double())
    with torch.cuda.device(1):
        assert (b + 1).device.index == 1 and (a + 1).device.index == 0


def case_operators_follow_the_tensors_device_not_the_current_one():
    y = torch.ones(2, device="cuda:1") * 2
    assert y.device.index == 1 and torch.nonzero(y).device.index == 1
    before = torch.cuda.memory_allocated(1)
    z = y.repeat(1000)
    assert torch.cuda.memory_allocated(1) > before and z.device.index == 1


def case_inference_mode_and_no_grad():
    with torch.inference_mode():
        y = on([1.0]) * 2
        assert y.is_inference() and y.add_(1).item() == 3.0
    with torch.no_grad():
        assert not (torch.ones(1, device=CUDA, requires_grad=True) * 2).requires_grad


def case_errors_of_cpu_kernels_propagate_and_leave_no_trace():
    x = torch.ones(2, 3, device=CUDA)
    before = torch.initial_seed(), torch.cuda.current_device(), torch.random.get_rng_state()
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        x @ x
    with pytest.raises(RuntimeError):
        torch.multinomial(on([-1.0, 2.0]), 1)
    with pytest.raises(IndexError):
        x[torch.tensor([5], device=CUDA)]
    assert before[:2] == (torch.initial_seed(), torch.cuda.current_device())
    assert torch.equal(before[2], torch.random.get_rng_state())
    assert torch.empty(3).device.type == "cpu" and (x + 1).device == CUDA
    allocated = torch.cuda.memory_allocated()
    host = torch.empty(100_000)
    assert torch.cuda.memory_allocated() == allocated and host.device.type == "cpu"


def case_sparse_results_stay_on_the_device():
    x = on([[0.0, 2.0], [3.0, 0.0]])
    coo, csr = x.to_sparse(), x.to_sparse_csr()
    assert coo.device == CUDA and coo.indices().device == CUDA and csr.device == CUDA
    assert torch.equal(torch.sparse.mm(coo, x).cpu(), x.cpu() @ x.cpu())
    assert torch.equal((csr @ x).cpu(), x.cpu() @ x.cpu())
    doubled = (coo + coo).coalesce()
    assert torch.equal(doubled.to_dense().cpu(), 2 * x.cpu()) and doubled.device == CUDA
    coo.add_(coo)
    assert torch.equal(coo.to_dense().cpu(), 2 * x.cpu()) and coo.values().device == CUDA


def case_sparse_embedding_gradients():
    table = torch.nn.Embedding(10, 4, sparse=True).cuda()
    table(on([1, 3, 1])).sum().backward()
    grad = table.weight.grad
    assert grad.is_sparse and grad.device == CUDA
    torch.optim.SGD(table.parameters(), lr=1.0).step()
    assert grad.coalesce().to_dense()[1].tolist() == [2.0] * 4


def case_nested_tensors():
    parts = [torch.randn(2, 4), torch.randn(3, 4)]
    nested = torch.nested.nested_tensor([p.cuda() for p in parts])
    padded = torch.nested.to_padded_tensor(nested * 2, 0.0)
    assert padded.device == CUDA and torch.equal(padded[0, :2].cpu(), parts[0] * 2)
    jagged = torch.nested.nested_tensor([p.cuda() for p in parts], layout=torch.jagged)
    assert jagged.device == CUDA and torch.allclose(jagged.sin().values().cpu(), torch.cat(parts).sin())


def case_quantized_tensors():
    x = torch.randn(4, 4)
    q = torch.quantize_per_tensor(x.cuda(), 0.1, 3, torch.qint8)
    assert q.device == CUDA and torch.equal(q.dequantize().cpu(), torch.quantize_per_tensor(x, 0.1, 3, torch.qint8)
                                            .dequantize())


def case_types_that_cpu_kernels_lack():
    x = torch.randn(8).half()
    assert torch.fft.fft(x.cuda()).dtype is torch.complex32
    assert torch.allclose(torch.fft.rfft(x.cuda()).cpu().to(torch.complex64), torch.fft.rfft(x.float()), atol=1e-2)
    assert on([True, False]).abs().dtype is torch.bool
    assert torch.histc(on([1, 2, 2, 3]), bins=3, min=1, max=3).tolist() == [1, 2, 1]


def case_foreach_lists_longer_than_the_linear_search():
    xs = [torch.full((3,), float(i), device=CUDA) for i in range(60)]
    torch._foreach_add_(xs, 1.0)
    ys = torch._foreach_mul(xs, xs)
    assert [y[0].item() for y in ys] == [(i + 1.0) ** 2 for i in range(60)] and all(y.device == CUDA for y in ys)


def case_refused_operators_say_so():
    with pytest.raises(NotImplementedError, match="aten::_cslt_compress does not run on a fake device: cuSPARSELt"):
        torch._cslt_compress(torch.ones(64, 64, device=CUDA, dtype=torch.half))
    with pytest.raises(NotImplementedError, match="torch.cuda.jiterator does not run on a fake device"):
        torch.cuda.jiterator._create_jit_fn("template <typename T> T f(T x) { return x; }")(torch.ones(2, device=CUDA))


def case_torchscript_functions_run_again_and_again():
    @torch.jit.script
    def activation(x):
        return torch.relu(x) * 2 + 1

    for _ in range(4):  # fusers of device code would begin at the second call
        assert activation(on([-1.0, 2.0])).tolist() == [1.0, 5.0]


def case_refusals_name_operators_with_a_cuda_kernel():
    import fakegpu.torchhost.build as build

    for name in build.read_refusals(build.refusals_file().read_text()):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA"), name
