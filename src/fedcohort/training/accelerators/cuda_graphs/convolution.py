"""Convolutions of several models at once, each with weights of its own.

cuDNN has kernels for one model's weights; of small models, a GPU takes longer to begin them than to
compute them. Here one launch convolves for all models.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from fedcohort.training.accelerators.cuda_graphs import kernels

# About how many pixels' products one program adds up for the gradient of the weights, and how many
# at a time.
_PIXELS, _PIXELS_AT_ONCE = 2048, 64


@torch.library.custom_op("fedcohort::convolve", mutates_args=())
def convolve(x: Tensor, w: Tensor, stride: int, padding: int) -> Tensor:
    """Return images [S, B, HO, WO, CO] of [S, B, H, W, CI] and weights [S, CO, KH, KW, CI]."""
    shape = _shape(x, w, stride, padding)
    y: Tensor = _outputs(x, w, stride, padding)
    pixels, columns = y[0, ..., 0].numel(), shape["CO"]
    tile = _tile(columns, shape["KW"] * shape["CI"])
    grid = (triton.cdiv(pixels, tile["BM"]), triton.cdiv(columns, tile["BN"]), len(x))
    kernels.convolve[grid](x.contiguous(), w, y, w.stride(0), **shape, **tile)
    return y


@torch.library.custom_op("fedcohort::convolved_to_inputs", mutates_args=())
def to_inputs(dy: Tensor, x: Tensor, w: Tensor, stride: int, padding: int) -> Tensor:
    """Return the gradient of the inputs from that of the outputs."""
    shape = _shape(x, w, stride, padding)
    dx = x.new_empty(x.shape)
    pixels, columns = dx[0, ..., 0].numel(), shape["CI"]
    tile = _tile(columns, shape["KW"] * shape["CO"])
    grid = (triton.cdiv(pixels, tile["BM"]), triton.cdiv(columns, tile["BN"]), len(x))
    kernels.to_inputs[grid](dy.contiguous(), w, dx, w.stride(0), **shape, **tile)
    return dx


@torch.library.custom_op("fedcohort::convolved_to_weights", mutates_args=())
def to_weights(dy: Tensor, x: Tensor, w: Tensor, stride: int, padding: int) -> Tensor:
    """Return parts of the gradient of the weights, float32 [S, parts, CO, KH, KW, CI]."""
    shape = _shape(x, w, stride, padding)
    parts = _parts(dy, w)
    share = triton.cdiv(shape["B"] * shape["HO"] * shape["WO"], parts.shape[1])
    rows, columns = _block(shape["CO"], 128), _block(shape["KW"] * shape["CI"], 128)
    grid = (
        shape["KH"] * triton.cdiv(shape["KW"] * shape["CI"], columns),
        triton.cdiv(shape["CO"], rows),
        len(x) * parts.shape[1],
    )
    kernels.to_weights[grid](
        x.contiguous(),
        dy.contiguous(),
        parts,
        **shape,
        PARTS=parts.shape[1],
        PIXELS=triton.cdiv(share, _PIXELS_AT_ONCE) * _PIXELS_AT_ONCE,
        BM=rows,
        BN=columns,
        BK=_PIXELS_AT_ONCE,
        num_warps=8 if rows * columns == 128 * 128 else 4,
        num_stages=3,
    )
    return parts


def _shape(x: Tensor, w: Tensor, stride: int, padding: int) -> dict[str, Any]:
    """Return what all kernels are told of a convolution."""
    _, batch, height, width, inputs = x.shape
    _, outputs, rows, columns, _ = w.shape
    return {
        "B": batch,
        "H": height,
        "W": width,
        "CI": inputs,
        "HO": (height + 2 * padding - rows) // stride + 1,
        "WO": (width + 2 * padding - columns) // stride + 1,
        "CO": outputs,
        "KH": rows,
        "KW": columns,
        "STRIDE": stride,
        "PAD": padding,
    }


def _tile(columns: int, terms: int) -> dict[str, int]:
    """Return how a product with so many columns, of so many terms a row of the kernel, is cut."""
    wide = _block(columns, 128)
    return {
        "BM": 128,
        "BN": wide,
        "BK": _block(terms, 64),
        "num_warps": 8 if wide == 128 else 4,
        "num_stages": 3,
    }


def _block(size: int, most: int) -> int:
    return max(16, min(most, 1 << (size - 1).bit_length()))


@convolve.register_fake
def _outputs(x: Tensor, w: Tensor, stride: int, padding: int) -> Tensor:
    shape = _shape(x, w, stride, padding)
    return x.new_empty(len(x), *(shape[name] for name in ("B", "HO", "WO", "CO")))


@to_inputs.register_fake
def _inputs_like(dy: Tensor, x: Tensor, w: Tensor, stride: int, padding: int) -> Tensor:  # noqa: ARG001
    return x.new_empty(x.shape)


@to_weights.register_fake
def _weights_like(dy: Tensor, x: Tensor, w: Tensor, stride: int, padding: int) -> Tensor:  # noqa: ARG001
    return _parts(dy, w)


def _parts(dy: Tensor, w: Tensor) -> Tensor:
    _, batch, height, width, _ = dy.shape
    parts = -(-batch * height * width // _PIXELS)
    return dy.new_empty(len(w), parts, *w.shape[1:], dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    x, w, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(x, w)


def _gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
    x, w = ctx.saved_tensors
    how = ctx.stride, ctx.padding
    dx = to_inputs(dy, x, w, *how) if ctx.needs_input_grad[0] else None
    return dx, to_weights(dy, x, w, *how).sum(1).to(w.dtype), None, None


convolve.register_autograd(_gradients, setup_context=_keep)
