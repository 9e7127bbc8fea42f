"""torch.compile and Triton on a fake device: every backend gives what the function itself gives."""

import copy

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.language.extra import libdevice


def function(x, w):
    return F.gelu(x @ w).sum(-1) + torch.arange(x.shape[0], device=x.device)


def check(**how):
    torch._dynamo.reset()
    x, w = (torch.randn(shape, device="cuda", requires_grad=True) for shape in ((8, 16), (16, 4)))
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    found, expected = torch.compile(function, **how)(x, w), function(x, w)
    assert torch.equal(found, expected)
    gradients = (torch.autograd.grad(out.sum(), (x, w)) for out in (found, expected))
    assert all(map(torch.equal, *gradients))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > graphs, "nothing was traced"


def case_backend_eager():
    check(backend="eager", fullgraph=True)


def case_backend_aot_eager():
    check(backend="aot_eager", fullgraph=True)


def case_inductor():
    check()
    check(backend="inductor", dynamic=True, fullgraph=True)


def case_inductor_with_cuda_graphs_and_tuning():
    check(mode="reduce-overhead")
    check(mode="max-autotune")
    check(options={"triton.cudagraphs": True, "epilogue_fusion": True})


def case_backend_cudagraphs():
    """The first call runs, the second is captured and launched, the others are launched: all the same numbers."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).cuda()
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend="cudagraphs")
    pairs = [(each, torch.optim.SGD(each.parameters(), lr=0.1)) for each in (compiled, twin)]
    for _ in range(5):
        batch, outputs = torch.randn(8, 16, device="cuda"), []
        for each, optimizer in pairs:
            optimizer.zero_grad()
            outputs.append(each(batch))
            outputs[-1].pow(2).mean().backward()
            optimizer.step()
        assert torch.equal(*outputs)
    assert all(map(torch.equal, model.parameters(), twin.parameters()))


def case_only_the_graph_is_on_the_device():
    torch._dynamo.reset()
    made = torch.compile(lambda n: torch.arange(n, device="cuda") * 2)(5)
    assert made.tolist() == [0, 2, 4, 6, 8] and made.is_cuda


def case_dropout_draws_as_the_function_does():
    torch._dynamo.reset()
    x = torch.ones(64, device="cuda")
    torch.manual_seed(5)
    expected = F.dropout(x)
    torch.manual_seed(5)
    assert torch.equal(torch.compile(lambda x: F.dropout(x))(x), expected)


def case_optimizer_step():
    torch._dynamo.reset()
    models = [torch.nn.Linear(8, 8, device="cuda") for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    steps = [torch.optim.AdamW(model.parameters(), lr=0.1).step for model in models]
    steps[1] = torch.compile(steps[1])
    for _ in range(3):
        for model, step in zip(models, steps):
            model(torch.ones(2, 8, device="cuda")).sum().backward()
            step()
    torch.testing.assert_close(models[0].weight, models[1].weight)  # a traced step keeps its count in a tensor


def case_flex_attention_with_a_block_mask():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    q, k, v = (torch.randn(2, 4, 256, 32, device="cuda", requires_grad=True) for _ in range(3))
    mask = torch.compile(create_block_mask)(lambda b, h, i, j: i >= j, None, None, 256, 256, device="cuda")
    found = torch.compile(flex_attention)(q, k, v, block_mask=mask)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(found, expected)
    for ours, theirs in zip(*(torch.autograd.grad(out.sum(), (q, k, v)) for out in (found, expected))):
        torch.testing.assert_close(ours, theirs)


def case_ahead_of_time_code_is_refused():
    exported = torch.export.export(torch.nn.Linear(4, 4, device="cuda"), (torch.ones(1, 4, device="cuda"),))
    try:
        torch._inductor.aoti_compile_and_package(exported)
    except NotImplementedError as error:
        assert "ahead-of-time compilation for CUDA" in str(error)
    else:
        raise AssertionError("not refused")


@triton.jit
def add_kernel(x, y, out, count, block: tl.constexpr):
    place = tl.program_id(0) * block + tl.arange(0, block)
    inside = place < count
    tl.store(out + place, tl.load(x + place, mask=inside) + tl.load(y + place, mask=inside), mask=inside)


tuned_kernel = triton.autotune([triton.Config({"block": size}) for size in (64, 128)], key=["count"])(add_kernel)


def add(x, y):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), block=64)
    return out


def add_tuned(x, y):
    out = torch.empty_like(x)
    tuned_kernel[lambda meta: (triton.cdiv(x.numel(), meta["block"]),)](x, y, out, x.numel())
    return out


@torch.library.triton_op("fakegpu_test::add", mutates_args=())
def add_operator(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(add_kernel)[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), block=64)
    return out


def case_triton_kernels():
    x, y = torch.randn(2, 1000, device="cuda")
    assert torch.equal(add(x, y), x + y)
    assert torch.equal(add_tuned(x, y), x + y)
    assert torch.equal(add_operator(x, y), x + y)


def case_triton_kernels_in_a_compiled_function():
    torch._dynamo.reset()
    x, y = torch.randn(2, 1000, device="cuda")
    for kernel in (add, add_tuned, add_operator):
        assert torch.equal(torch.compile(lambda x, y: kernel(x, y) * 2)(x, y), (x + y) * 2)
    assert torch.equal(torch.compile(add_operator, fullgraph=True, backend="aot_eager")(x, y), x + y)


def case_a_traced_triton_launch_is_refused():
    from torch.fx.experimental.proxy_tensor import make_fx

    x, y = torch.randn(2, 1000, device="cuda")
    try:
        make_fx(add)(x, y)
    except NotImplementedError as error:
        assert "Triton kernel is traced" in str(error)
    else:
        raise AssertionError("not refused")


@triton.jit
def normalize_kernel(x, out, epsilon, count: tl.constexpr):
    row = tl.program_id(0) * count + tl.arange(0, count)
    values = tl.load(x + row)
    scale = libdevice.rsqrt(tl.sum(values * values, axis=0) / count + epsilon.to(tl.float32))
    tl.store(out + row, libdevice.tanh(values * scale))


@triton.jit
def bits_kernel(x, out):
    tl.store(out, libdevice.popc(tl.load(x)))


def case_triton_kernels_with_libdevice_and_a_float_argument():
    x = torch.randn(5, 64, device="cuda")
    out = torch.empty_like(x)
    normalize_kernel[(5,)](x, out, 1e-5, count=64)
    torch.testing.assert_close(out, torch.tanh(F.rms_norm(x, (64,), eps=1e-5)))


def case_a_libdevice_function_without_a_counterpart_is_refused():
    x = torch.ones(1, dtype=torch.int32, device="cuda")
    try:
        bits_kernel[(1,)](x, x)
    except Exception as error:  # the interpreter wraps it
        assert "libdevice's popc does not run" in str(error)
    else:
        raise AssertionError("not refused")
