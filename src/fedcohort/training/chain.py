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
            if layer.pool > 1:
                x = torch.max_pool2d(x, layer.pool)
        else:
            x = F.linear(x.flatten(1), parameters[layer.weight], bias)
        if layer.relu:
            x = torch.relu(x)
    return x
