"""Dropout operators that exist on CUDA only. Masks come from the CUDA generator, through bernoulli_."""

import torch
from torch import Tensor


def fused_dropout(x: Tensor, keep: float, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """`keep` is the probability of keeping; the mask is bytes, as the backward operator expects."""
    mask = torch.empty_like(x, dtype=torch.uint8).bernoulli_(keep, generator=generator)
    return x * mask * (1.0 / keep if keep else 0.0), mask


def masked_scale(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    return x * mask * scale


OPERATORS = {"_fused_dropout": fused_dropout, "_masked_scale": masked_scale}
