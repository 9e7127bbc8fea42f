"""LU factorisation without pivoting, which torch's CPU kernels do not have."""

import torch
from torch import Tensor


def _factor(a: Tensor) -> tuple[Tensor, Tensor]:
    """Packed L and U by rank-one updates, and info: 1 + the first column with a zero pivot, or 0."""
    lu = a.clone()
    info = torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)
    for k in range(min(a.shape[-2:])):
        pivot = lu[..., k, k]
        info = torch.where((pivot == 0) & (info == 0), k + 1, info).to(torch.int32)
        lu[..., k + 1 :, k] /= pivot[..., None]
        lu[..., k + 1 :, k + 1 :] -= lu[..., k + 1 :, k, None] * lu[..., k, None, k + 1 :]
    return lu, info


def lu_factor_ex(a: Tensor, *, pivot: bool = True, check_errors: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    if pivot:
        out = a.new_empty(0), a.new_empty(0, dtype=torch.int32), a.new_empty(0, dtype=torch.int32)
        return torch.ops.aten.linalg_lu_factor_ex.out(
            a, pivot=True, check_errors=check_errors, LU=out[0], pivots=out[1], info=out[2]
        )
    lu, info = _factor(a)
    if check_errors and bool(info.any()):
        raise torch.linalg.LinAlgError(f"linalg.lu_factor: zero pivot in column {int(info.max())}")
    rows = torch.arange(1, min(a.shape[-2:]) + 1, dtype=torch.int32, device=a.device)
    return lu, rows.expand(*a.shape[:-2], -1).contiguous(), info


def lu(a: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    if pivot:
        out = a.new_empty(0), a.new_empty(0), a.new_empty(0)
        return torch.ops.aten.linalg_lu.out(a, pivot=True, P=out[0], L=out[1], U=out[2])
    packed, _ = _factor(a)
    size = min(a.shape[-2:])
    lower = packed[..., :size].tril(-1)
    lower.diagonal(dim1=-2, dim2=-1).fill_(1)
    return a.new_empty(0), lower, packed[..., :size, :].triu()


OPERATORS = {"linalg_lu_factor_ex": lu_factor_ex, "linalg_lu": lu}
