"""A convolution of many models."""

import torch
import triton
from torch import Tensor

from fedcohort.training.accelerators.triton_chain import kernels
from fedcohort.training.accelerators.triton_chain.space import Batches, Space, Weights
from fedcohort.training.accelerators.triton_chain.tiles import conv_tiles
from fedcohort.training.layers import Convolution
from fedcohort.training.problem import LocalWork, Parameters


class ManyConvolutions:
    """One convolution, its ReLU and its pool, in M models; see `kernels.conv_forward`."""

    def __init__(self, layer: Convolution, space: Space, *, first: bool) -> None:
        self._layer, self._space, self._first = layer, space, first
        self._tiles = conv_tiles(layer)
        self._weights = Weights.zeros(space, self._tiles.rows, self._tiles.columns)
        rows, columns = layer.image
        self._shape = {
            "H": layer.height,
            "W": layer.width,
            "C": layer.channels,
            "KH": layer.kernel[0],
            "KW": layer.kernel[1],
            "PAD": layer.padding,
            "PH": rows,
            "PW": columns,
            "POOL": layer.pool,
            "N": layer.filters,
            "NP": self._tiles.columns,
            "KP": self._tiles.rows,
        }
        if space.training:
            pixels = rows * columns * layer.pool**2
            self._winner = space.empty(space.batch, layer.outputs, dtype=torch.int8)
            self._dense = space.empty(space.batch, pixels, self._tiles.columns)

    def load(self, stacked: Parameters, model: Tensor) -> None:
        """Copy parameters in: rows (row, column, channel) of the matrix, then the bias."""
        layer, master = self._layer, self._weights.master
        value = stacked[layer.weight][model]
        rows = layer.kernel[0] * layer.kernel[1] * layer.channels
        ordered = value.permute(0, 3, 4, 2, 1).reshape(len(value), rows, layer.filters)
        master[: len(value), :rows, : layer.filters] = ordered
        if layer.bias is not None:
            master[: len(value), rows, : layer.filters] = stacked[layer.bias][model]
        self._weights.refresh()

    def parameters(self, count: int) -> Parameters:
        """Return the first `count` models' parameters."""
        layer = self._layer
        rows = layer.kernel[0] * layer.kernel[1] * layer.channels
        matrix = self._weights.master[:count, :, : layer.filters]
        shape = (count, *layer.kernel, layer.channels, layer.filters)
        kernel = matrix[:, :rows].reshape(shape).permute(0, 4, 3, 1, 2)
        found = {layer.weight: kernel.contiguous()}
        if layer.bias is not None:
            found[layer.bias] = matrix[:, rows].clone()
        return found

    def forward(self, batches: Batches, source: Tensor, target: Tensor) -> None:
        """Compute `target` [M, B, outputs] from `source`."""
        space, tile = self._space, self._tiles.forward
        rows, columns = self._layer.image
        pixels = space.batch * rows * columns * self._layer.pool**2
        grid = (triton.cdiv(pixels, tile.m), space.models, self._tiles.columns // tile.n)
        kernels.conv_forward[grid](
            source,
            *batches.turn,
            self._weights.work,
            target,
            self._winner if space.training else target,
            space.models,
            space.batch,
            **self._shape,
            RELU=self._layer.relu,
            FIRST=self._first,
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
        source_gradient: Tensor | None,
    ) -> None:
        """Compute the gradient of `source` from that of the output, and update the weights."""
        space, tiles, layer, weights = self._space, self._tiles, self._layer, self._weights
        rows, columns = layer.image
        pixels = space.batch * rows * columns
        kernels.unpool[(triton.cdiv(pixels, 32), space.models)](
            gradient,
            self._winner,
            batches.step,
            batches.count,
            self._dense,
            space.models,
            space.batch,
            PH=rows,
            PW=columns,
            POOL=layer.pool,
            N=layer.filters,
            NP=tiles.columns,
            BM=32,
        )
        if source_gradient is not None:
            tile = tiles.backward
            blocks = triton.cdiv(layer.channels, tile.n)
            lines = triton.cdiv(space.batch * layer.width, tile.m)
            kernels.conv_backward[(lines, space.models, layer.height * blocks)](
                self._dense,
                batches.step,
                batches.count,
                weights.work,
                source_gradient,
                space.models,
                space.batch,
                **self._shape,
                BM=tile.m,
                BC=tile.n,
                BN=tile.k,
                num_warps=tile.warps,
                num_stages=tile.stages,
            )
        grid = (tiles.rows // tiles.update.k, space.models, tiles.columns // tiles.update.n)
        kernels.conv_update[grid](
            source,
            *batches.turn,
            self._dense,
            *weights.buffers,
            batches.lr,
            work.momentum,
            work.proximal,
            space.models,
            space.batch,
            **self._shape,
            BIAS=layer.bias is not None,
            FIRST=self._first,
            MOMENTUM=space.momentum,
            PROXIMAL=space.proximal,
            COPY=weights.copied,
            **tiles.update.options(),
        )
