"""How the kernels' work is cut into tiles.

The sizes were chosen by measuring on an H200 (see `benchmarks/engine.py`); they change the speed
and nothing else.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from fedcohort.training.layers import Convolution


@dataclasses.dataclass(frozen=True)
class Tile:
    """A program's share of a product: m × n outputs (of which k terms are added at a time)."""

    m: int
    n: int
    k: int
    warps: int = 4
    stages: int = 2

    def options(self) -> dict[str, Any]:
        """Return what a launch is given."""
        return {
            "BM": self.m,
            "BN": self.n,
            "BK": self.k,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


@dataclasses.dataclass(frozen=True)
class ConvTiles:
    """A convolution's padded weight matrix, rows × columns, and its three kernels' tiles."""

    rows: int
    columns: int
    forward: Tile
    update: Tile
    backward: Tile


@dataclasses.dataclass(frozen=True)
class LinearTiles:
    """A fully connected layer's three kernels' tiles."""

    forward: Tile
    update: Tile
    backward: Tile


def conv_tiles(layer: Convolution) -> ConvTiles:
    """Return the tiles of a convolution."""
    terms = layer.kernel[0] * layer.kernel[1] * layer.channels
    step = 32 if terms < 32 else 64
    rows = -(-(terms + 1) // step) * step
    columns = _power_of_two(layer.filters, 16)
    n = min(columns, 64)
    return ConvTiles(
        rows,
        columns,
        forward=Tile(128, n, step, stages=3),
        update=Tile(64, n, 128 if rows % 128 == 0 else step, stages=3),
        backward=Tile(128, min(_power_of_two(layer.channels, 16), 64), n),
    )


def linear_tiles(outputs: int, inputs: int, batch: int) -> LinearTiles:
    """Return the tiles of a fully connected layer."""
    few, many = batch <= 16, batch > 64
    rows = 128 if many else 64
    return LinearTiles(
        forward=Tile(
            rows,
            min(_power_of_two(outputs, 16), 128 if few or many else 64),
            min(_power_of_two(inputs, 16), 64),
            stages=3,
        ),
        update=Tile(
            min(_power_of_two(batch, 16), 64),
            min(_power_of_two(outputs, 16), 64),
            min(_power_of_two(inputs, 16), 128),
        ),
        backward=Tile(
            64,
            min(_power_of_two(inputs, 16), 128),
            min(_power_of_two(outputs, 16), 32),
            stages=3,
        ),
    )


def batch_class(sizes: Tensor, batch_size: int | None) -> Tensor:
    """Return which tiles suit the batches of clients of some sizes: int64 [M].

    All sums over a batch of one class are added up in the same order, however far it is padded.
    """
    batches = sizes if batch_size is None else sizes.clamp(max=batch_size)
    return torch.bucketize(batches, torch.tensor([16, 32, 64]))


def _power_of_two(value: int, least: int) -> int:
    return max(least, 1 << (value - 1).bit_length())
