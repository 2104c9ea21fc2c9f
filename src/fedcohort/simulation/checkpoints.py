"""Where lockstep groups go on from: one file a group, beside the store.

States can be large (a selector that keeps all updates has a model a client), so they stay out of
the database: its transactions stay short, and it never has to be shrunk. A file appears whole or
not at all, and before the transaction that names its round; the one before it goes afterwards.
"""

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort.simulation.store import Checkpoint, unwritable

FOLDER = "checkpoints"


def write_checkpoint(folder: Path, group: str, states: Sequence[Checkpoint]) -> None:
    """Write where a group's runs stand, all at the same round.

    Parameters
    ----------
    folder : Path
        The store's.
    group : str
        The group's name.
    states : sequence of (round, arrays)
        One a run, in the group's order.
    """
    path = _path(folder, group, states[0][0])
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    arrays: dict[str, Any] = {
        f"{place}/{name}": values
        for place, (_, state) in enumerate(states)
        for name, values in state.items()
    }
    try:
        path.parent.mkdir(exist_ok=True)
        try:
            with temporary.open("wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync(path.parent)
    except OSError as error:
        raise unwritable(folder, error) from error


def read_checkpoint(folder: Path, group: str, round_: int, runs: int) -> list[Checkpoint] | None:
    """Return where a group's runs stood after a round; None if that file is gone or damaged."""
    states: list[Checkpoint] = [(round_, {}) for _ in range(runs)]
    try:
        with np.load(_path(folder, group, round_), allow_pickle=False) as arrays:
            for key in arrays.files:
                place, _, name = key.partition("/")
                states[int(place)][1][name] = arrays[key]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
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


def _sync(folder: Path) -> None:
    """Make a rename outlast a power cut, where folders can be synchronised."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
