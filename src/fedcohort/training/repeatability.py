"""Whether a model does the same again, whoever runs it, and whatever it ran before.

A trainer loads a client's numbers into one of several copies of a model, which have run for other
clients and other seeds before. So outputs must be a function of these numbers, of the batch and of
a key: what a model keeps elsewhere, or draws elsewhere, would leak from one client to another.
"""

import copy
import dataclasses
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedcohort.errors import InvalidModelError
from fedcohort.training.keyed import KeyedDropout
from fedcohort.training.modules import load_state, named_state, output_of
from fedcohort.training.workers import one_thread_per_operation

# The states of the generators that anything may draw from.
_GENERATORS: dict[str, Callable[[], Any]] = {
    "PyTorch's global generator": lambda: torch.random.get_rng_state().numpy(),
    "NumPy's global generator": np.random.get_state,
    "Python's random": random.getstate,
}


@dataclasses.dataclass(frozen=True)
class _Run:
    """What a call gave, how many dropouts it drew from the key, and what else it drew from."""

    values: Tensor
    draws: int
    moved: frozenset[str]


def repeated(what: str, call: Callable[[], Tensor]) -> Tensor:
    """Return what a call gives, that must give the same twice under the same key.

    It may draw dropout from the key and nothing else; `what` begins the sentence of the refusal.
    """
    return _repeated(what, call).values


def repeated_without_chance(what: str, call: Callable[[], Tensor]) -> Tensor:
    """Return what a call gives, that must give the same twice and draw nothing at all.

    That is asked of evaluation: of models, and of losses, which do not know when they are trained.
    """
    run = _repeated(what, call)
    if run.draws:
        raise InvalidModelError(
            f"{what} draws dropout where models are evaluated, too: use nn.Dropout in the model, or"
            " functions with dropout (attention, say) only where self.training"
        )
    return run.values


@one_thread_per_operation()
def _repeated(what: str, call: Callable[[], Tensor]) -> _Run:
    first, second = _run(call), _run(call)
    # Another thread may move a generator once.
    for generator in sorted(first.moved & second.moved):
        raise InvalidModelError(
            f"{what} draws random numbers from {generator}, which cannot be repeated from a key:"
            " use nn.Dropout in the model, or no chance at all"
        )
    if not same_values(first.values, second.values):
        raise InvalidModelError(
            f"{what} gives something else when the same numbers come again: draw random numbers"
            " with nn.Dropout alone, and keep what changes in float buffers"
        )
    return first


def _run(call: Callable[[], Tensor]) -> _Run:
    mode = KeyedDropout(torch.zeros((), dtype=torch.int64))
    before = _generator_states()
    with mode:
        values = call()
    after = _generator_states()
    return _Run(values, mode.draws, frozenset(n for n in before if before[n] != after[n]))


def _generator_states() -> dict[str, bytes]:
    return {name: pickle.dumps(state()) for name, state in _GENERATORS.items()}


def same_values(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors are the same to the last bit; not a number equals itself."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())


def outputs_for(model: nn.Module, x: Tensor) -> Tensor:
    """Return a model's outputs for a copy of `x`, or raise what is wrong as `InvalidModelError`."""
    given = x.clone()
    try:
        outputs = output_of(model(given))
    except InvalidModelError:
        raise
    except Exception as error:
        raise InvalidModelError(
            f"its forward pass fails on inputs of shape {list(x.shape)} and type"
            f" {str(x.dtype).removeprefix('torch.')} ({in_words(error)})"
        ) from error
    if is_changed(given, x):
        raise InvalidModelError(
            "it changes its inputs in place, which are the data set's: write x = x / 2 for x /= 2,"
            " and use no inplace=True before its first layer"
        )
    return outputs


def is_changed(given: Tensor, first: Tensor) -> bool:
    """Tell whether a copy of a tensor was written to, by PyTorch or behind its back."""
    return given._version > 0 or not same_values(given, first)


def in_words(error: Exception) -> str:
    """Return an error as part of a sentence."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}".rstrip(" .:")


def checked_outputs(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a model's outputs for `x` as it is trained, and as it is evaluated.

    Raises `InvalidModelError` if they are no function of the model's state, the inputs and a key.
    """
    with torch.no_grad():
        trained, evaluated = (
            _checked_outputs(copy.deepcopy(model).train(mode), x) for mode in (True, False)
        )
    return trained, evaluated


def _checked_outputs(model: nn.Module, x: Tensor) -> Tensor:
    fresh = copy.deepcopy(model)
    state = {name: values.detach().clone() for name, values in named_state(model)}
    met: list[dict[str, Tensor]] = []

    def forward() -> Tensor:
        load_state(model, state)
        outputs = outputs_for(model, x)
        met.append({name: buffer.clone() for name, buffer in fixed_buffers(model)})
        # What is filled once, such as a table that is computed when it is needed, is nobody's.
        _check_unchanged(*met[-2:])
        return outputs

    check = repeated if model.training else repeated_without_chance
    outputs = check("its forward pass", forward)
    # Of other samples than those that it saw, or what it keeps of them would be the same.
    load_state(model, state)
    if not same_values(*(_keyed_outputs(one, x[:2]) for one in (fresh, model))):
        raise InvalidModelError(
            "its outputs depend on earlier batches by something that is neither a parameter nor a"
            " float buffer, and so is not sent: register it as a float buffer"
        )
    return outputs


def _check_unchanged(before: dict[str, Tensor], after: dict[str, Tensor] | None = None) -> None:
    for name, buffer in (after or {}).items():
        if name in before and not same_values(buffer, before[name]):
            raise InvalidModelError(
                f"its buffer {name!r} changes in the forward pass, and {_NOT_STACKED}: keep what"
                " changes in float32 buffers that are in its state_dict()"
            )


_NOT_STACKED = "clients and seeds have it in common"


def fixed_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers that are not a client's own: those that are not in `named_state`.

    The count of batches of a BatchNorm, which says nothing where there is a momentum, is none.
    """
    own = {name for name, _ in named_state(model)}
    normed = {name for name, part in model.named_modules() if isinstance(part, _NormBase)}
    for name, buffer in model.named_buffers():
        layer, _, last = name.rpartition(".")
        if name not in own and not (layer in normed and last == "num_batches_tracked"):
            yield name, buffer


def check_first_weights(one: nn.Module, again: nn.Module) -> None:
    """Refuse models that were built under the same seed, and differ."""
    _check_shapes(one, again, "it is built")
    others = dict(named_state(again))
    for name, values in named_state(one):
        if not same_values(values, others[name]):
            raise InvalidModelError(
                f"the first weights of {name!r} are others each time it is built under the same"
                " seed: draw them with PyTorch's functions, without a generator of your own"
            )


@torch.no_grad()
def check_seeds(one: nn.Module, other: nn.Module, x: Tensor) -> None:
    """Refuse models of two seeds that differ in more than runs of several seeds keep apart."""
    _check_shapes(one, other, "the seed changes")
    others = dict(fixed_buffers(other))
    for name, buffer in fixed_buffers(one):
        if name not in others or not same_values(buffer, others[name]):
            raise _depends_on_seed(f"its buffer {name!r}")
    pair = [copy.deepcopy(model) for model in (one, other)]
    load_state(pair[1], dict(named_state(pair[0])))
    for training in (True, False):
        if not same_values(*(_keyed_outputs(model.train(training), x) for model in pair)):
            raise _depends_on_seed(_what_differs(one, other))


def _check_shapes(one: nn.Module, other: nn.Module, when: str) -> None:
    shapes, others = ({n: list(v.shape) for n, v in named_state(m)} for m in (one, other))
    for name in shapes.keys() | others.keys():
        if shapes.get(name) != others.get(name):
            raise InvalidModelError(
                f"its {name!r} has another shape when {when} ({shapes.get(name, 'none')} and"
                f" {others.get(name, 'none')}): build the same layers each time"
            )


@one_thread_per_operation()
def _keyed_outputs(model: nn.Module, x: Tensor) -> Tensor:
    with KeyedDropout(torch.zeros((), dtype=torch.int64)):
        return outputs_for(model, x)


def _depends_on_seed(what: str) -> InvalidModelError:
    return InvalidModelError(
        f"{what} depends on the seed, and {_NOT_STACKED}: make it a parameter (frozen, if you like)"
        " or a float32 buffer in its state_dict(), or draw it from a seed of its own"
    )


def _what_differs(one: nn.Module, other: nn.Module) -> str:
    """Name the tensor that two models keep as an attribute, and that differs."""
    for (layer, part), (_, twin) in zip(one.named_modules(), other.named_modules(), strict=False):
        for name, value in vars(part).items():
            against = vars(twin).get(name)
            if (
                isinstance(value, Tensor)
                and isinstance(against, Tensor)
                and not same_values(value, against)
            ):
                return f"its attribute {f'{layer}.{name}'.lstrip('.')!r}"
    return "something that is neither a parameter nor a buffer of it"
