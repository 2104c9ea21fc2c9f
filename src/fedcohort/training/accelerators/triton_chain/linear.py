"""A fully connected layer of many models."""

from typing import Any

import torch
import triton
from torch import Tensor

from fedcohort.training.accelerators.triton_chain import kernels
from fedcohort.training.accelerators.triton_chain.space import Batches, Space, Weights
from fedcohort.training.accelerators.triton_chain.tiles import Tile, linear_tiles
from fedcohort.training.layers import Linear
from fedcohort.training.problem import LocalWork, Parameters


class ManyLinears:
    """One fully connected layer and its ReLU, in M models; see `kernels.linear`.

    `masked` says that the layer's input passed a ReLU which the gradient has yet to pass.
    """

    def __init__(self, layer: Linear, space: Space, *, first: bool, masked: bool) -> None:
        self._layer, self._space = layer, space
        self._first, self._masked = first, masked
        self._tiles = linear_tiles(layer.outputs, layer.inputs, space.batch)
        self._weights = Weights.zeros(space, layer.outputs, layer.inputs)
        self._bias = None if layer.bias is None else Weights.zeros(space, layer.outputs)

    def load(self, stacked: Parameters, model: Tensor) -> None:
        """Copy parameters in."""
        layer = self._layer
        value = stacked[layer.weight]
        if layer.image is not None:
            # Before they are handed out: there are fewer global models than local ones.
            value = value.reshape(*value.shape[:2], *layer.image).permute(0, 1, 3, 4, 2).flatten(2)
        torch.index_select(value, 0, model, out=self._weights.master[: len(model)])
        self._weights.refresh()
        if layer.bias is not None and self._bias is not None:
            self._bias.master[: len(model)] = stacked[layer.bias][model]
            self._bias.refresh()

    def parameters(self, count: int) -> Parameters:
        """Return the first `count` models' parameters."""
        layer = self._layer
        value = self._weights.master[:count]
        if layer.image is not None:
            channels, height, width = layer.image
            shape = (*value.shape[:2], height, width, channels)
            value = value.view(shape).permute(0, 1, 4, 2, 3).flatten(2)
        else:
            value = value.clone()
        found = {layer.weight: value}
        if layer.bias is not None and self._bias is not None:
            found[layer.bias] = self._bias.master[:count].clone()
        return found

    def forward(self, batches: Batches, source: Tensor, target: Tensor) -> None:
        """Compute `target` [M, B, outputs] from `source`."""
        layer = self._layer
        self._multiply(
            self._tiles.forward,
            batches,
            source,
            None if self._bias is None else self._bias.work,
            None,
            target,
            K=layer.inputs,
            N=layer.outputs,
            ROW=1,
            COLUMN=layer.inputs,
            FIRST=self._first,
            RELU=layer.relu,
        )

    def backward(
        self,
        batches: Batches,
        work: LocalWork,
        source: Tensor,
        gradient: Tensor,
        source_gradient: Tensor | None,
    ) -> None:
        """Compute the gradient of `source` from that of the output, and update the weights."""
        space, layer, weights, bias = self._space, self._layer, self._weights, self._bias
        if source_gradient is not None:
            self._multiply(
                self._tiles.backward,
                batches,
                gradient,
                None,
                source if self._masked else None,
                source_gradient,
                K=layer.outputs,
                N=layer.inputs,
                ROW=layer.inputs,
                COLUMN=1,
                FIRST=False,
                RELU=False,
            )
        tile = self._tiles.update
        tiles = triton.cdiv(layer.outputs, tile.n) * triton.cdiv(layer.inputs, tile.k)
        kernels.linear_update[(tiles, space.models)](
            source,
            *batches.turn,
            gradient,
            *weights.buffers,
            *((None,) * 4 if bias is None else bias.buffers),
            batches.lr,
            work.momentum,
            work.proximal,
            space.models,
            space.batch,
            K=layer.inputs,
            N=layer.outputs,
            FIRST=self._first,
            BIAS=bias is not None,
            MOMENTUM=space.momentum,
            PROXIMAL=space.proximal,
            COPY=weights.copied,
            **tile.options(),
        )

    def _multiply(
        self,
        tile: Tile,
        batches: Batches,
        source: Tensor,
        bias: Tensor | None,
        mask: Tensor | None,
        target: Tensor,
        **shape: Any,
    ) -> None:
        space = self._space
        tiles = triton.cdiv(space.batch, tile.m) * triton.cdiv(shape["N"], tile.n)
        kernels.linear[(tiles, space.models)](
            source,
            *batches.turn,
            self._weights.work,
            bias,
            mask,
            target,
            space.models,
            space.batch,
            **shape,
            SHARED=batches.shared,
            BIAS=bias is not None,
            MASK=mask is not None,
            **tile.options(),
        )
