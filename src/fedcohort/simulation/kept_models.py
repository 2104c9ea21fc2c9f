"""The last models of finished runs, one file per run, beside the store."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import StoreError
from fedcohort.files import replace_file
from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.store import RESUME, Store

FOLDER = "models"


def keep_models(folder: Path, models: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
    """Write models, each whole or not at all: by run, state dicts."""
    for run, parameters in models.items():
        with replace_file(_file(folder, run), RESUME) as file:
            np.savez(file, allow_pickle=False, **parameters)


def check_kept(store: Store, configs: Sequence[RunConfig]) -> None:
    """Refuse runs that are finished and whose models were not kept."""
    lost = [c for c in configs if store.is_done(c.key) and not _file(store.folder, c.key).exists()]
    if lost:
        raise StoreError(
            f"The models of {len(lost)} of {len(configs)} runs in {str(store.folder)!r} were not"
            " kept when these were done: give another folder to do them again, or ask for no"
            " models."
        )


def read_model(folder: Path, run: str) -> dict[str, NDArray[Any]]:
    """Return a run's last model as a state dict."""
    try:
        with np.load(_file(folder, run), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise StoreError(
            f"The model of run {run!r} cannot be read ({error}): it is kept only of runs that were"
            " done with models kept; run it again in another folder."
        ) from error


def _file(folder: Path, run: str) -> Path:
    return folder / FOLDER / f"{run}.npz"
