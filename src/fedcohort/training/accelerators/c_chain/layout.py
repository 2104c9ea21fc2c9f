"""A chain of layers as the compiled kernels see it: sizes, and places in memory."""

import contextlib
import ctypes
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedcohort.training.layers import Convolution, Layer, Linear

_LANES = 8
_LINE = 16  # float32 values of a line of the cache
# Samples are worked on so many at a time that what a piece touches, float32 values, stays in the
# cache of a core.
_VALUES_AT_ONCE = 2**17


class CLayer(ctypes.Structure):
    """`layer` in chain.c, which says what the fields are."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("is_linear", "has_bias", "pool", "relu", "inputs", "outputs"),
            *("channels", "height", "width", "padding", "kh", "kw", "filters", "rows", "columns"),
            *("border", "margin_rows", "margin_columns", "area", "weights", "bias"),
            *("input", "line", "winner", "slope"),
        )
    ]


class CTask(ctypes.Structure):
    """`task` in chain.c, which says what the fields are."""

    _fields_ = [
        ("chain", ctypes.c_void_p),
        *((n, ctypes.c_int64) for n in ("layers", "parameters", "samples_at_once", "classes")),
        *((n, ctypes.c_int64) for n in ("channels", "height", "width", "jobs", "steps", "batch")),
        *((n, ctypes.c_void_p) for n in ("weights", "biases", "local_weights", "local_biases")),
        *((n, ctypes.c_void_p) for n in ("model", "order", "data", "labels", "samples", "counts")),
        *(("losses", ctypes.c_void_p), ("right", ctypes.c_void_p), ("next", ctypes.c_int64)),
        *((n, ctypes.c_float) for n in ("lr", "momentum", "proximal")),
    ]


class MemoryLayout:
    """The layout of one architecture, a chain of `layers`, and memory to train it in."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        _, values, _ = _lay_out(layers, samples=1)
        self.samples_at_once = max(1, _VALUES_AT_ONCE // values)
        chain, self._scratch, self._widest = _lay_out(layers, self.samples_at_once)
        self.chain = (CLayer * len(chain))(*chain)
        self.parameters = int(chain[-1].bias + chain[-1].filters)
        self._free: list[tuple[Any, NDArray[np.float32]]] = []

    @contextlib.contextmanager
    def spaces(self, workers: int) -> Iterator[Any]:
        """Lend memory for so many workers: an array of `space` in chain.c."""
        lent = self._free.pop() if self._free else self._allocate(workers)
        if len(lent[0]) < workers:
            lent = self._allocate(workers)
        try:
            yield lent[0]
        finally:
            self._free.append(lent)

    def _allocate(self, workers: int) -> tuple[Any, NDArray[np.float32]]:
        sizes = [self.parameters] * 5 + [self._scratch] + [self._widest] * 2
        places = np.cumsum([0, *(_whole_lines(size) for size in sizes)])
        memory = np.zeros(workers * int(places[-1]) + _LINE, np.float32)
        start = -(-memory.ctypes.data // (4 * _LINE)) * 4 * _LINE
        own = [[start + 4 * int(w * places[-1] + p) for p in places[:-1]] for w in range(workers)]
        buffers = ctypes.c_void_p * len(sizes)
        return (buffers * workers)(*(buffers(*pointers) for pointers in own)), memory


def pointers_to(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    """Return pointers to tensors' values, which must lie one after the other."""
    pointers = (ctypes.c_void_p * len(tensors))()
    pointers[:] = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    return pointers


def _lay_out(layers: Sequence[Layer], samples: int) -> tuple[list[CLayer], int, int]:
    """Return the layers, and the values of scratch space and of the widest gradient.

    Both are for pieces of so many samples.
    """
    chain: list[CLayer] = []
    parameters = scratch = widest = 0

    def take(values: int) -> int:
        nonlocal scratch
        place = scratch
        scratch += _whole_lines(values)
        return place

    for layer, following in itertools.zip_longest(layers, layers[1:]):
        before = chain[-1].filters if chain else None
        if isinstance(layer, Convolution):
            padding = following.padding if isinstance(following, Convolution) else 0
            made = _convolution(layer, before, border=padding, inner=bool(chain))
            pixels = layer.image[0] * layer.image[1]
            made.winner = take(samples * -(-pixels * made.filters // 4))
            made.line = take(made.pool * made.columns * made.filters)
            height, width = made.rows + 2 * made.margin_rows, made.columns + 2 * made.margin_columns
            made.slope = take(samples * height * width * made.filters)
        else:
            made = _linear(layer, before)
            pixels = 1
        image = made.height * made.width * made.channels
        made.input = take(samples * image)
        made.weights = parameters
        made.bias = parameters + _weights_in(made)
        parameters = made.bias + made.filters
        widest = max(widest, image, pixels * made.filters)
        chain.append(made)
    return chain, scratch, samples * widest


def _convolution(layer: Convolution, channels: int | None, *, border: int, inner: bool) -> CLayer:
    """Describe a convolution.

    `channels` are those that the input is given with, if they are filled up; `border` the zeros
    that the next layer wants around its input; `inner` whether the gradient of the input is asked
    for.
    """
    kh, kw = layer.kernel
    height, width = layer.height + 2 * layer.padding, layer.width + 2 * layer.padding
    filters = _whole_vectors(layer.filters)
    return CLayer(
        has_bias=layer.bias is not None,
        pool=layer.pool,
        relu=layer.relu,
        inputs=layer.channels,
        outputs=layer.filters,
        channels=channels or layer.channels,
        height=height,
        width=width,
        padding=layer.padding,
        kh=kh,
        kw=kw,
        filters=filters,
        rows=height - kh + 1,
        columns=width - kw + 1,
        border=border,
        margin_rows=kh - 1 if inner else 0,
        margin_columns=kw - 1 if inner else 0,
    )


def _weights_in(layer: CLayer) -> int:
    """Count a layer's weights, with what fills up its channels."""
    return int(layer.kh * layer.kw * layer.channels * layer.filters)


def _linear(layer: Linear, before: int | None) -> CLayer:
    """Describe a fully connected layer; `before` are the channels that the input is given with."""
    area = layer.image[1] * layer.image[2] if layer.image and before else 1
    filters = _whole_vectors(layer.outputs)
    return CLayer(
        is_linear=True,
        has_bias=layer.bias is not None,
        pool=1,
        relu=layer.relu,
        inputs=layer.inputs // area,
        outputs=layer.outputs,
        channels=area * before if before else layer.inputs,
        height=1,
        width=1,
        kh=1,
        kw=1,
        filters=filters,
        rows=1,
        columns=1,
        area=area,
    )


def _whole_vectors(values: int) -> int:
    return -(-values // _LANES) * _LANES


def _whole_lines(values: int) -> int:
    return -(-values // _LINE) * _LINE
