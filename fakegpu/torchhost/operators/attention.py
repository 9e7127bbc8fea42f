"""The lower attention operators, on [batch, sequence, heads, width] or packed sequences of different lengths.

torch's jagged tensors and variable-length API call them. Each sequence is one call of the memory-efficient operator
(kernels/attention.cpp); dropout masks of a packed call follow from one seed and offset.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

OFFSET_PER_CALL = 4  # what one operator takes from a CUDA generator
LSE_BLOCK = 32
NO_MASK, CAUSAL_TOP_LEFT, CAUSAL_BOTTOM_RIGHT = 0, 1, 2


def _refuse(operator: str, **options) -> None:
    for name, value in options.items():
        if value is not None:
            raise NotImplementedError(
                f"fakegpu: aten::{operator} does not run on a fake device with {name}: there is no host "
                "implementation; pass an attention mask to scaled_dot_product_attention instead"
            )


def _mask(rows: int, columns: int, kind: int, window: tuple[int, int], like: Tensor) -> Tensor | None:
    """Additive mask, or None where everything is allowed. A window counts keys left and right of the diagonal."""
    left, right = window
    if kind == NO_MASK and left < 0 and right < 0:
        return None
    shift = columns - rows if kind != CAUSAL_TOP_LEFT else 0
    distance = torch.arange(columns, device=like.device) - torch.arange(rows, device=like.device)[:, None] - shift
    banned = torch.zeros_like(distance, dtype=torch.bool)
    if kind != NO_MASK:
        banned |= distance > 0
    if left >= 0:
        banned |= distance < -left
    if right >= 0:
        banned |= distance > right
    return torch.zeros(rows, columns, dtype=like.dtype, device=like.device).masked_fill_(banned, -math.inf)


def _pieces(tensors: list[Tensor], bounds: list[list[int]]) -> Iterator[list[Tensor]]:
    """Per sequence the slices of the packed tensors, as [1, heads, length, width]."""
    for i in range(len(bounds[0]) - 1):
        yield [t[b[i] : b[i + 1]].transpose(0, 1).unsqueeze(0) for t, b in zip(tensors, bounds)]


def _sequences(tensors: list[Tensor], starts: list[Tensor | None]) -> list[list[Tensor]]:
    if starts[0] is None:
        return [[t.transpose(1, 2) for t in tensors]]
    flat = [t.squeeze(0) if t.dim() == 4 else t for t in tensors]
    return list(_pieces(flat, [s.tolist() for s in starts]))


def _state(device: torch.device, dropout: float) -> tuple[int, int]:
    if dropout == 0:
        return 0, 0
    generator = torch.cuda.default_generators[device.index]
    return generator.initial_seed(), generator.get_offset()


def _forward(parts: list[list[Tensor]], bias: Tensor | None, dropout: float, kind: int, window, scale):
    """(outputs, log-sum-exps) of all sequences; one default-generator step each when there is dropout."""
    outs, lses = [], []
    for q, k, v in parts:
        mask = _mask(q.size(2), k.size(2), kind, window, q)
        mask = bias if mask is None else mask.expand(q.size(0), q.size(1), -1, -1) + (0 if bias is None else bias)
        out, lse, _, _ = torch.ops.aten._scaled_dot_product_efficient_attention(
            q, k, v, mask, True, dropout, scale=scale
        )
        outs.append(out)
        lses.append(lse[..., : q.size(2)])
    return outs, lses


def _backward(parts, grads, outs, lses, bias, bias_grad: bool, state, dropout: float, kind: int, window, scale):
    results = []
    seed, offset = state
    for (q, k, v), grad, out, lse in zip(parts, grads, outs, lses):
        mask = _mask(q.size(2), k.size(2), kind, window, q)
        mask = bias if mask is None else mask.expand(q.size(0), q.size(1), -1, -1) + (0 if bias is None else bias)
        words = [torch.tensor(word, dtype=torch.int64, device=q.device) for word in (seed, offset)]
        results.append(
            torch.ops.aten._scaled_dot_product_efficient_attention_backward(
                grad, q, k, v, mask, out, lse, *words, dropout, [True, True, True, bias_grad], scale=scale
            )
        )
        offset += OFFSET_PER_CALL
    return results


def _pack(pieces: list[Tensor], packed: bool, like: Tensor) -> Tensor:
    if not packed:
        return pieces[0].transpose(1, 2)
    return torch.cat([p.squeeze(0).transpose(0, 1) for p in pieces]).view(like.shape[:-1] + pieces[0].shape[-1:])


def _causal_kind(is_causal: bool) -> int:
    return CAUSAL_BOTTOM_RIGHT if is_causal else NO_MASK


def _window(left: int | None, right: int | None) -> tuple[int, int]:
    return (-1 if left is None else left), (-1 if right is None else right)


def flash_forward(
    query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, *, scale=None,
    window_size_left=None, window_size_right=None, seqused_k=None, alibi_slopes=None, block_table=None,
    num_splits=None,
):
    _refuse("_flash_attention_forward", seqused_k=seqused_k, alibi_slopes=alibi_slopes, block_table=block_table,
            return_debug_mask=return_debug_mask or None)
    packed = cum_seq_q is not None
    seed, offset = _state(query.device, dropout_p)
    parts = _sequences([query, key, value], [cum_seq_q, cum_seq_k, cum_seq_k])
    window = _window(window_size_left, window_size_right)
    outs, lses = _forward(parts, None, dropout_p, _causal_kind(is_causal), window, scale)
    lse = torch.cat([part.squeeze(0) for part in lses], 1) if packed else lses[0].contiguous()
    state = torch.tensor([seed, offset], dtype=torch.int64, device=query.device).view(torch.uint64)
    unused = torch.zeros((), dtype=torch.int64, device=query.device).view(torch.uint64)
    return _pack(outs, packed, query), lse, state, unused, query.new_empty(0)


def flash_backward(
    grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, rng_state,
    unused, *, scale=None, window_size_left=None, window_size_right=None,
):
    packed = cum_seq_q is not None and cum_seq_q.numel() > 0
    starts_q, starts_k = (cum_seq_q, cum_seq_k) if packed else (None, None)
    parts = _sequences([query, key, value], [starts_q, starts_k, starts_k])
    grads = [p[0] for p in _sequences([grad_out], [starts_q])]
    outs = [p[0] for p in _sequences([out], [starts_q])]
    if packed:
        bounds = starts_q.tolist()
        lses = [logsumexp[:, a:b].unsqueeze(0) for a, b in zip(bounds, bounds[1:])]
    else:
        lses = [logsumexp]
    state = tuple(rng_state.view(torch.int64).tolist()) if dropout_p else (0, 0)
    window = _window(window_size_left, window_size_right)
    results = _backward(parts, grads, outs, lses, None, False, state, dropout_p, _causal_kind(is_causal), window, scale)
    return tuple(_pack([r[i] for r in results], packed, like) for i, like in enumerate((query, key, value)))


def _padded(lses: list[Tensor], rows: int) -> Tensor:
    size = -(-rows // LSE_BLOCK) * LSE_BLOCK
    full = lses[0].new_full((sum(p.size(0) for p in lses), lses[0].size(1), size), math.inf)
    start = 0
    for part in lses:
        full[start : start + part.size(0), :, : part.size(2)] = part
        start += part.size(0)
    return full


def efficient_forward(
    query, key, value, bias, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, custom_mask_type,
    compute_log_sumexp=False, *, scale=None, seqlen_k=None, window_size=None,
):
    _refuse("_efficient_attention_forward", seqlen_k=seqlen_k)
    packed = cu_seqlens_q is not None
    seed, offset = _state(query.device, dropout_p)
    parts = _sequences([query, key, value], [cu_seqlens_q, cu_seqlens_k, cu_seqlens_k])
    window = _window(None if not window_size else window_size - 1, None)
    outs, lses = _forward(parts, bias, dropout_p, custom_mask_type, window, scale)
    rows = max_seqlen_q if packed else query.size(1)
    columns = max_seqlen_k if packed else key.size(1)
    lse = _padded(lses, rows if compute_log_sumexp else 0) if compute_log_sumexp else lses[0].new_empty(
        (lses[0].size(0), lses[0].size(1), 0))
    words = [torch.tensor(word, dtype=torch.int64, device=query.device) for word in (seed, offset)]
    return _pack(outs, packed, query), lse, *words, rows, columns


def efficient_backward(
    grad_out_, query, key, value, bias, out, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, logsumexp,
    dropout_p, philox_seed, philox_offset, custom_mask_type, bias_requires_grad, *, scale=None, num_splits_key=None,
    window_size=None, shared_storage_dqdkdv=False,
):
    _refuse("_efficient_attention_backward", shared_storage_dqdkdv=shared_storage_dqdkdv or None)
    packed = cu_seqlens_q is not None
    parts = _sequences([query, key, value], [cu_seqlens_q, cu_seqlens_k, cu_seqlens_k])
    grads = [p[0] for p in _sequences([grad_out_], [cu_seqlens_q])]
    outs = [p[0] for p in _sequences([out], [cu_seqlens_q])]
    lses = [logsumexp[i : i + 1] for i in range(len(parts))] if packed else [logsumexp]
    state = (int(philox_seed), int(philox_offset)) if dropout_p else (0, 0)
    window = _window(None if not window_size else window_size - 1, None)
    results = _backward(parts, grads, outs, lses, bias, bool(bias_requires_grad and bias is not None), state,
                        dropout_p, custom_mask_type, window, scale)
    gradients = [_pack([r[i] for r in results], packed, like) for i, like in enumerate((query, key, value))]
    return *gradients, results[0][3] if bias is not None and bias_requires_grad else None


OPERATORS = {
    "_flash_attention_forward": flash_forward,
    "_flash_attention_backward": flash_backward,
    "_efficient_attention_forward": efficient_forward,
    "_efficient_attention_backward": efficient_backward,
}
