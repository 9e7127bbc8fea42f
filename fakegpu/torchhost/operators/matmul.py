"""Matrix products with a wider result type, and depthwise convolutions under their CUDA names."""

import torch
from torch import Tensor


def mm(a: Tensor, b: Tensor, out_dtype: torch.dtype) -> Tensor:
    return torch.mm(a.to(out_dtype), b.to(out_dtype))


def bmm(a: Tensor, b: Tensor, out_dtype: torch.dtype) -> Tensor:
    return torch.bmm(a.to(out_dtype), b.to(out_dtype))


def addmm(c: Tensor, a: Tensor, b: Tensor, out_dtype: torch.dtype, *, beta=1, alpha=1) -> Tensor:
    return torch.addmm(c.to(out_dtype), a.to(out_dtype), b.to(out_dtype), beta=beta, alpha=alpha)


def baddbmm(c: Tensor, a: Tensor, b: Tensor, out_dtype: torch.dtype, *, beta=1, alpha=1) -> Tensor:
    return torch.baddbmm(c.to(out_dtype), a.to(out_dtype), b.to(out_dtype), beta=beta, alpha=alpha)


def _out(function):
    def into(*args, out: Tensor, **kwargs) -> Tensor:
        result = function(*args, **kwargs)
        return out.resize_(result.shape).copy_(result)

    return into


def depthwise2d(x, weight, kernel_size, bias, stride, padding, dilation) -> Tensor:
    return torch.conv2d(x, weight, bias, stride, padding, dilation, groups=x.size(1))


def depthwise3d(x, weight, kernel_size, bias, stride, padding, dilation) -> Tensor:
    return torch.conv3d(x, weight, bias, stride, padding, dilation, groups=x.size(1))


OPERATORS = {
    "mm.dtype": mm,
    "mm.dtype_out": _out(mm),
    "bmm.dtype": bmm,
    "bmm.dtype_out": _out(bmm),
    "addmm.dtype": addmm,
    "addmm.dtype_out": _out(addmm),
    "baddbmm.dtype": baddbmm,
    "baddbmm.dtype_out": _out(baddbmm),
    "_conv_depthwise2d": depthwise2d,
    "conv_depthwise3d": depthwise3d,
}
