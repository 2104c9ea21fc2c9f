"""What a selector asks, checked: engines do not have to trust `Selector.ask`, as in `select`."""

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import InvalidCohortError
from fedcohort.selection.base import Need, Selector
from fedcohort.selection.roster import Ids


def questions_of(
    selector: Selector, k: int, available: Ids | None = None, *, rng: np.random.Generator
) -> list[tuple[Need, Ids]]:
    """Have a selector say what must be told, and of whom, before it chooses.

    Parameters
    ----------
    selector, k, available, rng
        As in `Selector.ask`.

    Raises
    ------
    InvalidCohortError
        When it asks for what it does not declare to need, or clients who are not there.
    """
    there = selector.clients if available is None else available
    questions = list(selector.ask(k, available, rng=rng).items())
    for need, ids in questions:
        if problem := _problem_of(selector, need, ids, there):
            raise InvalidCohortError(selector.name, problem)
    return questions


def _problem_of(selector: Selector, need: Need, ids: NDArray[np.int64], there: Ids) -> str | None:
    """Say why these clients cannot be asked."""
    if need not in selector.needs:
        return f"it asks for {getattr(need, 'value', need)!r}, which it does not declare to need"
    found = getattr(ids, "dtype", type(ids).__name__)
    if found != "int64" or ids.ndim != 1:
        return f"the ids that it asks are {found}, not a list of int64"
    if (absent := ~np.isin(ids, there)).any():
        return f"it asks client {ids[absent][0]}, who is not there"
    if len(np.unique(ids)) < len(ids):
        return "it asks a client twice"
    return None
