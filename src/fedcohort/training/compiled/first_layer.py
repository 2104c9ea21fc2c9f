"""The first convolution of a model with its pool and ReLU, compiled.

Images have few channels, with which PyTorch's convolutions cannot fill a processor's vectors, and
many pixels: of a model's values, most are those between the first convolution and its pool. Here
they live for two rows, in the cache, and the way back needs only where each maximum was.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from fedcohort.training.compiled.compiler import call, is_readable
from fedcohort.training.compiled.program import CLayer, convolution, weights_in
from fedcohort.training.fused.layers import Convolution, Layer

# Of images: with more, PyTorch's convolutions fill vectors.
_FEW_CHANNELS = 4


def is_compiled(layer: Layer, x: Tensor) -> bool:
    """Tell whether `first_layer` can compute a model's first layer of inputs `x`."""
    few = isinstance(layer, Convolution) and layer.channels <= _FEW_CHANNELS
    return few and is_readable(x)


def first_layer(layer: Convolution, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """Return what a model's first layer gives on; nobody may ask for the gradient of the images.

    Parameters
    ----------
    layer : Convolution
        With its pool and ReLU.
    weight, bias : float32 [F, C, kh, kw] and [F]
        Its parameters.
    x : float32 [B, C, H, W]
        Images.

    Returns
    -------
    float32 [B, F, H', W']
        Channels-last.
    """
    pad = layer.padding
    images = F.pad(x, (pad, pad, pad, pad)) if pad else x
    shape = convolution(layer, None, border=0, inner=False, fill=False)
    shape.bias = weights_in(shape)
    out: Tensor = _FirstLayer.apply(
        images.permute(0, 2, 3, 1).contiguous(), weight.contiguous(), bias, shape
    )  # type: ignore[no-untyped-call]
    return out.permute(0, 3, 1, 2)


class _FirstLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, shape: CLayer) -> Tensor:
        rows, columns = shape.rows // shape.pool, shape.columns // shape.pool
        out = x.new_empty(len(x), rows, columns, shape.given)
        winner = torch.empty(out.shape, dtype=torch.int8)
        packed = x.new_zeros(shape.bias + shape.filters)
        line = x.new_empty(shape.pool * shape.columns * shape.filters)
        call("first_forward", shape, weight, bias, x, out, winner, len(x), packed, line)
        ctx.save_for_backward(x, winner)
        ctx.shape, ctx.like = shape, weight.shape
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor | None, None]:
        x, winner = ctx.saved_tensors
        shape = ctx.shape
        weight = x.new_empty(ctx.like)
        bias = x.new_empty(shape.outputs) if shape.has_bias else None
        packed = x.new_empty(shape.bias + shape.filters)
        slope = x.new_zeros(shape.rows * shape.columns * shape.filters)
        given = gradient.contiguous()
        call("first_backward", shape, x, given, winner, len(x), weight, bias, packed, slope)
        return None, weight, bias, None
