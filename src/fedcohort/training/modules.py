"""What trainers must know of any `nn.Module`: its state, its outputs, and what it does besides."""

import copy
import dataclasses
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from fedcohort.errors import InvalidModelError
from fedcohort.training.keyed import draws_at_random


@dataclasses.dataclass(frozen=True)
class Traits:
    """What a model does besides mapping each sample to its outputs.

    Attributes
    ----------
    draws : bool
        Whether it draws at random in training (dropout).
    mixes : bool
        Whether it looks at a whole batch at once in training (BatchNorm).
    """

    draws: bool = False
    mixes: bool = False


def read_traits(model: nn.Module, example: Tensor) -> Traits:
    """Find out what a model does in training, with a few inputs [B, ...] of it."""
    own = copy.deepcopy(model).train()
    with torch.no_grad():
        draws = draws_at_random(lambda: own(example))
    normed = (part for part in own.modules() if isinstance(part, _NormBase))
    return Traits(draws, mixes=any(part.training for part in normed))


def named_state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all that makes two models of one architecture differ: parameters, float buffers."""
    kept = model.state_dict(keep_vars=True)
    yield from model.named_parameters()
    for name, buffer in model.named_buffers():
        if name in kept and buffer.is_floating_point():
            yield name, buffer


def trained_names(model: nn.Module) -> list[str]:
    """Return the names of the parameters that are trained: those that are not frozen."""
    return [name for name, p in model.named_parameters() if p.requires_grad]


def normalisation_names(model: nn.Module) -> list[str]:
    """Return the names of all parameters and float buffers of BatchNorm layers."""
    layers = [n for n, part in model.named_modules() if isinstance(part, _BatchNorm)]
    return [name for name, _ in named_state(model) if name.rpartition(".")[0] in layers]


def sent_values(model: nn.Module, kept: Collection[str] = ()) -> int:
    """Count the numbers that a client is sent and sends back.

    Frozen parameters are not, nor is what clients keep for themselves.
    """
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    unsent = frozen.union(kept)
    return sum(values.numel() for name, values in named_state(model) if name not in unsent)


@torch.no_grad()
def load_state(model: nn.Module, values: dict[str, Tensor]) -> None:
    """Copy one set of parameters and buffers into a module."""
    for name, own in named_state(model):
        own.copy_(values[name])


def output_of(result: Any) -> Tensor:
    """Return the outputs of a model from what its forward pass returned.

    A tensor is taken as it is; of a tuple or list the first element; of a mapping (or an object
    with that attribute) ``logits``, or its only tensor.
    """
    if isinstance(result, Tensor):
        return result
    if hasattr(result, "logits"):
        return output_of(result.logits)
    if isinstance(result, tuple | list) and result:
        return output_of(result[0])
    if isinstance(result, dict):
        tensors = [value for value in result.values() if isinstance(value, Tensor)]
        if "logits" in result or len(tensors) == 1:
            return output_of(result.get("logits", tensors[0]))
    raise InvalidModelError(
        f"it returns a {type(result).__name__} without a tensor that is plainly its output: return"
        " a tensor, a tuple that begins with it, or a dict with the key 'logits'"
    )
