"""Convolutions of many models at once, as matrix products.

Under `torch.func.vmap`, a convolution whose weights differ from model to model becomes a grouped
convolution, for which GPUs have slow kernels. `RowToeplitz` computes the plain ones (stride 1, no
padding, dilation or groups) as one batched matrix product instead: input rows are unfolded along
the height only, and the kernel is laid out as a block-Toeplitz matrix over the width. That moves
fewer bytes than unfolding both (im2col) and spends more arithmetic, of which tensor cores have
plenty.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


def batched_convolutions(device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which many models' convolutions are fastest on `device`."""
    return nullcontext() if device.type == "cpu" else RowToeplitz()


class RowToeplitz(TorchFunctionMode):
    """While active, plain 2-d convolutions run as matrix products; a model is used as it is."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Replace plain convolutions and let everything else through."""
        if func is torch.conv2d and not kwargs and _is_plain(args):
            return _convolve(args[0], args[1], args[2] if len(args) > 2 else None)
        return func(*args, **(kwargs or {}))


def _is_plain(args: tuple[Any, ...]) -> bool:
    defaults = ((1, 1), (0, 0), (1, 1), 1)
    given = (tuple(a) if isinstance(a, list | tuple) else a for a in args[3:])
    return all(a == b for a, b in zip(given, defaults, strict=False)) and args[0].dim() == 4


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve x [B, C, H, W] with weight [O, C, kh, kw] to [B, O, H', W']."""
    out_channels, channels, kh, kw = weight.shape
    samples, _, height, width = x.shape
    rows, columns = height - kh + 1, width - kw + 1
    # shift[k, w, q] is 1 where column w of the input meets column k of the kernel at output q.
    place = torch.arange(width, device=x.device)
    offset = place[:, None] - torch.arange(columns, device=x.device)
    shift = (offset == torch.arange(kw, device=x.device)[:, None, None]).to(weight.dtype)
    spread = weight.reshape(-1, kw) @ shift.reshape(kw, width * columns)
    toeplitz = (
        spread.reshape(out_channels, channels, kh, width, columns)
        .permute(2, 1, 3, 0, 4)
        .reshape(kh * channels * width, out_channels * columns)
    )
    by_row = x.permute(0, 2, 1, 3)
    unfolded = torch.stack([by_row[:, i : i + rows] for i in range(kh)], dim=2)
    result = unfolded.reshape(samples * rows, -1) @ toeplitz
    result = result.reshape(samples, rows, out_channels, columns).permute(0, 2, 1, 3)
    return result if bias is None else result + bias[:, None, None]
