"""The wrapped strategy's own memory, such as FedAdam's moments, as plain arrays and back."""

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

# Flower's strategies set this one again before every round.
_SET_EVERY_ROUND = "current_arrays"


def strategy_state(strategy: Strategy) -> Arrays:
    """Return the public arrays of a strategy, such as FedAdam's moments."""
    found: Arrays = {}
    for name, value in vars(strategy).items():
        if name.startswith("_") or name == _SET_EVERY_ROUND:
            continue
        if isinstance(value, dict) and all(isinstance(v, np.ndarray) for v in value.values()):
            found |= {f"{name}/dict/{key}": array for key, array in value.items()}
        elif isinstance(value, list) and all(isinstance(v, np.ndarray) for v in value):
            found |= {f"{name}/list/{i}": array for i, array in enumerate(value)}
        elif isinstance(value, Strategy):
            # One that is wrapped, as by Flower's differential privacy.
            found |= {f"{name}/in/{path}": array for path, array in strategy_state(value).items()}
    return found


def restore_strategy(strategy: Strategy, state: Arrays) -> None:
    """Give a strategy its public arrays back."""
    values: dict[str, Any] = {}
    wrapped: dict[str, Arrays] = {}
    for path, array in state.items():
        name, kind, key = path.split("/", 2)
        if kind == "in":
            wrapped.setdefault(name, {})[key] = array
        elif kind == "dict":
            values.setdefault(name, {})[key] = array
        else:
            values.setdefault(name, []).append(array)
    for name, value in values.items():
        setattr(strategy, name, value)
    for name, parts in wrapped.items():
        restore_strategy(getattr(strategy, name), parts)


def arrays_of(record: ArrayRecord) -> Arrays:
    """Return the arrays of a model."""
    return {name: array.numpy() for name, array in record.items()}


def record_of(arrays: Arrays) -> ArrayRecord:
    """Return a model as Flower sends it."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})
