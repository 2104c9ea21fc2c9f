"""Advice on a file of profiles, or on the clients that settings describe."""

import math
import reprlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.advice import Advice
from fedcohort.advice import advise as advise_on
from fedcohort.errors import (
    InvalidInputError,
    InvalidParameterError,
    InvalidProfilesError,
    UnknownNameError,
)
from fedcohort.federation.npz import npz_names, read_arrays
from fedcohort.federation.reading import number_in
from fedcohort.simulation.config import SETTINGS, RunConfig

# What a .npz file of profiles may hold.
_ARRAYS = ("profiles", "sizes", "agreements", "shared")
# Settings that say something about cohorts drawn from a file of profiles too.
_WITH_A_FILE = ("cohort", "dropout", "over_selection")
# Settings that neither profiles nor cohorts depend on.
ADVICE_WITHOUT = tuple(
    name
    for name, setting in SETTINGS.items()
    if setting.federation is not True and name not in _WITH_A_FILE
)


def advice_on(
    settings: dict[str, Any], profiles: Path | None, sizes: Path | None, k: int | None, device: str
) -> Advice:
    """Return advice on a file of profiles or, without one, on the clients of a run."""
    if k is not None:
        if "cohort" in settings:
            raise InvalidParameterError("-k and --cohort are the same: give one of them.")
        settings = settings | {"cohort": k}
    if profiles is None:
        if sizes is not None:
            raise InvalidParameterError(
                "--sizes goes with --profiles: a data set's own sizes are known."
            )
        return _on_settings(RunConfig(**settings, selector="match"), device)
    for name in settings:
        if name not in _WITH_A_FILE and settings[name] != SETTINGS[name].on_command_line:
            raise InvalidParameterError(
                f"{SETTINGS[name].option} describes a data set, but the profiles come from a file:"
                " leave one of them out."
            )
    given = {name: value for name, value in settings.items() if name in _WITH_A_FILE}
    # A skew would come with a number of clients, which here is the file's.
    config = RunConfig(**given, skew="natural", selector="match")
    table, counts = read_profiles(profiles, sizes)
    asked, lost = config.cohort, config.dropout
    if config.over_selection > 1:
        # Imported only now, since PyTorch comes with it.
        from fedcohort.simulation.assignment import asked_and_lost

        # A cohort of more clients than there are is refused below, not cut.
        asked, lost = asked_and_lost(config, max(asked, len(table)))
    return advise_on(table, counts, asked, lost=lost, **_read_agreements(profiles))


def _on_settings(config: RunConfig, device: str) -> Advice:
    if config.profile == "representative-gradient":
        raise InvalidParameterError(
            "Representative gradients depend on how clients train, which advise is not told: write"
            " them to a file and give --profiles FILE."
        )
    # Imported only now, since PyTorch comes with it: wrong options are answered at once.
    from fedcohort.report.shown import shown_downloads
    from fedcohort.simulation.assignment import asked_and_lost
    from fedcohort.simulation.devices import device_for
    from fedcohort.simulation.federation_profiles import agreements_and_shared, profiles_and_sizes
    from fedcohort.simulation.materials import Materials

    where = device_for([config], device)
    with shown_downloads(True) as heard:
        materials = Materials(progress=heard)
        materials.dataset(config)
    profiles, sizes = profiles_and_sizes(config, materials, where)
    asked, lost = asked_and_lost(config, len(sizes))
    if config.promise is not None:
        # Clients that promise privacy send no agreements, which would not be covered by it.
        return advise_on(profiles, sizes, asked, lost=lost)
    agreements, shared = agreements_and_shared(config, materials, where)
    return advise_on(profiles, sizes, asked, lost=lost, agreements=agreements, shared=shared)


def read_profiles(
    path: Path, sizes: Path | None = None
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the profiles [C, Q] of a file, and the sizes [C] of another or of the same .npz."""
    found = _read_npz(path) if path.suffix.lower() == ".npz" else {"profiles": read_numbers(path)}
    table = found["profiles"]
    if table.ndim != 2 or 0 in table.shape:
        raise InvalidProfilesError(
            f"{str(path)!r} has shape {list(table.shape)}: profiles must be [C, Q], one row per"
            " client."
        )
    return table, found.get("sizes") if sizes is None else read_numbers(sizes)


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the profiles of a .npz file, and the sizes if it has them."""
    found = read_arrays(path, ("profiles", "sizes"))
    if "profiles" not in found:
        raise InvalidInputError(
            f"{str(path)!r} has no array 'profiles': write it with"
            " numpy.savez(FILE, profiles=..., sizes=...)."
        )
    if unknown := sorted(npz_names(path).difference(_ARRAYS)):
        raise UnknownNameError(f"use in {str(path)!r} for an array", unknown[0], _ARRAYS)
    return {name: _numbers(path, array) for name, array in found.items()}


def _read_agreements(path: Path) -> dict[str, Any]:
    """Return the agreements of a .npz file that has them, as arguments of `advise`."""
    if path.suffix.lower() != ".npz":
        return {}
    found = {
        name: _numbers(path, array)
        for name, array in read_arrays(path, ("agreements", "shared")).items()
    }
    if "shared" in found:
        if "agreements" not in found or found["shared"].size != 1:
            raise InvalidInputError(
                f"'shared' of {str(path)!r} must be one number, beside an array 'agreements'."
            )
        return found | {"shared": float(found["shared"].item())}
    return dict(found)


def read_numbers(path: Path) -> NDArray[Any]:
    """Return the array of a .csv or .npy file."""
    try:
        # Mapped, an array is no larger than its file.
        csv = path.suffix.lower() == ".csv"
        array = _table(path) if csv else np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise InvalidInputError(
            f"{str(path)!r} cannot be read ({error}): give a .npy or .csv file of numbers, or a"
            " .npz of profiles."
        ) from error
    return _numbers(path, array)


def _table(path: Path) -> NDArray[np.float64]:
    """Return the numbers of a CSV file; comments and a first line of names are left out."""
    # Spreadsheets write a mark before the first cell, which must not make a name of it.
    lines = enumerate(path.read_text("utf-8-sig").rstrip().splitlines(), 1)
    rows = [(place, line) for place, line in lines if not line.startswith("#")]
    first = [cell.strip() for cell in rows[0][1].split(",")] if rows else []
    # Names of columns differ; the row of a client whose cells are all empty or NA repeats itself.
    if len({*first, ""}) > len(first) and all(number_in(cell) is None for cell in first):
        rows = rows[1:]
    if not rows:
        raise ValueError("no rows")
    try:
        # An empty line would be skipped, and all ids after it be those of others.
        table = np.loadtxt((line or " " for _, line in rows), delimiter=",", ndmin=2)
    except ValueError as error:
        raise ValueError(_first_fault(rows) or error) from error
    if not np.isfinite(table).all():
        raise ValueError(_first_fault(rows))
    return table[:, 0] if table.shape[1] == 1 else table


def _first_fault(rows: list[tuple[int, str]]) -> str | None:
    """Say which cell of a CSV file is no number, or which line is too short or too long."""
    width = rows[0][1].count(",") + 1
    for place, line in rows:
        cells = line.split(",")
        for column, cell in enumerate(cells, 1):
            value = number_in(cell)
            if value is None or not math.isfinite(value):
                return f"cell {column} of line {place} is {reprlib.repr(cell)}, no finite number"
        if len(cells) != width:
            return f"line {place} is of length {len(cells)}, and those before it of {width}"
    return None


def _numbers(path: Path, array: NDArray[Any]) -> NDArray[Any]:
    if not np.issubdtype(array.dtype, np.number):
        raise InvalidInputError(f"{str(path)!r} must hold numbers: use numpy.save.")
    return array
