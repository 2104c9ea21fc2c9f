"""Where a server stands after a round, in one ``.npz`` file that is never half-written."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import InvalidInputError, StoreError
from fedcohort.files import replace_file

Arrays = dict[str, NDArray[Any]]

# A file of another form is refused instead of being misread.
_FORMAT = 2


@dataclasses.dataclass(frozen=True, eq=False)
class Checkpoint:
    """Everything that the next server needs to resume.

    Attributes
    ----------
    round : int
        The last round that is done.
    selector : str
        The selector's name.
    model, first_model : dict of arrays
        The global model, and the one that profiles are measured with.
    parts : dict of dict of arrays
        The state of the selector, of the members and of the engine.
    """

    round: int
    selector: str
    model: Arrays
    first_model: Arrays
    parts: Mapping[str, Arrays]

    def save(self, path: Path) -> None:
        """Write the file; whoever reads it sees the old one or the new one, never a part."""
        flat: Arrays = {
            "format": np.array(_FORMAT),
            "round": np.array(self.round),
            "selector": np.array(self.selector),
            **_named("model", self.model),
            **_named("first", self.first_model),
        }
        for part, arrays in self.parts.items():
            flat |= _named(f"part:{part}", arrays)
        # Profiles are in it.
        advice = "give checkpoint a file that can be written."
        with replace_file(path, advice, private=True) as file:
            np.savez(file, allow_pickle=False, **flat)

    @classmethod
    def load(cls, path: Path) -> "Checkpoint | None":
        """Return what was saved, or None if there is no such file."""
        if not path.exists():
            return None
        try:
            with np.load(path, allow_pickle=False) as file:
                flat = {name: file[name] for name in file.files}
            if int(flat["format"]) != _FORMAT:
                raise ValueError("it was saved by another version")
            parts = [name[5:-6] for name in flat if name[:5] == "part:" and name[-6:] == ".names"]
            return cls(
                round=int(flat["round"]),
                selector=str(flat["selector"]),
                model=_unnamed("model", flat),
                first_model=_unnamed("first", flat),
                parts={part: _unnamed(f"part:{part}", flat) for part in parts},
            )
        except Exception as error:
            # A damaged file shows in as many ways as there are bytes in it.
            raise StoreError(
                f"{path} is not a state that fedcohort saved, or it is damaged ({error}): remove"
                " it to start afresh."
            ) from error

    def check(self, selector: str, initial: Mapping[str, tuple[int, ...]], path: Path) -> None:
        """Raise `InvalidInputError` if this belongs to another selector or another model.

        `initial` is the shape of each array of the model that the run begins with.
        """
        if self.selector != selector:
            raise InvalidInputError(
                f"{path} was saved with selector {self.selector!r}, not {selector!r}: give"
                " checkpoint another file."
            )
        # Later models may have grown, as those of XGBoost do.
        if {name: array.shape for name, array in self.first_model.items()} != dict(initial):
            raise InvalidInputError(
                f"{path} was saved with another model: give checkpoint another file."
            )


def _named(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    # The names stand in an array of their own: a zip archive would not take every name.
    values = {f"{prefix}.{i}": array for i, array in enumerate(arrays.values())}
    return {f"{prefix}.names": np.array(list(arrays), np.str_), **values}


def _unnamed(prefix: str, flat: Arrays) -> Arrays:
    return {name: flat[f"{prefix}.{i}"] for i, name in enumerate(flat[f"{prefix}.names"].tolist())}
