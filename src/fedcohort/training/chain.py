"""Models that are a plain chain of layers.

Knowing the layers allows what PyTorch's autograd cannot know on its own: a ReLU before a
max-pooling can be computed after it, on a quarter of the values, with the same outputs and the same
gradients; and many models' gradients can be written out as a few batched matrix products.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedcohort.training.compiled.compiler import is_readable
from fedcohort.training.compiled.first_layer import first_layer, is_compiled
from fedcohort.training.compiled.pooling import pool_and_rectify
from fedcohort.training.fused.layers import Convolution, Layer, UnsupportedModelError, recognise
from fedcohort.training.local import Parameters

# The first convolution has the largest outputs of a model. It is computed in pieces whose outputs,
# float32 values before the pool, stay in the cache until they are pooled, and on the way back.
_VALUES_AT_ONCE = 2**20


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


class _Until(nn.Module):
    """The first layers of a chain, as a module whose last part is a real fully connected layer."""

    def __init__(self, model: nn.Module, layers: Sequence[Layer], last: nn.Linear) -> None:
        super().__init__()
        self.last = last
        self._layers = layers
        used = {name for layer in layers for name in (layer.weight, layer.bias)}
        self._values = {name: p.detach() for name, p in model.named_parameters() if name in used}

    def forward(self, x: Tensor) -> Tensor:
        features = forward(self._layers, self._values, x)
        outputs: Tensor = self.last(features.flatten(1))
        return outputs


def until_first_linear(model: nn.Module, input_shape: Sequence[int]) -> nn.Module:
    """Return a module that computes the same as `model` up to its first fully connected layer.

    A chain is computed as `forward` does, which is faster; any other model is returned as it is.
    """
    layers = read_chain(model, input_shape) or ()
    modules = {f"{name}.weight": m for name, m in model.named_modules()}
    for place, layer in enumerate(layers):
        last = modules.get(layer.weight)
        if isinstance(last, nn.Linear):
            return _Until(model, layers[:place], last)
    return model


def forward(layers: Sequence[Layer], parameters: Parameters, x: Tensor) -> Tensor:
    """Return logits [B, classes] of inputs [B, ...]."""
    for place, layer in enumerate(layers):
        if isinstance(layer, Convolution):
            if place > 0:
                x = _convolve(layer, parameters, x)
            elif is_compiled(layer, x):
                x = first_layer(layer, parameters[layer.weight], _bias(layer, parameters), x)
            else:
                pieces = -(-len(x) * layer.outputs * layer.pool**2 // _VALUES_AT_ONCE)
                x = torch.cat([_convolve(layer, parameters, p) for p in x.tensor_split(pieces)])
        else:
            if x.dim() == 4 and x.requires_grad:
                # Its gradient comes back in another order, in which pools are five times slower.
                x.register_hook(_channels_last)  # type: ignore[no-untyped-call]
            x = F.linear(x.flatten(1), parameters[layer.weight], _bias(layer, parameters))
            x = torch.relu(x) if layer.relu else x
    return x


def _bias(layer: Layer, parameters: Parameters) -> Tensor | None:
    return None if layer.bias is None else parameters[layer.bias]


def _channels_last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


def _convolve(layer: Convolution, parameters: Parameters, x: Tensor) -> Tensor:
    bias = _bias(layer, parameters)
    x = torch.conv2d(x, parameters[layer.weight], bias, padding=layer.padding)
    if layer.pool > 1 and is_readable(x):
        return pool_and_rectify(x, relu=layer.relu)
    if layer.pool > 1:  # 2×2
        x = torch.max_pool2d(x, 2) if torch.is_grad_enabled() else _largest_of_four(x)
    return torch.relu(x) if layer.relu else x


def _largest_of_four(x: Tensor) -> Tensor:
    """Pool 2×2 windows without noting which of the four was the largest, for a later backward."""
    height, width = (side // 2 * 2 for side in x.shape[2:])
    pairs = torch.maximum(x[..., 0:width:2], x[..., 1:width:2])
    return torch.maximum(pairs[:, :, 0:height:2], pairs[:, :, 1:height:2])
