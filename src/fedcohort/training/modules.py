"""What trainers must know of any `nn.Module`: its state, its outputs, and what it does besides."""

import copy
import dataclasses
import math
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from fedcohort.errors import InvalidModelError
from fedcohort.training.inputs import a_few
from fedcohort.training.keyed import WithoutDropout, draws_at_random


@dataclasses.dataclass(frozen=True)
class Traits:
    """What a model does besides mapping each sample to its outputs.

    Attributes
    ----------
    draws : bool
        Whether it draws at random in training (dropout).
    mixes : bool
        Whether it is to be given whole batches of one client in training: it looks at all samples
        at once (BatchNorm, or code of its own), keeps something of them in a buffer, or has a
        sparse buffer.
    channels_last : bool
        Whether it takes images and weights that are channels-last.
    """

    draws: bool = False
    mixes: bool = False
    channels_last: bool = True


def read_traits(model: nn.Module, example: Tensor) -> Traits:
    """Find out what a model does in training, with a few inputs [B, ...] of it."""
    own, x = copy.deepcopy(model).train(), a_few(example)
    # With gradients, since there are models that tell training from evaluation by them.
    with torch.enable_grad():
        draws = draws_at_random(lambda: own(x.clone()))
        normed = any(part.training for part in own.modules() if isinstance(part, _NormBase))
        # Which no product of many clients at once takes.
        sparse = any(buffer.layout != torch.strided for buffer in own.buffers())
        mixes = normed or sparse or _depends_on_others(own, x)
    x = x.to(memory_format=torch.channels_last) if x.dim() == 4 else x
    return Traits(draws, mixes, takes_channels_last(model, x))


def _depends_on_others(model: nn.Module, x: Tensor) -> bool:
    """Tell whether a sample's outputs depend on what else is in its batch, or was before it.

    The model has run before, so that what is filled once is full; its weights become others.
    """
    _disturb(model)
    before = [(buffer, buffer._version) for buffer in model.buffers()]
    try:
        with WithoutDropout():
            whole, half = (output_of(model(part.clone())) for part in (x, x[:2]))
    # Its own code may fail in any way on half a batch, which then is not to be cut.
    except Exception:
        return True
    # A buffer that follows the batches, and be it their count, takes each of them whole, in turn.
    followed = any(
        now is not buffer or now._version != version
        for now, (buffer, version) in zip(model.buffers(), before, strict=False)
    )
    return followed or not alike(half, whole[:2])


@torch.no_grad()
def _disturb(model: nn.Module) -> None:
    """Change all weights, since first weights of 0 would hide what a model does.

    Signs stay, since some numbers must be positive; what goes in neither grows nor fades with the
    depth.
    """
    generator = torch.Generator().manual_seed(0)
    for p in model.parameters():
        scale = math.sqrt(len(p) / max(p.numel(), 1)) if p.dim() > 1 else 0.1
        noise = torch.empty_like(p).normal_(0, scale, generator=generator)
        larger = torch.maximum(p.abs(), noise.abs()).copysign(p)
        p.copy_(torch.where(p == 0, noise, larger))


def takes_channels_last(model: nn.Module, x: Tensor) -> bool:
    """Tell whether a model with channels-last weights takes inputs `x` [n, ...] as they lie.

    A `view` after a convolution, for example, does not.
    """
    own = _channels_last(model)
    try:
        for training in (True, False):
            with torch.set_grad_enabled(training), WithoutDropout():
                own.train(training)(x.clone())
    # A model's own code may fail in any way; what else is wrong shows in the usual layout.
    except Exception:
        return False
    return True


def in_fast_layout(model: nn.Module, x: Tensor) -> nn.Module:
    """Return a copy for inputs such as `x` [n, ...] whose convolutions are fastest on a CPU."""
    return _channels_last(model) if takes_channels_last(model, a_few(x)) else copy.deepcopy(model)


def _channels_last(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def alike(found: Tensor, expected: Tensor) -> bool:
    """Tell whether numbers differ by no more than the order in which they were added up."""
    difference = (found - expected).abs().max()
    return bool(difference <= 1e-4 * expected.abs().max())


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
