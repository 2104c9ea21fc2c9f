"""Chance inside models and batches, from keys instead of PyTorch's global generator.

Every number is a hash of (key, place), which all devices compute alike, for one client or for many
at once: what a client draws does not depend on what is trained beside it.
"""

from collections.abc import Callable
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


_DROPOUTS: dict[Any, int] = {F.dropout: 0, F.dropout1d: 1, F.dropout2d: 1, F.dropout3d: 1}

_REFUSED: dict[Any, str] = {
    F.alpha_dropout: "alpha_dropout",
    F.feature_alpha_dropout: "feature_alpha_dropout",
    F.gumbel_softmax: "gumbel_softmax",
    F.rrelu: "rrelu",
    torch.bernoulli: "bernoulli",
    torch.multinomial: "multinomial",
    torch.normal: "normal",
    torch.rand: "rand",
    torch.rand_like: "rand_like",
    torch.randint: "randint",
    torch.randn: "randn",
    torch.randn_like: "randn_like",
    torch.randperm: "randperm",
    Tensor.bernoulli_: "bernoulli_",
    Tensor.normal_: "normal_",
    Tensor.uniform_: "uniform_",
}


class KeyedDropout(TorchFunctionMode):
    """While active, dropout draws from the key of a client and step; other chance is refused."""

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self._key, self.draws = key, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Replace dropout and let everything else through."""
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return self._dropout(_DROPOUTS[func], *args, **kwargs)
        if func in _REFUSED or (
            func is F.scaled_dot_product_attention and _attention_dropout(*args, **kwargs)
        ):
            name = _REFUSED.get(func, "attention with dropout")
            raise InvalidModelError(
                f"it draws random numbers by {name}, which cannot be repeated from a key: use"
                " nn.Dropout, or no chance at all"
            )
        return func(*args, **kwargs)

    def _dropout(
        self, features: int, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        del inplace
        if not training or p == 0.0:
            return x
        self.draws += 1
        # Whole channels at once, or every value by itself.
        shape = (*x.shape[:2], *[1] * (x.dim() - 2)) if features else tuple(x.shape)
        kept = uniform(self._key, self.draws, shape) >= p
        return x * kept / (1 - p) if p < 1 else x * 0.0


def _attention_dropout(*args: Any, **kwargs: Any) -> bool:
    return bool(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0))


def draws_at_random(forward: Callable[[], object]) -> bool:
    """Run a forward pass in training mode, and tell whether dropout was drawn in it."""
    mode = KeyedDropout(torch.zeros((), dtype=torch.int64))
    with mode:
        forward()
    return mode.draws > 0
