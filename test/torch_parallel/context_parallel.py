"""Context parallelism: attention over sequences that are cut across the ranks, against whole sequences.

torchrun ... context_parallel.py [--only NAMES]
"""

import torch
import torch.nn.functional as F
from common import World, main
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import _cp_options, context_parallel_unshard, set_rotate_method
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPE = (1, 2, 512, 16)  # batch, heads, sequence, width; the kernels ask for 32 in each of 2 x ranks parts


def attention(world: World, backend: SDPBackend, causal: bool, rotate: str, dtype: torch.dtype) -> None:
    torch.manual_seed(9)
    whole = [torch.randn(SHAPE, device=world.device, dtype=dtype).requires_grad_() for _ in range(3)]
    weight = torch.randn(SHAPE, device=world.device, dtype=dtype)
    expected = F.scaled_dot_product_attention(*[t.float() for t in whole], is_causal=causal)
    gradients = torch.autograd.grad((expected * weight.float()).sum(), whole)
    mesh = init_device_mesh("cuda", (world.size,))
    set_rotate_method(rotate)
    _cp_options.enable_load_balance = causal
    parts = [tensor.detach().clone() for tensor in (*whole, weight)]
    with sdpa_kernel(backend), context_parallel(mesh, buffers=parts, buffer_seq_dims=[2] * 4):
        q, k, v = (part.detach().requires_grad_() for part in parts[:3])
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        assert out.shape[2] == SHAPE[2] // world.size
        found = [out, *torch.autograd.grad((out * parts[3]).sum(), (q, k, v))]
    found = context_parallel_unshard(mesh, [tensor.detach() for tensor in found], [2] * 4)
    # one rounding of float32 per block of keys; in bf16 the partial results have 8 significant bits
    bound = {"rtol": 1e-4, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 0.05, "atol": 0.05}
    for name, ours, theirs in zip(("output", "dq", "dk", "dv"), found, (expected, *gradients)):
        torch.testing.assert_close(ours.float(), theirs.float(), msg=lambda text, name=name: f"{name}: {text}", **bound)


EFFICIENT, FLASH = SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION
CHECKS = {
    f"{name}_{'causal' if causal else 'full'}_{rotate}":
        lambda world, b=backend, c=causal, r=rotate, d=dtype: attention(world, b, c, r, d)
    for name, backend, dtype in (("efficient", EFFICIENT, torch.float32), ("flash", FLASH, torch.bfloat16))
    for causal in (False, True)
    for rotate in ("allgather", "alltoall")
}  # fmt: skip

if __name__ == "__main__":
    main(CHECKS)
