"""A user's own data in one ``.npz`` file."""

import math
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedcohort.errors import CorruptFileError, InvalidInputError
from fedcohort.federation.arrays import NAMES, check_array_names, dataset_from_arrays
from fedcohort.federation.dataset import Dataset
from fedcohort.federation.memory import check_fits
from fedcohort.federation.reading import unreadable


def load_npz(path: str | Path, task: str | None = None) -> Dataset:
    """Load a user's own data.

    Parameters
    ----------
    path : str or Path
        A file written by `numpy.savez` or `numpy.savez_compressed` with the arrays that
        `fedcohort.federation.arrays` describes: ``x``, ``y``, and optionally ``client`` and more.
    task : str, optional
        What is learned; told from the targets if not given.

    Raises
    ------
    InvalidInputError
        One sentence about the first thing that is wrong.

    Examples
    --------
    >>> x, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3
    >>> np.savez("mine.npz", x=x, y=y)
    >>> load_npz("mine.npz").classes
    3
    """
    arrays = read_arrays(Path(path), NAMES)
    check_array_names(path, npz_names(path))
    return dataset_from_arrays(path, arrays, task)


def npz_names(path: str | Path) -> frozenset[str]:
    """Return the names of the arrays in a file; nothing when it cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return frozenset(name.removesuffix(".npy") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return frozenset()


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    """Return those of some arrays that a file has, having looked at their sizes first."""
    arrays = {}
    name = ""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = set(archive.namelist())
            wanted = [name for name in names if f"{name}.npy" in entries]
            check_fits(path, sum(_bytes_needed(archive, f"{name}.npy") for name in wanted))
            for name in wanted:
                with archive.open(f"{name}.npy") as stream:
                    arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
    except InvalidInputError:
        raise
    except FileNotFoundError:
        raise InvalidInputError(f"There is no file {path}: check the path.") from None
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise CorruptFileError(_damaged(path)) from None
        raise InvalidInputError(
            f"In {path}, {name} is an array of Python objects, which is not read because it could "
            "run code: save plain numbers (or text, for labels and clients)."
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None
    except Exception:
        # A damaged archive or header shows in the errors of several tools.
        raise CorruptFileError(_damaged(path)) from None
    return arrays


def _bytes_needed(archive: zipfile.ZipFile, entry: str) -> int:
    """Return what an array takes, with the float copy that other numbers need, from its header."""
    with archive.open(entry) as stream:
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[np.lib.format.read_magic(stream)]
        shape, _, dtype = read(stream)
        begin = stream.tell()
    values = math.prod(shape)
    if not dtype.hasobject and begin + values * dtype.itemsize != archive.getinfo(entry).file_size:
        raise CorruptFileError(_damaged(Path(str(archive.filename))))
    copy = 4 * values if dtype.kind in "biuf" and dtype not in (np.uint8, np.float32) else 0
    return values * dtype.itemsize + copy


def _damaged(path: Path) -> str:
    return f"{path} is truncated, damaged or not a .npz file: save it again with numpy.savez."
