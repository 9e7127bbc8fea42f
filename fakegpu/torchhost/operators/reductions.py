"""Reductions of types that torch's CPU kernels refuse."""

import torch
from torch import Tensor


def nansum(x: Tensor, dim=None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    if x.is_complex():
        return torch.sum(torch.where(torch.isnan(x), 0, x), dim=dim or [], keepdim=keepdim, dtype=dtype)
    return torch.ops.aten.nansum.out(
        x, dim, keepdim, dtype=dtype, out=x.new_empty(0, dtype=dtype or _sum_dtype(x.dtype)))


def _sum_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.int64


OPERATORS = {"nansum": nansum}
