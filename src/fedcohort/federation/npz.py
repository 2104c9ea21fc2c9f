"""A user's own federation in one ``.npz`` file."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedcohort.errors import CorruptFileError, InvalidInputError
from fedcohort.federation.dataset import Dataset, IntArray, Samples


def load_npz(path: str | Path) -> Dataset:
    """Load a user's own federation.

    Parameters
    ----------
    path : str or Path
        A file written by `numpy.savez` or `numpy.savez_compressed` with the arrays

        - ``x`` [N, F], [N, H, W] or [N, channels, H, W]: finite numbers. Bytes (uint8) are taken
          for pixels from 0 to 255; everything else becomes float32 and is used as it is.
        - ``y`` [N]: whole numbers of at least 0. They need not be 0 … classes - 1.
        - ``client`` [N]: whose sample it is, whole numbers or text.
        - ``clients`` [C], optional: all client names, in the order wanted. Without it, the names
          that occur, sorted.
        - ``x_test``, ``y_test``, optional: test samples that belong to nobody. Without them
          everything is for training, and there is no test accuracy: no sample is set aside
          behind the user's back.

    Raises
    ------
    InvalidInputError
        One sentence about the first thing that is wrong.
    """
    arrays = _npz_arrays(Path(path))
    missing = [name for name in ("x", "y", "client") if name not in arrays]
    if missing:
        raise InvalidInputError(
            f"{path} lacks the array{'s' if len(missing) > 1 else ''} {', '.join(missing)}: "
            "save x (samples), y (labels) and client (whose sample it is)."
        )
    x_train = _npz_samples(path, "x", arrays["x"])
    labels = _npz_labels(path, "y", arrays["y"], len(x_train))
    if ("x_test" in arrays) != ("y_test" in arrays):
        there, absent = ("x_test", "y_test") if "x_test" in arrays else ("y_test", "x_test")
        raise InvalidInputError(f"{path} has {there} but not {absent}: save both or neither.")
    if "x_test" in arrays:
        x_test = _npz_samples(path, "x_test", arrays["x_test"])
        if x_test.shape[1:] != x_train.shape[1:] or x_test.dtype != x_train.dtype:
            raise InvalidInputError(
                f"In {path}, x_test has samples of shape {x_test.shape[1:]} ({x_test.dtype}) "
                f"but x of {x_train.shape[1:]} ({x_train.dtype}): they must be alike."
            )
        test_labels = _npz_labels(path, "y_test", arrays["y_test"], len(x_test))
    else:
        x_test, test_labels = x_train[:0], labels[:0]
    values, classes = np.unique(np.concatenate([labels, test_labels]), return_inverse=True)
    client, client_names = _npz_clients(path, arrays, len(x_train))
    return Dataset(
        name=str(path),
        x_train=x_train,
        y_train=classes[: len(labels)].astype(np.int64),
        x_test=x_test,
        y_test=classes[len(labels) :].astype(np.int64),
        classes=len(values),
        scale=255.0 if x_train.dtype == np.uint8 else 1.0,
        class_names=tuple(str(value) for value in values),
        client=client,
        client_names=client_names,
    )


def _npz_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    wanted = ("x", "y", "client", "clients", "x_test", "y_test")
    arrays = {}
    name = ""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = set(archive.namelist())
            for name in wanted:
                if f"{name}.npy" in entries:
                    with archive.open(f"{name}.npy") as stream:
                        arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
    except FileNotFoundError:
        raise InvalidInputError(f"There is no file {path}: check the path.") from None
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise CorruptFileError(_damaged(path)) from None
        raise InvalidInputError(
            f"In {path}, {name} is an array of Python objects, which is not read because it could "
            "run code: save plain numbers (or text, for client)."
        ) from None
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror}.") from None
    except Exception:
        # A damaged archive or header shows in the errors of several tools, or asks for more memory
        # than there is.
        raise CorruptFileError(_damaged(path)) from None
    return arrays


def _damaged(path: Path) -> str:
    return f"{path} is truncated, damaged or not a .npz file: save it again with numpy.savez."


def _npz_samples(path: str | Path, name: str, x: npt.NDArray[Any]) -> Samples:
    """Return samples as uint8 or float32, shape [N, F] or [N, channels, H, W]."""
    if x.ndim not in (2, 3, 4) or 0 in x.shape[1:]:
        raise InvalidInputError(
            f"In {path}, {name} has shape {x.shape}: it must be [N, F], [N, H, W] or "
            "[N, channels, H, W]."
        )
    if len(x) == 0:
        raise InvalidInputError(f"In {path}, {name} holds no sample: there is nothing to use.")
    if x.dtype.kind not in "buif":
        raise InvalidInputError(f"In {path}, {name} has type {x.dtype}: it must hold real numbers.")
    if x.ndim == 3:
        x = x[:, None]
    if x.dtype == np.uint8:
        return x
    with np.errstate(over="ignore"):
        samples = x.astype(np.float32)
    finite = np.isfinite(samples).reshape(len(samples), -1).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        what = "NaN" if np.isnan(samples[row]).any() else "an infinite value (as float32)"
        raise InvalidInputError(
            f"In {path}, {name} has {what} in row {row}: remove or fill such samples."
        )
    return samples


def _npz_labels(
    path: str | Path, name: str, y: npt.NDArray[Any], samples: int
) -> npt.NDArray[np.int64]:
    _check_column(path, name, y, samples)
    if y.dtype.kind not in "iu":
        raise InvalidInputError(f"In {path}, {name} has type {y.dtype}: labels must be integers.")
    labels = y.astype(np.int64)
    if labels.min() < 0:
        row = int(np.argmax(labels < 0))
        raise InvalidInputError(
            f"In {path}, {name} is {y[row]} in row {row}: labels must be 0 or more."
        )
    return labels


def _npz_clients(
    path: str | Path, arrays: dict[str, npt.NDArray[Any]], samples: int
) -> tuple[IntArray, tuple[str, ...]]:
    client = arrays["client"]
    _check_column(path, "client", client, samples)
    listed = arrays.get("clients")
    for name, array in (("client", client), ("clients", listed)):
        if array is not None and array.dtype.kind not in "iuU":
            raise InvalidInputError(
                f"In {path}, {name} has type {array.dtype}: client names must be integers or text."
            )
    present, numbers = np.unique(client, return_inverse=True)
    names = [str(value) for value in present]
    if listed is None:
        return numbers.astype(np.int64), tuple(names)

    order = [str(value) for value in listed.ravel()]
    positions = {value: position for position, value in enumerate(order)}
    if len(positions) < len(order):
        twice = next(value for value in order if order.count(value) > 1)
        raise InvalidInputError(f"In {path}, clients names {twice!r} twice: name everyone once.")
    if strangers := [value for value in names if value not in positions]:
        raise InvalidInputError(
            f"In {path}, client {strangers[0]!r} holds samples but is not in clients: add it there."
        )
    if empty := [value for value in order if value not in set(names)]:
        raise InvalidInputError(
            f"In {path}, client {empty[0]!r} holds no sample: leave it out of clients."
        )
    return np.array([positions[value] for value in names])[numbers], tuple(order)


def _check_column(path: str | Path, name: str, column: npt.NDArray[Any], samples: int) -> None:
    if column.ndim != 1 or len(column) != samples:
        of = "x_test" if name == "y_test" else "x"
        raise InvalidInputError(
            f"In {path}, {name} has shape {column.shape} but {of} has {samples} samples: "
            f"{name} must have one entry a sample."
        )
