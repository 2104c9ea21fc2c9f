"""Where lockstep groups resume from: one file per group, beside the store.

States can be large (a selector that keeps all updates has a model per client), so they stay out of
the database: its transactions stay short, and it never has to be shrunk. A file appears whole or
not at all, and before the transaction that names its round; the one before it goes afterwards.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort.files import replace_file
from fedcohort.simulation.store import RESUME, RunState

FOLDER = "checkpoints"


def write_checkpoint(folder: Path, group: str, states: Sequence[RunState]) -> None:
    """Write where a group's runs stand, all at the same round: one state per run, in order."""
    arrays: dict[str, Any] = {
        f"{place}/{name}": values
        for place, (_, state) in enumerate(states)
        for name, values in state.items()
    }
    with replace_file(_path(folder, group, states[0][0]), RESUME) as file:
        np.savez(file, allow_pickle=False, **arrays)


def read_checkpoint(folder: Path, group: str, round_: int, runs: int) -> list[RunState] | None:
    """Return where a group's runs stood after a round; None if that file is gone or damaged."""
    states: list[RunState] = [(round_, {}) for _ in range(runs)]
    try:
        with np.load(_path(folder, group, round_), allow_pickle=False) as arrays:
            for key in arrays.files:
                place, _, name = key.partition("/")
                states[int(place)][1][name] = arrays[key]
    except Exception:
        # A damaged archive shows in as many ways as there are bytes in it.
        return None
    return states


def drop_checkpoints(folder: Path, group: str, *, keep: int | None = None) -> None:
    """Remove a group's files but for the one of round `keep`."""
    kept = None if keep is None else _path(folder, group, keep)
    for path in (folder / FOLDER).glob(f"{group}-*"):
        if path != kept:
            path.unlink(missing_ok=True)


def _path(folder: Path, group: str, round_: int) -> Path:
    return folder / FOLDER / f"{group}-{round_}.npz"
