"""Whether a call gives the same again under the same key, and draws from nothing else."""

import dataclasses
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedcohort.errors import InvalidModelError
from fedcohort.training.keyed import KeyedDropout
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
    # Another key than nobody's, by which what was kept of a first draw is seen later.
    mode = KeyedDropout(torch.ones((), dtype=torch.int64))
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
    one, other = one.to_dense(), other.to_dense()
    return bool(((one == other) | ((one != one) & (other != other))).all())
