"""A model's layers as a GPU does best with them, when it trains alone and when `vmap` maps it."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from fedcohort.training.accelerators.cuda_graphs.convolution import convolve


def on_its_own(model: nn.Module) -> nn.Module:
    """Return a copy of a model that computes the same, for one client's program."""
    own = copy.deepcopy(model)
    for part in own.modules():
        if type(part) is nn.GroupNorm and part.affine:
            part.__class__ = _PlainGroupNorm
    return own


def side_by_side(model: nn.Module) -> nn.Module:
    """Return a copy of a model that computes the same and is for use under `vmap` alone."""
    own = on_its_own(model)
    for part in own.modules():
        if type(part) is nn.Conv2d and _is_plain(part):
            part.__class__ = _MappedConvolution
    return own


def whole_names(model: nn.Module) -> set[str]:
    """Return the names of the parameters that such a copy takes as they are, in float32."""
    norms = [(n, part) for n, part in model.named_modules() if isinstance(part, _PlainGroupNorm)]
    return {own for name, part in norms for own, _ in part.named_parameters(prefix=name)}


def _is_plain(layer: nn.Conv2d) -> bool:
    """Tell whether `convolve` can do it."""
    square = layer.stride[0] == layer.stride[1] and len({*layer.padding}) == 1
    plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    return plain and square and not isinstance(layer.padding, str)


class _MappedConvolution(nn.Conv2d):
    """A convolution that is one launch for all models."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y: Tensor = _convolve_one(input, weight, self.stride[0], int(self.padding[0]))
        return y if bias is None else y + bias[:, None, None]


class _PlainGroupNorm(nn.GroupNorm):
    """Group normalisation written out, in as few passes over the images as can be.

    PyTorch's wants images channels-first, which convolutions turn back, and `vmap` does not take
    it over weights.
    """

    def forward(self, input: Tensor) -> Tensor:
        by_group = 1, self.num_groups, -1, 1
        pixels = input[0, 0].numel()
        x = input.float().reshape(len(input), self.num_groups, -1, pixels)
        # Mean and squares in one pass. Near a value of the group, their difference keeps its
        # digits; the gradient of `var_mean` would compute the mean once more.
        x = x - x[:, :, :1, :1].detach()
        # Channel by channel first: a pixel's channels stand side by side in memory.
        mean = (x.sum(3, keepdim=True) / pixels).mean(2, keepdim=True)
        squares = (x.square().sum(3, keepdim=True) / pixels).mean(2, keepdim=True)
        variance = (squares - mean.square()).clamp(min=0)
        factor = torch.rsqrt(variance + self.eps) * self.weight.float().view(by_group)
        term = self.bias.float().view(by_group) - mean * factor
        return (x * factor + term).to(input.dtype).reshape(input.shape)


@torch.library.custom_op("fedcohort::convolve_one", mutates_args=())
def _convolve_one(x: Tensor, w: Tensor, stride: int, padding: int) -> Tensor:
    """Convolve images [B, CI, H, W] of one model with its weights [CO, CI, KH, KW]."""
    return nn.functional.conv2d(x, w, stride=stride, padding=padding)


@_convolve_one.register_fake
def _outputs(x: Tensor, w: Tensor, stride: int, padding: int) -> Tensor:
    return nn.functional.conv2d(x, w, stride=stride, padding=padding)


@_convolve_one.register_vmap
def _convolve_all(
    info: Any, in_dims: tuple[int | None, ...], x: Tensor, w: Tensor, stride: int, padding: int
) -> tuple[Tensor, int]:
    """Convolve for all models at once."""
    both = zip((x, w), in_dims, strict=False)
    x, w = (v.expand(info.batch_size, *v.shape) if d is None else v.movedim(d, 0) for v, d in both)
    y = convolve(x.movedim(2, -1).contiguous(), w.movedim(2, -1), stride, padding)
    return y.movedim(-1, 2), 0
