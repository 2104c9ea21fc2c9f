"""Chance inside models and batches, from keys instead of PyTorch's global generator.

Every number is a hash of (key, place), which all devices compute alike, for one client or for many
at once: what a client draws does not depend on what is trained beside it.
"""

import functools
import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedcohort.errors import InvalidModelError


def mix(z: Any) -> Any:
    """SplitMix64's finaliser on int64 (NumPy or PyTorch), whose products wrap as unsigned ones."""
    z = z + -7046029254386353131
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * -4658895280553007687
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * -7723592293110705685
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def uniform(key: Tensor, purpose: int, shape: tuple[int, ...]) -> Tensor:
    """Return numbers in [0, 1), float32 of `shape`, a function of key, purpose and place."""
    count = int(torch.Size(shape).numel())
    place = torch.arange(count, device=key.device).view(shape)
    # On the host, since a CUDA graph cannot wait for a number to come from there.
    aim = int(mix(np.array([purpose], np.int64))[0])
    bits: Tensor = mix(mix(key + aim) + mix(place))
    return ((bits >> 40) & ((1 << 24) - 1)).float() * 2.0**-24


# Values by themselves (0), or whole channels at once (1).
_DROPOUTS: dict[Any, int] = {
    F.dropout: 0,
    F.dropout1d: 1,
    F.dropout2d: 1,
    F.dropout3d: 1,
    torch.dropout: 0,
    torch.dropout_: 0,
    torch.feature_dropout: 1,
    torch.feature_dropout_: 1,
}

_IN_PLACE = (torch.dropout_, torch.feature_dropout_)

_REFUSED: dict[Any, str] = {
    F.alpha_dropout: "alpha_dropout",
    F.feature_alpha_dropout: "feature_alpha_dropout",
    F.gumbel_softmax: "gumbel_softmax",
    F.rrelu: "rrelu",
    torch.bernoulli: "bernoulli",
    torch.multinomial: "multinomial",
    torch.normal: "normal",
    torch.poisson: "poisson",
    torch.rand: "rand",
    torch.rand_like: "rand_like",
    torch.randint: "randint",
    torch.randn: "randn",
    torch.randn_like: "randn_like",
    torch.randperm: "randperm",
    Tensor.bernoulli: "bernoulli",
    Tensor.bernoulli_: "bernoulli_",
    Tensor.exponential_: "exponential_",
    Tensor.normal_: "normal_",
    Tensor.uniform_: "uniform_",
}


class KeyedDropout(TorchFunctionMode):
    """While active, dropout draws from the key of a client and step; other chance is refused.

    Without a key it draws from that of nobody, which is always the same.
    """

    def __init__(self, key: Tensor | None = None) -> None:
        super().__init__()
        self._key = torch.zeros((), dtype=torch.int64) if key is None else key
        self.draws = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Replace dropout and let everything else through."""
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            x, p, training, inplace = _dropout_of(*args, **kwargs)
            if not (training and p):
                return x
            dropped = self._dropout(_DROPOUTS[func], x, p)
            return x.copy_(dropped) if inplace or func in _IN_PLACE else dropped
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if func in _REFUSED:
            raise InvalidModelError(
                f"it draws random numbers by {_REFUSED[func]}, which cannot be repeated from a key:"
                " use nn.Dropout, or no chance at all"
            )
        if getattr(func, "__globals__", None) is vars(F):
            with self:
                return _body(func)(*args, **kwargs)
        return func(*args, **kwargs)

    def _dropout(self, features: int, x: Tensor, p: float) -> Tensor:
        self.draws += 1
        # Whole channels at once, or every value by itself.
        shape = (*x.shape[:2], *[1] * (x.dim() - 2)) if features else tuple(x.shape)
        kept = uniform(self._key, self.draws, shape) >= p
        return x * kept / (1 - p) if p < 1 else x * 0.0

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **more: Any,
    ) -> Tensor:
        """Attend with dropout as PyTorch's documentation writes it out; without, as PyTorch does.

        [..., L, E], [..., S, E] and [..., S, V] become [..., L, V].
        """
        if not dropout_p:
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, **more
            )
        if more.get("enable_gqa"):
            heads = query.shape[-3]
            key, value = (t.repeat_interleave(heads // t.shape[-3], -3) for t in (key, value))
        if is_causal:
            attn_mask = query.new_ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
        scale = more.get("scale")
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        scores = query @ key.transpose(-2, -1) * scale
        if attn_mask is None:
            weights = scores.softmax(-1)
        elif attn_mask.dtype == torch.bool:
            weights = _softmax_where(scores, attn_mask)
        else:
            weights = _softmax_where(scores + attn_mask, attn_mask > -math.inf)
        return self._dropout(0, weights, dropout_p) @ value


def _softmax_where(scores: Tensor, seen: Tensor) -> Tensor:
    """Return the softmax over what is seen; zeros where nothing is, as PyTorch has it."""
    blind = ~seen.any(-1, keepdim=True)
    masked = scores.masked_fill(~seen, -math.inf).masked_fill(blind, 0.0)
    return masked.softmax(-1).masked_fill(blind, 0.0)


def _dropout_of(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    train: bool = True,
) -> tuple[Tensor, float, bool, bool]:
    """Read the arguments of any of PyTorch's dropouts."""
    return input, p, training and train, inplace


@functools.cache
def _body(function: FunctionType) -> FunctionType:
    """Return a function of `torch.nn.functional` that does its work without asking a mode first.

    PyTorch hands a whole function to a mode and then works with the mode off, so that dropout
    inside of it (in attention, say) would not be seen.
    """
    unasked = dict.fromkeys(
        ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"),
        lambda *_: False,
    )
    body = FunctionType(
        function.__code__,
        vars(F) | unasked,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    body.__kwdefaults__ = function.__kwdefaults__
    return body


class WithoutDropout(KeyedDropout):
    """While active, dropout does nothing; other chance is refused."""

    def _dropout(self, features: int, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        del features, args, kwargs
        return x


def draws_at_random(forward: Callable[[], object]) -> bool:
    """Run a forward pass in training mode, and tell whether dropout was drawn in it."""
    mode = KeyedDropout()
    with mode:
        forward()
    return mode.draws > 0
