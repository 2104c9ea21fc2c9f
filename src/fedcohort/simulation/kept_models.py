"""The last models of finished runs, one file per run, beside the store."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import StoreError
from fedcohort.files import replace_file
from fedcohort.simulation.store import RESUME

FOLDER = "models"


def keep_models(folder: Path, models: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
    """Write models, each whole or not at all: by run, parameters by name."""
    for run, parameters in models.items():
        with replace_file(folder / FOLDER / f"{run}.npz", RESUME) as file:
            np.savez(file, allow_pickle=False, **parameters)


def read_model(folder: Path, run: str) -> dict[str, NDArray[Any]]:
    """Return the parameters of a run's last model, by name."""
    path = folder / FOLDER / f"{run}.npz"
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise StoreError(
            f"The model of run {run!r} cannot be read ({error}): it is kept only of runs that were"
            " done with models kept; run it again in another folder."
        ) from error
