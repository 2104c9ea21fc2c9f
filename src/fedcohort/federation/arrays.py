"""From the arrays that people bring to a data set: one set of rules, whatever file they come in.

The arrays are known by their names:

- ``x`` [N, F], [N, T], [N, H, W] or [N, channels, H, W]: the samples, finite numbers.

  Three or four axes are images. Two axes are tokens when they hold integers other than bytes, and
  otherwise a table. Bytes (uint8) are pixels or cells from 0 to 255 and stay bytes; everything else
  that is not a token becomes float32 and is used as it is.
- ``y``: the targets. One axis of integers, booleans or text is a class per sample; floats with one
  or two axes are regression targets; booleans or bytes with two axes, all 0 or 1, say for each
  label whether a sample has it; integers shaped like tokens are the next token at each place.
- ``client`` [N], optional: whose sample it is, whole numbers or text. Without it a skew divides
  the samples over clients.
- ``clients`` [C], optional: all client names, in the order wanted. Without it, the names that
  occur, sorted.
- ``x_test``, ``y_test``, optional: test samples. Without them everything is for training, and
  there is no test score: no sample is set aside behind the user's back.
- ``client_test`` [N_test], optional: whose test sample it is.
- ``class_names`` [K], optional: what the labels 0 … K - 1 stand for.
- ``task``, optional, text: classification, binary, multilabel, regression or next-token, where the
  rule for ``y`` would say something else.
- ``inputs``, optional, text: image, table or tokens, where the rule for ``x`` would.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedcohort.errors import InvalidInputError, did_you_mean
from fedcohort.federation.dataset import (
    INPUTS,
    TASKS,
    Dataset,
    IntArray,
    Samples,
    Targets,
    first_not_finite,
    inputs_of,
    is_channels_last,
)
from fedcohort.federation.reading import place_of

Arrays = Mapping[str, npt.NDArray[Any]]

NAMES = (
    "x",
    "y",
    "client",
    "clients",
    "x_test",
    "y_test",
    "client_test",
    "class_names",
    "task",
    "inputs",
)


def check_array_names(path: str | Path, names: Iterable[str]) -> None:
    """Refuse arrays that nothing is known about: one with a misspelt name would go unused."""
    if unknown := sorted(set(names) - set(NAMES)):
        others = f"leave it out, or call it one of {', '.join(NAMES)}."
        hint = did_you_mean(unknown[0].lower(), NAMES, others)
        raise InvalidInputError(f"{path} has an array of unknown name, {unknown[0]!r}: {hint}")


def dataset_from_arrays(path: str | Path, arrays: Arrays, task: str | None = None) -> Dataset:
    """Make a data set from arrays by the rules above.

    Parameters
    ----------
    path : str or Path
        Where they come from: the data set's name, and what errors speak of.
    arrays : mapping of str to array
        Some of `NAMES`; ``x`` and ``y`` are needed.
    task : str, optional
        What is learned; if not given, what the arrays say, or else what `y` tells.

    Raises
    ------
    InvalidInputError
        One sentence about the first thing that is wrong.
    """
    missing = [name for name in ("x", "y") if name not in arrays]
    if missing:
        raise InvalidInputError(
            f"{path} lacks the array{'s' if len(missing) > 1 else ''} {', '.join(missing)}: "
            "save x (samples), y (targets) and, if you have clients, client (whose sample it is)."
        )
    if ("x_test" in arrays) != ("y_test" in arrays):
        there, absent = ("x_test", "y_test") if "x_test" in arrays else ("y_test", "x_test")
        raise InvalidInputError(f"{path} has {there} but not {absent}: save both or neither.")
    inputs = _word(path, "inputs", arrays, INPUTS) or inputs_of(arrays["x"])
    x_train = _samples(path, "x", arrays["x"], inputs)
    _check_rows(path, "y", arrays["y"], len(x_train))
    if "x_test" in arrays:
        x_test = _samples(path, "x_test", arrays["x_test"], inputs)
        if x_test.shape[1:] != x_train.shape[1:] or x_test.dtype != x_train.dtype:
            raise InvalidInputError(
                f"In {path}, x_test has samples of shape {x_test.shape[1:]} ({x_test.dtype}) "
                f"but x of {x_train.shape[1:]} ({x_train.dtype}): they must be alike."
            )
        _check_rows(path, "y_test", arrays["y_test"], len(x_test))
    else:
        x_test = x_train[:0]
    task = task or _word(path, "task", arrays, TASKS)
    task = task or _task_of(path, arrays["y"], x_train, inputs)
    y_train, y_test, classes, class_names = _targets(path, arrays, task)
    if task == "next-token":
        if inputs != "tokens":
            raise InvalidInputError(
                f"In {path}, the task is next-token but x is no array of tokens: save whole "
                "numbers, [N, T], or add inputs = 'tokens'."
            )
        classes = max(classes, *(int(x.max()) + 1 for x in (x_train, x_test) if len(x)))
    client, client_names = _clients(path, "client", arrays, len(x_train))
    test_client, test_client_names = _test_clients(path, arrays, len(x_test), client_names)
    return Dataset(
        name=str(path),
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        classes=classes,
        scale=255.0 if x_train.dtype == np.uint8 and inputs != "tokens" else 1.0,
        class_names=class_names,
        client=client,
        client_names=client_names,
        task=task,
        inputs=inputs,
        test_client=test_client,
        test_client_names=test_client_names,
    )


def _word(path: str | Path, name: str, arrays: Arrays, known: tuple[str, ...]) -> str:
    if name not in arrays:
        return ""
    word = str(arrays[name].reshape(-1)[0]) if arrays[name].size == 1 else repr(arrays[name].shape)
    if word not in known:
        raise InvalidInputError(
            f"In {path}, {name} is {word!r}: it must be one of {', '.join(known)}."
        )
    return word


def _samples(path: str | Path, name: str, x: npt.NDArray[Any], inputs: str) -> Samples:
    """Return samples in the shape and type that `Dataset` has for them."""
    axes = (3, 4) if inputs == "image" else (2,)
    if x.ndim not in axes or 0 in x.shape[1:]:
        raise InvalidInputError(
            f"In {path}, {name} has shape {x.shape}: it must be [N, F], [N, T], [N, H, W] or "
            "[N, channels, H, W]."
        )
    if len(x) == 0:
        raise InvalidInputError(f"In {path}, {name} holds no sample: there is nothing to use.")
    if x.dtype.kind not in "buif":
        raise InvalidInputError(f"In {path}, {name} has type {x.dtype}: it must hold real numbers.")
    if x.ndim == 4 and is_channels_last(x.shape):
        raise InvalidInputError(
            f"In {path}, {name} has shape {x.shape}, which reads as height × width × channels: "
            "put the channels first, x.transpose(0, 3, 1, 2)."
        )
    if inputs == "tokens":
        return _tokens(path, name, x)
    if x.ndim == 3:
        x = x[:, None]
    if x.dtype == np.uint8:
        return x
    with np.errstate(over="ignore"):
        samples = x.astype(np.float32, copy=False)
    _check_finite(path, name, samples, "remove or fill such samples")
    return samples


def _tokens(path: str | Path, name: str, x: npt.NDArray[Any]) -> Samples:
    if x.dtype.kind not in "iu":
        raise InvalidInputError(
            f"In {path}, {name} has type {x.dtype}: tokens must be whole numbers."
        )
    tokens = x if x.dtype in (np.uint8, np.int32) else x.astype(np.int64, copy=False)
    least = tokens.min(axis=1)
    if least.min() < 0:
        row = int(np.argmax(least < 0))
        raise InvalidInputError(
            f"In {path}, {name} holds whole numbers and is {least[row]} in row {row}: tokens must "
            "be 0 or more; if this is a table, save it as floats or add inputs = 'table'."
        )
    return tokens


def _check_finite(path: str | Path, name: str, values: npt.NDArray[Any], remedy: str) -> None:
    if (found := first_not_finite(values)) is not None:
        what, row = found
        raise InvalidInputError(f"In {path}, {name} has {what} in {place_of(path, row)}: {remedy}.")


def _task_of(path: str | Path, y: npt.NDArray[Any], x: Samples, inputs: str) -> str:
    if y.ndim == 1 and y.dtype.kind in "biuU":
        return "classification"
    if y.ndim in (1, 2) and y.dtype.kind == "f":
        return "regression"
    if y.ndim == 2 and y.dtype in (np.bool_, np.uint8):
        return "multilabel"
    if inputs == "tokens" and y.shape == x.shape and y.dtype.kind in "iu":
        return "next-token"
    raise InvalidInputError(
        f"In {path}, y has shape {y.shape} and type {y.dtype}, which says nothing about the task: "
        f"save one class per sample, or add task = one of {', '.join(TASKS)}."
    )


def _targets(
    path: str | Path, arrays: Arrays, task: str
) -> tuple[Targets, Targets, int, tuple[str, ...]]:
    """Return the targets of both parts, the number of classes and their names."""
    train = arrays["y"]
    parts = {"y": train, "y_test": arrays.get("y_test", train[:0])}
    if parts["y_test"].shape[1:] != train.shape[1:]:
        raise InvalidInputError(
            f"In {path}, y_test has shape {parts['y_test'].shape} but y {train.shape}: "
            "they must be alike."
        )
    given = tuple(str(value) for value in arrays.get("class_names", np.array([])).ravel())
    if task == "regression":
        values = [_real(path, name, y) for name, y in parts.items()]
        return values[0], values[1], values[0].size // len(values[0]), given
    if task == "multilabel":
        values = [_flags(path, name, y) for name, y in parts.items()]
        return values[0], values[1], values[0].shape[1], given
    if task == "next-token":
        values = [_whole(path, name, y) for name, y in parts.items()]
        largest = max(int(y.max()) for y in values if len(y))
        return values[0], values[1], max(largest + 1, len(given)), given
    return _classes(path, parts, task, given)


def _classes(
    path: str | Path, parts: Mapping[str, npt.NDArray[Any]], task: str, given: tuple[str, ...]
) -> tuple[Targets, Targets, int, tuple[str, ...]]:
    labels = [_labels(path, name, y) for name, y in parts.items()]
    if len(labels[1]) and (labels[0].dtype.kind == "U") != (labels[1].dtype.kind == "U"):
        raise InvalidInputError(
            f"In {path}, y has type {labels[0].dtype} but y_test {labels[1].dtype}: "
            "they must be alike."
        )
    together = np.concatenate(labels) if len(labels[1]) else labels[0]
    if given and together.dtype.kind != "U":
        numbers = together.astype(np.int64)
        if numbers.max() >= len(given):
            raise InvalidInputError(
                f"In {path}, the label {numbers.max()} has no name: class_names has {len(given)}."
            )
        names = given
    else:
        values, numbers = np.unique(together, return_inverse=True)
        names = tuple(str(value) for value in values)
    if task == "binary" and len(names) > 2:
        raise InvalidInputError(
            f"In {path}, y has {len(names)} different labels: the task binary has 2."
        )
    count = max(2, len(names)) if task == "binary" else len(names)
    numbers = numbers.astype(np.int64)
    return numbers[: len(labels[0])], numbers[len(labels[0]) :], count, names


def _labels(path: str | Path, name: str, y: npt.NDArray[Any]) -> npt.NDArray[Any]:
    _one_axis(path, name, y)
    if y.dtype.kind not in "biuU":
        raise InvalidInputError(
            f"In {path}, {name} has type {y.dtype}: labels must be integers, booleans or text."
        )
    return y if y.dtype.kind in "bU" else _whole(path, name, y)


def _whole(path: str | Path, name: str, y: npt.NDArray[Any]) -> IntArray:
    if y.dtype.kind not in "biu":
        raise InvalidInputError(f"In {path}, {name} has type {y.dtype}: it must hold integers.")
    numbers = y.astype(np.int64)
    if numbers.size and numbers.min() < 0:
        row = int(np.argmax(numbers.reshape(len(numbers), -1).min(axis=1) < 0))
        raise InvalidInputError(
            f"In {path}, {name} is {y[row]} in {place_of(path, row)}: labels must be 0 or more."
        )
    return numbers


def _real(path: str | Path, name: str, y: npt.NDArray[Any]) -> Targets:
    if y.ndim not in (1, 2) or 0 in y.shape[1:] or y.dtype.kind not in "biuf":
        raise InvalidInputError(
            f"In {path}, {name} has shape {y.shape} and type {y.dtype}: regression targets are "
            "numbers, [N] or [N, D]."
        )
    with np.errstate(over="ignore"):
        values = y.astype(np.float32)
    _check_finite(path, name, values, "remove such samples")
    return values


def _flags(path: str | Path, name: str, y: npt.NDArray[Any]) -> Targets:
    if y.ndim != 2 or y.shape[1] == 0 or y.dtype.kind not in "biu":
        raise InvalidInputError(
            f"In {path}, {name} has shape {y.shape} and type {y.dtype}: several labels are "
            "booleans or 0 and 1, [N, L]."
        )
    if y.size and not np.isin(y, (0, 1)).all():
        row = int(np.argmin(np.isin(y, (0, 1)).all(axis=1)))
        raise InvalidInputError(
            f"In {path}, {name} has something else than 0 and 1 in row {row}: several labels are "
            "0 or 1 each."
        )
    return y.astype(np.uint8)


def _clients(
    path: str | Path, name: str, arrays: Arrays, samples: int
) -> tuple[IntArray | None, tuple[str, ...]]:
    client = arrays.get(name)
    listed = arrays.get("clients")
    if client is None:
        if listed is not None:
            raise InvalidInputError(
                f"{path} lists clients but lacks the array client: say whose sample each is."
            )
        return None, ()
    _check_rows(path, name, client, samples)
    _one_axis(path, name, client)
    for which, array in ((name, client), ("clients", listed)):
        if array is not None and array.dtype.kind not in "iuU":
            raise InvalidInputError(
                f"In {path}, {which} has type {array.dtype}: client names must be integers or text."
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


def _test_clients(
    path: str | Path, arrays: Arrays, samples: int, client_names: tuple[str, ...]
) -> tuple[IntArray | None, tuple[str, ...]]:
    """Return who the test samples come from: clients that train too, or other people."""
    alone = {name: array for name, array in arrays.items() if name != "clients"}
    numbers, names = _clients(path, "client_test", alone, samples)
    if numbers is None or not set(names) <= set(client_names):
        return numbers, names
    places = np.array([client_names.index(name) for name in names], dtype=np.int64)
    return places[numbers], client_names


def _check_rows(path: str | Path, name: str, column: npt.NDArray[Any], samples: int) -> None:
    if column.ndim == 0 or len(column) != samples:
        of = "x_test" if name.endswith("_test") else "x"
        raise InvalidInputError(
            f"In {path}, {name} has shape {column.shape} but {of} has {samples} samples: "
            f"{name} must have one entry for each."
        )


def _one_axis(path: str | Path, name: str, column: npt.NDArray[Any]) -> None:
    if column.ndim != 1:
        raise InvalidInputError(
            f"In {path}, {name} has shape {column.shape}: it must have one entry for each sample."
        )
