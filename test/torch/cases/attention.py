"""scaled_dot_product_attention: torch's own backend choice, every fused backend on host, the CUDA kernels' layouts."""

import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

CUDA = torch.device("cuda", 0)
ATOL = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}


def inputs(dtype=torch.float32, heads=4, key_heads=4, length=16, keys=16, width=8):
    generator = torch.Generator().manual_seed(0)

    def make(count, rows):
        return torch.randn(2, count, rows, width, generator=generator).to(dtype)

    return make(heads, length), make(key_heads, keys), make(key_heads, keys)


def plain(q, k, v, mask=None, causal=False, scale=None):
    """The definition, in double."""
    q, k, v = q.double(), k.double(), v.double()
    repeat = q.size(1) // k.size(1)
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    s = q @ k.transpose(-2, -1) * (scale or 1 / math.sqrt(q.size(-1)))
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    if mask is not None:
        s = s + mask.double()
    return s.softmax(-1) @ v


def check(backend, dtype, mask=None, causal=False, **sizes):
    host = [t.requires_grad_() for t in inputs(dtype, **sizes)]
    fake = [t.detach().to(CUDA).requires_grad_() for t in host]
    grouped = host[0].size(1) != host[1].size(1)
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(*fake, attn_mask=None if mask is None else mask.to(CUDA, dtype),
                                             is_causal=causal, enable_gqa=grouped)
    want = plain(*host, mask, causal)
    weight = torch.linspace(-1, 1, want.numel()).view(want.shape)
    torch.testing.assert_close(out.cpu().double(), want, rtol=0, atol=ATOL[dtype])
    found = torch.autograd.grad((out * weight.to(out)).sum(), fake)
    expected = torch.autograd.grad((want * weight).sum(), host)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a.cpu().double(), b.double(), rtol=0, atol=5 * ATOL[dtype])
    return out, found


def case_flash():
    for dtype in (torch.float16, torch.bfloat16):
        check(SDPBackend.FLASH_ATTENTION, dtype)
        check(SDPBackend.FLASH_ATTENTION, dtype, causal=True)
        check(SDPBackend.FLASH_ATTENTION, dtype, key_heads=2)


def case_efficient():
    for dtype in (torch.float32, torch.bfloat16):
        check(SDPBackend.EFFICIENT_ATTENTION, dtype)
        check(SDPBackend.EFFICIENT_ATTENTION, dtype, causal=True)
        check(SDPBackend.EFFICIENT_ATTENTION, dtype, mask=torch.randn(2, 4, 16, 16))


def case_math():
    check(SDPBackend.MATH, torch.float32, causal=True)


def case_cudnn():
    check(SDPBackend.CUDNN_ATTENTION, torch.float16, causal=True)


def case_torch_chooses_a_fused_backend():
    q, k, v = (t.to(CUDA) for t in inputs(torch.bfloat16))
    assert torch._fused_sdp_choice(q, k, v) != SDPBackend.MATH.value
    assert torch._fused_sdp_choice(q.float(), k.float(), v.float()) == SDPBackend.EFFICIENT_ATTENTION.value


def case_layouts_of_the_cuda_kernels():
    qkv = torch.randn(2, 16, 3, 4, 8, device=CUDA, dtype=torch.bfloat16, requires_grad=True)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(q, k, v)
        assert out.transpose(1, 2).is_contiguous()
        for grad in torch.autograd.grad(out.float().sum(), (q, k, v)):
            assert grad.transpose(1, 2).is_contiguous()


def case_log_sum_exp():
    q, k, v = (t.to(CUDA) for t in inputs())
    want = (q @ k.transpose(-2, -1) / math.sqrt(8)).logsumexp(-1)
    _, lse, seed, offset = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True)
    assert lse.shape == (2, 4, 32) and lse.dtype is torch.float32 and seed.device == offset.device == CUDA
    torch.testing.assert_close(lse[..., :16], want)
    flash = torch.ops.aten._scaled_dot_product_flash_attention(q.half(), k.half(), v.half())
    assert flash[1].shape == (2, 4, 16) and flash[6].dtype is torch.uint64
    torch.testing.assert_close(flash[1], want, rtol=1e-2, atol=1e-2)


def case_dropout_masks_repeat_in_the_backward_pass():
    choices = ((SDPBackend.EFFICIENT_ATTENTION, torch.float32), (SDPBackend.FLASH_ATTENTION, torch.bfloat16))
    for backend, dtype in choices:
        q, k, v = (t.to(CUDA).requires_grad_() for t in inputs(dtype, width=16))
        eye = torch.eye(16, dtype=dtype, device=CUDA).expand(2, 4, 16, 16).contiguous().requires_grad_()

        def run(value, backend=backend, q=q, k=k):
            torch.manual_seed(11)
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, value, dropout_p=0.5)

        dropped = run(eye)  # the dropped probabilities themselves
        assert 0.3 < (dropped == 0).float().mean().item() < 0.7
        out = run(v)
        torch.testing.assert_close(out.float(), dropped.float() @ v.float(), rtol=0, atol=4 * ATOL[dtype])
        (grad,) = torch.autograd.grad(out.float().sum(), v)
        torch.testing.assert_close(grad.float(), dropped.float().sum(-2)[..., None].expand_as(grad),
                                   rtol=0, atol=0.2 if dtype is torch.bfloat16 else 1e-4)
        torch.manual_seed(12)
        with sdpa_kernel(backend):
            other = F.scaled_dot_product_attention(q, k, eye, dropout_p=0.5)
        assert not torch.equal(other, dropped)


def case_fully_masked_rows_are_zero():
    q, k, v = (t.to(CUDA) for t in inputs())
    mask = torch.zeros(2, 4, 16, 16, device=CUDA)
    mask[:, :, 3] = -math.inf
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert bool((out[:, :, 3] == 0).all()) and bool(out.isfinite().all())


def case_jagged_attention():
    lengths = [3, 5]
    parts = [torch.randn(n, 2, 8) for n in lengths]
    jagged = torch.nested.nested_tensor([p.to(CUDA) for p in parts], layout=torch.jagged, requires_grad=True)
    x = jagged.transpose(1, 2)
    out = F.scaled_dot_product_attention(x, x, x).transpose(1, 2)
    want = torch.cat([plain(*[p.transpose(0, 1)[None]] * 3)[0].transpose(0, 1) for p in parts])
    torch.testing.assert_close(out.values().cpu().double(), want, rtol=0, atol=1e-5)
    out.values().sum().backward()
    assert jagged.grad.values().device == CUDA


def case_multi_head_attention_module():
    torch.manual_seed(0)
    host = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(2, 6, 16)
    want = host(x, x, x, need_weights=False)[0]
    found = host.to(CUDA)(x.to(CUDA), x.to(CUDA), x.to(CUDA), need_weights=False)[0]
    torch.testing.assert_close(found.cpu(), want, rtol=1e-5, atol=1e-6)
