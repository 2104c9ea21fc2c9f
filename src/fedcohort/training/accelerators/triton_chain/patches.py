"""A first convolution with a 2×2 pool, of many models, computed from the patches of the images."""

from typing import Any

import torch
import triton
from torch import Tensor

from fedcohort.training.accelerators.triton_chain import kernels
from fedcohort.training.accelerators.triton_chain.convolution import (
    conv_shape,
    load_kernel,
    read_kernel,
)
from fedcohort.training.accelerators.triton_chain.space import Batches, Space, Weights
from fedcohort.training.accelerators.triton_chain.tiles import conv_tiles, patch_tiles
from fedcohort.training.layers import Convolution
from fedcohort.training.problem import LocalWork, Parameters


class ManyPatches:
    """One convolution on the data set's images, in M models; see `kernels.patch_forward`."""

    def __init__(self, layer: Convolution, space: Space) -> None:
        self._layer, self._space = layer, space
        self._matrix, self._tiles = conv_tiles(layer), patch_tiles(layer)
        tiles, shape = self._tiles, (self._matrix.rows, self._matrix.columns)
        master = space.zeros(*shape, dtype=torch.float32)
        # The kernel in its four places, by (line, number in the line), filter, place.
        self._weights = Weights(
            master,
            space.zeros(tiles.rows, shape[1], 4),
            torch.zeros_like(master) if space.momentum else None,
            torch.zeros_like(master) if space.proximal else None,
        )
        self._shape: dict[str, Any] = conv_shape(layer, self._matrix) | {
            "LINE": tiles.line,
            "PP": tiles.rows,
        }
        if space.training:
            self._winner = space.empty(space.batch, layer.outputs, dtype=torch.int8)
            self._gradient = torch.empty(
                tiles.splits, *self._weights.work.shape, dtype=torch.float32, device=space.device
            )

    def load(self, stacked: Parameters, model: Tensor | None) -> None:
        """Copy parameters in."""
        master, work = self._weights.master, self._weights.work
        load_kernel(self._layer, master, stacked, model)
        (high, wide), channels = self._layer.kernel, self._layer.channels
        terms, line, filters = high * wide * channels, self._tiles.line, self._matrix.columns
        kernel = master[:, :terms].reshape(-1, high, wide * channels, filters)
        lines = work.as_strided(
            (self._space.models, high + 1, line, filters, 4),
            (work.stride(0), line * filters * 4, filters * 4, 4, 1),
        )
        for place in range(4):
            down, along = place // 2, place % 2 * channels
            lines[:, down : down + high, along : along + wide * channels, :, place] = kernel
        work[:, (high + 1) * line] = master[:, terms, :, None]
        self._weights.rest()

    def parameters(self, count: int) -> Parameters:
        """Return the first `count` models' parameters."""
        return read_kernel(self._layer, self._weights.master, count)

    def forward(self, batches: Batches, source: Tensor, target: Tensor) -> None:
        """Compute `target` [M, B, outputs] from the data set."""
        space, tile = self._space, self._tiles.forward
        rows, columns = self._layer.image
        places = triton.cdiv(space.batch * rows * columns, tile.m)
        kernels.patch_forward[(places, space.models, self._matrix.columns // tile.n)](
            source,
            batches.sample,
            batches.step,
            batches.count,
            self._weights.work,
            target,
            self._winner if space.training else target,
            space.models,
            space.batch,
            **self._shape,
            RELU=self._layer.relu,
            SHARED=batches.shared,
            TRAIN=space.training,
            **tile.options(),
        )

    def backward(
        self,
        batches: Batches,
        work: LocalWork,
        source: Tensor,
        gradient: Tensor,
        source_gradient: Tensor | None,  # noqa: ARG002
    ) -> None:
        """Update the weights; the data set needs no gradient."""
        space, layer, tiles, tile = self._space, self._layer, self._tiles, self._tiles.update
        blocks = self._tiles.rows // tile.k * (self._matrix.columns // tile.n)
        kernels.patch_gradient[(tiles.splits, space.models, blocks)](
            source,
            batches.sample,
            batches.step,
            batches.count,
            gradient,
            self._winner,
            self._gradient,
            space.models,
            space.batch,
            **self._shape,
            SPLITS=tiles.splits,
            **tile.options(),
        )
        kernels.patch_update[(self._matrix.rows // 32, space.models)](
            batches.step,
            batches.count,
            self._gradient,
            self._weights.master,
            self._weights.work,
            self._weights.velocity,
            self._weights.anchor,
            batches.lr,
            work.momentum,
            work.proximal,
            space.models,
            C=layer.channels,
            KH=layer.kernel[0],
            KW=layer.kernel[1],
            N=layer.filters,
            NP=self._matrix.columns,
            KP=self._matrix.rows,
            LINE=self._tiles.line,
            PP=self._tiles.rows,
            BIAS=layer.bias is not None,
            SPLITS=tiles.splits,
            MOMENTUM=space.momentum,
            PROXIMAL=space.proximal,
            BK=32,
        )
