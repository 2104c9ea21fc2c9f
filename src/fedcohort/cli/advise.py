"""Advice on a file of profiles, or on the clients that settings describe."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.advice import Advice
from fedcohort.advice import advise as advise_on
from fedcohort.errors import InvalidInputError, InvalidParameterError
from fedcohort.federation.npz import read_arrays
from fedcohort.simulation.config import SETTINGS, RunConfig

# Settings that neither profiles nor cohorts depend on.
ADVICE_WITHOUT = tuple(
    name
    for name, setting in SETTINGS.items()
    if setting.federation is not True and name not in ("cohort", "dropout", "over_selection")
)
# Settings that say something about cohorts drawn from a file of profiles too.
_WITH_A_FILE = {"cohort", "dropout"}


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
    config = RunConfig(**{n: v for n, v in settings.items() if n in _WITH_A_FILE}, selector="match")
    table, held = read_profiles(profiles)
    counts = held if sizes is None else read_numbers(sizes)
    return advise_on(
        table, counts, config.cohort, lost=config.dropout, **_read_agreements(profiles)
    )


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


def read_profiles(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the profiles [C, Q] of a file, and the sizes [C] where it is a .npz that has them."""
    if path.suffix.lower() != ".npz":
        return read_numbers(path), None
    found = read_arrays(path, ("profiles", "sizes"))
    if "profiles" not in found:
        raise InvalidInputError(
            f"{str(path)!r} has no array 'profiles': write it with"
            " numpy.savez(FILE, profiles=..., sizes=...)."
        )
    held = found.get("sizes")
    return _numbers(path, found["profiles"]), None if held is None else _numbers(path, held)


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
            f"{str(path)!r} cannot be read ({error}): give a .npy, .npz or .csv file of numbers."
        ) from error
    return _numbers(path, array)


def _table(path: Path) -> NDArray[np.float64]:
    """Return the numbers of a CSV file; a first line of names is left out."""
    lines = path.read_text("utf-8").splitlines()
    try:
        [float(cell) for cell in lines[0].split(",")] if lines else []
    except ValueError:
        lines = lines[1:]
    if not lines:
        raise ValueError("no rows")
    table = np.loadtxt(lines, delimiter=",", ndmin=2)
    return table[:, 0] if table.shape[1] == 1 else table


def _numbers(path: Path, array: NDArray[Any]) -> NDArray[Any]:
    if not np.issubdtype(array.dtype, np.number):
        raise InvalidInputError(f"{str(path)!r} must hold numbers: use numpy.save.")
    return array
