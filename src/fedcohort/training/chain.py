"""Models that are a plain chain of layers.

Knowing the layers allows what PyTorch's autograd cannot know on its own: a ReLU before a
max-pooling can be computed after it, on a quarter of the values, with the same outputs and the same
gradients; and many models' gradients can be written out as a few batched matrix products.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedcohort.training.fused.layers import Convolution, Layer, UnsupportedModelError, recognise
from fedcohort.training.local import Parameters


def read_chain(model: nn.Module, input_shape: Sequence[int]) -> tuple[Layer, ...] | None:
    """Return the layers of a model, or None if it is not a chain of known layers.

    Parameters
    ----------
    model : nn.Module
        Any model; its code is traced, not changed.
    input_shape : sequence of int
        Shape of one input.
    """
    try:
        return recognise(model, tuple(input_shape))
    except UnsupportedModelError:
        return None


def forward(layers: Sequence[Layer], parameters: Parameters, x: Tensor) -> Tensor:
    """Return logits [B, classes] of inputs [B, ...]."""
    for layer in layers:
        bias = None if layer.bias is None else parameters[layer.bias]
        if isinstance(layer, Convolution):
            x = torch.conv2d(x, parameters[layer.weight], bias, padding=layer.padding)
            if layer.pool > 1:  # 2×2
                x = torch.max_pool2d(x, 2) if torch.is_grad_enabled() else _largest_of_four(x)
        else:
            x = F.linear(x.flatten(1), parameters[layer.weight], bias)
        if layer.relu:
            x = torch.relu(x)
    return x


def _largest_of_four(x: Tensor) -> Tensor:
    """Pool 2×2 windows without noting which of the four was the largest, for a later backward."""
    height, width = (side // 2 * 2 for side in x.shape[2:])
    pairs = torch.maximum(x[..., 0:width:2], x[..., 1:width:2])
    return torch.maximum(pairs[:, :, 0:height:2], pairs[:, :, 1:height:2])
