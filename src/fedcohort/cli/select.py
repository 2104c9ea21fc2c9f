"""One cohort from a file of profiles."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import InvalidInputError, InvalidProfilesError, MissingKnowledgeError
from fedcohort.randomness import generator
from fedcohort.selection import Need, make_selector

_KNOWN_FROM_A_FILE = frozenset({Need.PROFILE})


def select_once(profiles: Path, k: int, spec: str, seed: int, sizes: Path | None) -> list[int]:
    """Return the ids of one cohort: rows of the profiles file."""
    if seed < 0:
        raise InvalidInputError(f"--seed must be 0 or more, not {seed}.")
    selector = make_selector(spec)
    missing = selector.needs - _KNOWN_FROM_A_FILE
    if missing:
        wanted = ", ".join(sorted(need.value for need in missing))
        raise MissingKnowledgeError(
            f"Selector {selector.name!r} also needs the {wanted} of clients, which a file of"
            " profiles does not hold: choose one that needs profiles only, such as dp3s."
        )
    table = _load(profiles)
    if table.ndim != 2 or table.shape[0] == 0 or table.shape[1] == 0:
        raise InvalidProfilesError(
            f"{str(profiles)!r} has shape {list(table.shape)}: profiles must be [C, Q], one row per"
            " client."
        )
    selector.fit(table, sizes=None if sizes is None else _load(sizes))
    return [int(c) for c in selector.select(k, rng=generator(seed, "selection", 1)).ids]


def _load(path: Path) -> NDArray[Any]:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InvalidInputError(
            f"{str(path)!r} cannot be read as a .npy file ({error}): write it with numpy.save."
        ) from error
    if not isinstance(array, np.ndarray) or not np.issubdtype(array.dtype, np.number):
        raise InvalidInputError(f"{str(path)!r} must hold one array of numbers: use numpy.save.")
    return array
