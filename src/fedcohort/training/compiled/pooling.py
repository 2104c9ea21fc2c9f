"""A 2×2 max-pooling with its ReLU, compiled: one pass over the values instead of two or three."""

from typing import Any

import torch
from torch import Tensor

from fedcohort.training.compiled.compiler import call
from fedcohort.training.compiled.program import CLayer


def pool_and_rectify(x: Tensor, *, relu: bool) -> Tensor:
    """Return the largest of each 2×2 window of images float32 [B, C, H, W], and its ReLU.

    Both images are channels-last.
    """
    pooled: Tensor = _Pool.apply(x.permute(0, 2, 3, 1).contiguous(), relu)  # type: ignore[no-untyped-call]
    return pooled.permute(0, 3, 1, 2)


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, relu: bool) -> Tensor:
        samples, rows, columns, channels = x.shape
        shape = CLayer(
            pool=2, relu=relu, rows=rows, columns=columns, filters=channels, given=channels
        )
        out = x.new_empty(samples, rows // 2, columns // 2, channels)
        winner = torch.empty(out.shape, dtype=torch.int8)
        call("pool_forward", shape, x, out, winner, samples)
        ctx.save_for_backward(winner)
        ctx.shape, ctx.like = shape, x.shape
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (winner,) = ctx.saved_tensors
        _, rows, columns, channels = ctx.like
        odd = rows % 2 or columns % 2
        slope = gradient.new_zeros(ctx.like) if odd else gradient.new_empty(ctx.like)
        bias = gradient.new_zeros(channels)
        given = gradient.contiguous()
        call("pool_backward", ctx.shape, given, winner, slope, bias, len(given))
        return slope, None
