"""Data from Hugging Face's `datasets` and Flower's `flwr-datasets`, without needing either."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedcohort.errors import CorruptFileError, InvalidInputError
from fedcohort.federation.arrays import dataset_from_arrays
from fedcohort.federation.arrow import dataset_of, import_parquet
from fedcohort.federation.dataset import Dataset
from fedcohort.federation.memory import check_fits
from fedcohort.federation.reading import unreadable
from fedcohort.federation.tables import CLIENT_COLUMNS, arrays_of, class_names_of, known_as


def is_saved_to_disk(folder: Path) -> bool:
    """Tell whether ``save_to_disk`` wrote this folder."""
    return (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()


def load_huggingface(path: str | Path, task: str | None = None) -> Dataset:
    """Load what ``save_to_disk`` wrote: a `datasets.Dataset`, or a `DatasetDict`.

    Parameters
    ----------
    path : str or Path
        The folder. Of a `DatasetDict` the split ``train`` is for training and ``test`` for
        testing; others are not read. The columns are told by their names, as
        `fedcohort.federation.tables` says.
    task : str, optional
        What is learned; told from the targets if not given.

    Raises
    ------
    InvalidInputError
        One sentence about the first thing that is wrong.
    MissingPackageError
        Without pyarrow (the extra ``parquet``).

    Examples
    --------
    >>> load_huggingface("saved-to-disk")  # doctest: +SKIP
    """
    folder = Path(path)
    splits = _splits(folder)
    if "train" not in splits:
        raise InvalidInputError(
            f"{path} has no split called train, only {', '.join(splits) or 'none'}: save one."
        )
    test = _read(splits["test"]) if "test" in splits else None
    return dataset_of(path, _read(splits["train"]), test, task)


def saved_columns(folder: Path) -> tuple[str, ...]:
    """Return the names of the training part's columns; nothing when they cannot be read."""
    try:
        return tuple(_read(_splits(folder)["train"]).column_names)
    except (KeyError, CorruptFileError, InvalidInputError):
        return ()


def from_partitions(
    partitions: Sequence[Any],
    *,
    test: Any = None,
    names: Sequence[str] | None = None,
    task: str | None = None,
    name: str = "partitions",
) -> Dataset:
    """Make a data set of one table per client, such as the partitions of `flwr-datasets`.

    Parameters
    ----------
    partitions : sequence
        One table per client: a `datasets.Dataset`, a pandas data frame, a mapping of names to
        columns, or anything else with ``len`` and ``[column]``. The columns are told by their
        names, as `fedcohort.federation.tables` says; a column for clients is not looked at.
    test : table, optional
        The test samples.
    names : sequence of str, optional
        What the clients are called; by default their numbers.
    task : str, optional
        The task, where the targets' type does not tell it.
    name : str
        What the data set is called.

    Examples
    --------
    >>> from fedcohort.federation import Dataset
    >>> first = {"x": [[0.0, 1.0], [2.0, 3.0]], "y": ["cat", "dog"]}
    >>> second = {"x": [[4.0, 5.0]], "y": ["dog"]}
    >>> data = Dataset.from_partitions([first, second])
    >>> data.client.tolist(), data.class_names
    ([0, 0, 1], ('cat', 'dog'))
    """
    if not len(partitions):
        raise InvalidInputError("There is no partition: give at least one table per client.")
    labels = [str(n) for n in range(len(partitions))] if names is None else [*map(str, names)]
    if len(labels) != len(partitions) or len(set(labels)) < len(labels):
        raise InvalidInputError(
            f"{len(labels)} names for {len(partitions)} partitions: give each a name of its own."
        )
    first = [*map(str, _columns(partitions[0]))]
    tables = [
        _table(f"{name}, client {label}", part, first)
        for label, part in zip(labels, partitions, strict=True)
    ]
    arrays = {key: _joined(name, key, [table[key] for table in tables]) for key in ("x", "y")}
    arrays["client"] = np.repeat(labels, [len(table["y"]) for table in tables])
    arrays["clients"] = np.array(labels)
    if test is not None:
        tested = _table(f"{name}, test", test, first)
        arrays |= {f"{key}_test": array for key, array in tested.items()}
    features = getattr(partitions[0], "features", None) or {}
    if class_names := class_names_of(features, features):
        arrays["class_names"] = np.array(class_names)
    return dataset_from_arrays(name, arrays, task)


def _columns(part: Any) -> list[Any]:
    columns = getattr(part, "column_names", None) or list(getattr(part, "columns", part))
    return [column for column in columns if known_as(str(column)) not in CLIENT_COLUMNS]


def _table(where: str, part: Any, first: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    columns = _columns(part)
    names = [*map(str, columns)]
    # pandas numbers the columns of an array, and knows them by these numbers alone.
    return arrays_of(where, names, lambda name: part[columns[names.index(name)]], first=first)


def _joined(name: str, key: str, parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    if len({part.shape[1:] for part in parts}) > 1:
        raise InvalidInputError(
            f"In {name}, the clients' {key} are not all of one shape: bring them to one."
        )
    return np.concatenate(parts)


def _splits(folder: Path) -> dict[str, Path]:
    if (folder / "state.json").is_file():
        return {"train": folder}
    listed = _json(folder / "dataset_dict.json").get("splits", [])
    return {str(split): folder / str(split) for split in listed}


def _read(folder: Path) -> Any:
    import_parquet()
    import pyarrow as pa

    state = _json(folder / "state.json")
    if state.get("_indices_files"):
        raise InvalidInputError(
            f"{folder} holds a selection of rows: call flatten_indices() before save_to_disk."
        )
    try:
        files = [folder / entry["filename"] for entry in state["_data_files"]]
        check_fits(folder, 2 * sum(file.stat().st_size for file in files))
        tables = []
        for file in files:
            with pa.memory_map(str(file)) as mapped:
                tables.append(pa.ipc.open_stream(mapped).read_all())
        return pa.concat_tables(tables)
    except PermissionError as error:
        raise unreadable(folder, error) from None
    except (pa.ArrowException, OSError, KeyError, TypeError):
        raise CorruptFileError(
            f"{folder} is not what save_to_disk wrote, or damaged: save it again."
        ) from None


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except PermissionError as error:
        raise unreadable(file, error) from None
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict):
        raise CorruptFileError(
            f"{file} is missing or damaged: save the data set again with save_to_disk."
        )
    return content
