"""From pyarrow's tables, whatever file they come in, to a data set."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedcohort.errors import MissingPackageError
from fedcohort.federation.arrays import dataset_from_arrays
from fedcohort.federation.dataset import Dataset
from fedcohort.federation.tables import arrays_of, class_names_of, features_in


def dataset_of(
    path: str | Path,
    train: Any,
    test: Any,
    task: str | None,
    files: tuple[str | Path, str | Path] | None = None,
) -> Dataset:
    """Return the data set in a pyarrow table, and another one of test samples or None.

    Errors about one of the two speak of its file among `files`, if given.
    """
    train_file, test_file = files or (path, path)
    names = train.column_names
    arrays = _arrays(train_file, train)
    if class_names := class_names_of(features_in(train.schema.metadata), names):
        arrays["class_names"] = np.array(class_names)
    if test is not None:
        arrays |= _arrays(test_file, test, "_test", names)
    return dataset_from_arrays(path, arrays, task)


def _arrays(
    path: str | Path, table: Any, suffix: str = "", first: Sequence[str] | None = None
) -> dict[str, npt.NDArray[Any]]:
    return arrays_of(path, table.column_names, lambda name: _values(table[name]), suffix, first)


def _values(column: Any) -> Any:
    """Return a pyarrow column as an array where its values all have one shape, else as a list."""
    import pyarrow as pa

    values = column.combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = values.chunk(0) if values.num_chunks else pa.array([], values.type)
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    shape = [len(values)]
    while (
        pa.types.is_list(values.type)
        or pa.types.is_large_list(values.type)
        or (pa.types.is_fixed_size_list(values.type))
    ):
        inner = values.flatten()
        width, rest = divmod(len(inner), max(1, len(values)))
        if rest or values.null_count or not _all_of(values, width):
            return column.to_pylist()
        shape.append(width)
        values = inner
    if pa.types.is_decimal(values.type):
        values = _plain(values)
    if values.null_count or not pa.types.is_primitive(values.type):
        return column.to_pylist()
    return values.to_numpy(zero_copy_only=False).reshape(shape)


def _all_of(values: Any, width: int) -> bool:
    import pyarrow.compute as pc

    lengths = pc.min_max(pc.list_value_length(values)).as_py()
    return bool(lengths["min"] == lengths["max"] == width)


def _plain(decimals: Any) -> Any:
    """Return decimals as the integers or floats that are nearest to them."""
    import pyarrow as pa

    try:
        # Databases keep labels and numbers of clients so, too.
        return decimals.cast(pa.float64() if decimals.type.scale else pa.int64())
    except pa.ArrowInvalid:
        return decimals.cast(pa.float64())


def import_parquet() -> None:
    """Raise `MissingPackageError` where pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            "Reading Parquet, Arrow and CSV files", "parquet", error
        ) from None
