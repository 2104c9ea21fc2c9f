"""Where a server stands after a round, in one ``.npz`` file that is never half-written."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedcohort.errors import InvalidInputError, StoreError
from fedcohort.files import replace_file

Arrays = dict[str, NDArray[Any]]

# Flower's strategies set this one again before every round.
_SET_EVERY_ROUND = "current_arrays"


@dataclasses.dataclass(frozen=True, eq=False)
class Checkpoint:
    """Everything that the next server needs to resume.

    Attributes
    ----------
    round : int
        The last round that is done.
    selector : str
        The selector's name.
    model, first_model : ArrayRecord
        The global model, and the one that profiles are measured with.
    parts : dict of dict of arrays
        The state of the selector, of the members and of the wrapped strategy.
    """

    round: int
    selector: str
    model: ArrayRecord
    first_model: ArrayRecord
    parts: Mapping[str, Arrays]

    def save(self, path: Path) -> None:
        """Write the file; whoever reads it sees the old one or the new one, never a part."""
        flat: Arrays = {
            "round": np.array(self.round),
            "selector": np.array(self.selector),
            **_named("model", {name: array.numpy() for name, array in self.model.items()}),
            **_named("first", {name: array.numpy() for name, array in self.first_model.items()}),
        }
        for part, arrays in self.parts.items():
            flat |= _named(f"part:{part}", arrays)
        with replace_file(path, "give checkpoint a file that can be written.") as file:
            np.savez(file, allow_pickle=False, **flat)

    @classmethod
    def load(cls, path: Path) -> "Checkpoint | None":
        """Return what was saved, or None if there is no such file."""
        if not path.exists():
            return None
        try:
            with np.load(path, allow_pickle=False) as file:
                flat = {name: file[name] for name in file.files}
            parts = [name[5:-6] for name in flat if name[:5] == "part:" and name[-6:] == ".names"]
            return cls(
                round=int(flat["round"]),
                selector=str(flat["selector"]),
                model=_record(_unnamed("model", flat)),
                first_model=_record(_unnamed("first", flat)),
                parts={part: _unnamed(f"part:{part}", flat) for part in parts},
            )
        except Exception as error:
            # A damaged file shows in as many ways as there are bytes in it.
            raise StoreError(
                f"{path} is not a state that fedcohort saved, or it is damaged ({error}): remove"
                " it to start afresh."
            ) from error

    def check(self, selector: str, initial: ArrayRecord, path: Path) -> None:
        """Raise `InvalidInputError` if this belongs to another selector or another model."""
        if self.selector != selector:
            raise InvalidInputError(
                f"{path} was saved with selector {self.selector!r}, not {selector!r}: give"
                " checkpoint another file."
            )
        saved = {name: tuple(array.shape) for name, array in self.model.items()}
        if saved != {name: tuple(array.shape) for name, array in initial.items()}:
            raise InvalidInputError(
                f"{path} was saved with another model: give checkpoint another file."
            )


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
    return found


def restore_strategy(strategy: Strategy, state: Arrays) -> None:
    """Give a strategy its public arrays back."""
    values: dict[str, Any] = {}
    for path, array in state.items():
        name, kind, key = path.split("/", 2)
        if kind == "dict":
            values.setdefault(name, {})[key] = array
        else:
            values.setdefault(name, []).append(array)
    for name, value in values.items():
        setattr(strategy, name, value)


def _named(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    # The names stand in an array of their own: a zip archive would not take every name.
    values = {f"{prefix}.{i}": array for i, array in enumerate(arrays.values())}
    return {f"{prefix}.names": np.array(list(arrays), np.str_), **values}


def _unnamed(prefix: str, flat: Arrays) -> Arrays:
    return {name: flat[f"{prefix}.{i}"] for i, name in enumerate(flat[f"{prefix}.names"].tolist())}


def _record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})
