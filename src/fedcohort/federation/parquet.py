"""A user's own data in Parquet: one file, or a folder of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedcohort.errors import CorruptFileError, InvalidInputError, MissingPackageError
from fedcohort.federation.arrays import dataset_from_arrays
from fedcohort.federation.dataset import Dataset
from fedcohort.federation.memory import check_fits
from fedcohort.federation.tables import arrays_of, class_names_of, features_in


def load_parquet(path: str | Path, task: str | None = None) -> Dataset:
    """Load a user's own data from Parquet.

    Parameters
    ----------
    path : str or Path
        A file, or a folder whose files are read in the order of their names; files whose names
        begin with ``test`` hold test samples. The columns are told by their names, as
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
    >>> import pandas as pd
    >>> table = pd.DataFrame({"age": np.arange(60.0), "label": np.arange(60) % 3})
    >>> table.to_parquet("mine.parquet")
    >>> load_parquet("mine.parquet").classes
    3
    """
    train, test = _files(Path(path))
    if not train:
        raise InvalidInputError(f"There is no Parquet file for training at {path}: check the path.")
    table = _read(path, train)
    arrays = table_arrays(path, table)
    if test:
        arrays |= table_arrays(path, _read(path, test), "_test", table.column_names)
    return dataset_from_arrays(path, arrays, task)


def parquet_columns(path: Path) -> tuple[str, ...]:
    """Return the names of the columns; nothing when they cannot be read."""
    train, _ = _files(path)
    if not train:
        return ()
    import_parquet()
    import pyarrow.parquet as pq

    try:
        return tuple(pq.read_schema(train[0]).names)
    except Exception:
        return ()


def table_arrays(
    path: str | Path, table: Any, suffix: str = "", first: Sequence[str] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays in a pyarrow table; see `tables.arrays_of`."""
    arrays = arrays_of(
        path, table.column_names, lambda name: column_values(table[name]), suffix, first
    )
    names = class_names_of(features_in(table.schema.metadata), table.column_names)
    if names and not suffix:
        arrays["class_names"] = np.array(names)
    return arrays


def column_values(column: Any) -> Any:
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
    if values.null_count or not pa.types.is_primitive(values.type):
        return column.to_pylist()
    return values.to_numpy(zero_copy_only=False).reshape(shape)


def _all_of(values: Any, width: int) -> bool:
    import pyarrow.compute as pc

    lengths = pc.min_max(pc.list_value_length(values)).as_py()
    return bool(lengths["min"] == lengths["max"] == width)


def import_parquet() -> None:
    """Raise `MissingPackageError` where pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise MissingPackageError("Reading Parquet and Arrow files", "parquet", error) from None


def _files(path: Path) -> tuple[list[Path], list[Path]]:
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path] if path.is_file() else []
    test = [file for file in files if path.is_dir() and file.name.startswith("test")]
    return [file for file in files if file not in test], test


def _read(path: str | Path, files: list[Path]) -> Any:
    import_parquet()
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        heads = [pq.read_metadata(file) for file in files]
        groups = [head.row_group(n) for head in heads for n in range(head.num_row_groups)]
        check_fits(path, 2 * sum(group.total_byte_size for group in groups))
        # By the names of the columns, whatever order a file has them in.
        tables = [pq.read_table(file) for file in files]
        return pa.concat_tables(tables, promote_options="default")
    except (pa.ArrowException, OSError) as error:
        raise CorruptFileError(
            f"{path} is truncated, damaged or no Parquet ({_first_line(error)}): save it again."
        ) from None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
