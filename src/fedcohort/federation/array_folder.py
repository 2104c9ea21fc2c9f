"""A user's own data as a folder of ``.npy`` files, read where they lie."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedcohort.errors import CorruptFileError, InvalidInputError
from fedcohort.federation.arrays import check_array_names, dataset_from_arrays
from fedcohort.federation.dataset import Dataset
from fedcohort.federation.memory import check_fits
from fedcohort.federation.reading import unreadable


def load_array_folder(path: str | Path, task: str | None = None) -> Dataset:
    """Load a user's own data from ``x.npy``, ``y.npy`` and more.

    Samples of uint8, float32 or tokens of uint8, int32 or int64 stay in their file, mapped into
    memory, and need not fit there; other numbers become float32 in memory.

    Parameters
    ----------
    path : str or Path
        A folder with one file, written by `numpy.save`, for each array that
        `fedcohort.federation.arrays` describes.
    task : str, optional
        What is learned; told from the targets if not given.

    Raises
    ------
    InvalidInputError
        One sentence about the first thing that is wrong.

    Examples
    --------
    >>> Path("mine").mkdir()
    >>> np.save("mine/x.npy", np.random.default_rng(0).normal(size=(60, 4)))
    >>> np.save("mine/y.npy", np.arange(60) % 3)
    >>> load_array_folder("mine").classes
    3
    """
    folder = Path(path)
    files = {file.stem: file for file in sorted(folder.glob("[!.]*.npy"))}
    check_array_names(path, files)
    arrays = {name: _mapped(file) for name, file in files.items()}
    copies = [
        array.size * 4
        for name, array in arrays.items()
        if name in ("x", "x_test")
        and array.dtype.name not in ("uint8", "float32", "int32", "int64")
    ]
    check_fits(path, sum(copies))
    return dataset_from_arrays(path, arrays, task)


def _mapped(file: Path) -> npt.NDArray[Any]:
    try:
        # A scalar such as the task cannot be mapped, and need not be.
        array: npt.NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
        return array
    except ValueError as error:
        if "Python objects" in str(error) or "Object arrays" in str(error):
            raise InvalidInputError(
                f"{file} is an array of Python objects, which is not read because it could run "
                "code: save plain numbers (or text, for labels and clients)."
            ) from None
        raise CorruptFileError(_damaged(file)) from None
    except OSError as error:
        raise unreadable(file, error) from None
    except Exception:
        raise CorruptFileError(_damaged(file)) from None


def _damaged(file: Path) -> str:
    return f"{file} is truncated, damaged or not a .npy file: save it again with numpy.save."
