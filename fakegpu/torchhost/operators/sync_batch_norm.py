"""SyncBatchNorm's operators: statistics over batch and space, per channel, gathered over ranks.

The names and meanings are torch's (torch/nn/modules/_functions.py calls them). Statistics are float for half inputs.
"""

import torch
from torch import Tensor


def _dims(x: Tensor) -> list[int]:
    return [0, *range(2, x.dim())]


def _per_channel(v: Tensor, x: Tensor) -> Tensor:
    return v.view([1, -1] + [1] * (x.dim() - 2))


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype is torch.double else x.float()


def stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    wide = _wide(x)
    return wide.mean(_dims(x)), torch.rsqrt(wide.var(_dims(x), unbiased=False) + eps)


def elemt(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float) -> Tensor:
    scale = invstd if weight is None else invstd * weight
    y = (_wide(x) - _per_channel(mean, x)) * _per_channel(scale, x)
    if bias is not None:
        y = y + _per_channel(bias, x)
    return y.to(x.dtype)


def elemt_out(x, weight, bias, mean, invstd, eps, *, out: Tensor) -> Tensor:
    return out.copy_(elemt(x, weight, bias, mean, invstd, eps))


def gather_stats_with_counts(
    x: Tensor, mean: Tensor, invstd: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    momentum: float, eps: float, counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Rows of mean and invstd are ranks; pools them by count and updates the running statistics."""
    count = counts.to(mean.dtype).view(-1, 1)
    total = count.sum()
    pooled = (mean * count).sum(0) / total
    squares = ((invstd.pow(-2) - eps + (mean - pooled).square()) * count).sum(0)
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(pooled.to(running_mean.dtype), alpha=momentum)
    if running_var is not None:
        running_var.mul_(1 - momentum).add_((squares / (total - 1)).to(running_var.dtype), alpha=momentum)
    return pooled, torch.rsqrt(squares / total + eps)


def gather_stats(x, mean, invstd, running_mean, running_var, momentum, eps, count: int) -> tuple[Tensor, Tensor]:
    counts = torch.full((mean.size(0),), count, dtype=mean.dtype, device=mean.device)
    return gather_stats_with_counts(x, mean, invstd, running_mean, running_var, momentum, eps, counts)


def backward_reduce(
    grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, input_g: bool, weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    wide = _wide(grad)
    sum_dy = wide.sum(_dims(x))
    sum_dy_xmu = (wide * (_wide(x) - _per_channel(mean, x))).sum(_dims(x))
    dtype = weight.dtype if weight is not None else mean.dtype
    return (
        sum_dy if input_g else None,
        sum_dy_xmu if input_g else None,
        (sum_dy_xmu * invstd).to(dtype) if weight_g else None,
        sum_dy.to(dtype) if bias_g else None,
    )


def backward_elemt(
    grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, sum_dy: Tensor, sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    total = count.sum().to(mean.dtype)
    scale = invstd if weight is None else invstd * weight.to(mean.dtype)
    centred = (_wide(x) - _per_channel(mean, x)) * _per_channel(invstd.square() * sum_dy_xmu / total, x)
    return ((_wide(grad) - _per_channel(sum_dy / total, x) - centred) * _per_channel(scale, x)).to(x.dtype)


OPERATORS = {
    "batch_norm_stats": stats,
    "batch_norm_elemt": elemt,
    "batch_norm_elemt.out": elemt_out,
    "batch_norm_gather_stats": gather_stats,
    "batch_norm_gather_stats_with_counts": gather_stats_with_counts,
    "batch_norm_backward_reduce": backward_reduce,
    "batch_norm_backward_elemt": backward_elemt,
}
