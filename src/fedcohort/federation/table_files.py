"""A user's own data in tables, Parquet or CSV: one file, or a folder of them."""

import csv
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedcohort.errors import CorruptFileError, InvalidInputError, MissingPackageError
from fedcohort.federation.arrays import dataset_from_arrays
from fedcohort.federation.dataset import Dataset
from fedcohort.federation.memory import check_fits
from fedcohort.federation.tables import arrays_of, check_names, class_names_of, features_in


def load_table(path: str | Path, task: str | None = None) -> Dataset:
    """Load a user's own data from tables.

    Parameters
    ----------
    path : str or Path
        A ``.parquet`` or ``.csv`` file, or a folder of one of these; its files are read in the
        order of their names, and those whose names begin with ``test`` hold test samples. The
        columns are told by their names, as `fedcohort.federation.tables` says. A CSV file is UTF-8
        with commas, its first line names the columns, and what pandas takes for a missing value
        (nothing, NA, NaN, …) is one unless it is quoted.
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
    >>> table.to_csv("mine.csv", index=False)
    >>> load_table("mine.csv").classes
    3
    """
    train, test = _files(Path(path))
    if not train:
        raise InvalidInputError(f"There is no file for training at {path}: check the path.")
    table = _read(path, train)
    arrays = table_arrays(path, table)
    if test:
        arrays |= table_arrays(path, _read(path, test), "_test", table.column_names)
    return dataset_from_arrays(path, arrays, task)


def table_columns(path: Path) -> tuple[str, ...]:
    """Return the names of the columns; nothing when they cannot be read."""
    train, _ = _files(path)
    try:
        return _format(train).columns(train[0]) if train else ()
    except MissingPackageError:
        raise
    except Exception:
        return ()


def has_tables(folder: Path) -> bool:
    """Tell whether a folder holds tables to train on."""
    return bool(_files(folder)[0])


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
        raise MissingPackageError(
            "Reading Parquet, Arrow and CSV files", "parquet", error
        ) from None


def _files(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the files for training and those for testing, all of one format."""
    if not path.is_dir():
        return ([path] if path.is_file() else []), []
    files = next(filter(None, (sorted(path.glob(f"*{suffix}")) for suffix in FORMATS)), [])
    test = [file for file in files if file.name.startswith("test")]
    return [file for file in files if file not in test], test


def _read(path: str | Path, files: list[Path]) -> Any:
    import_parquet()
    import pyarrow as pa

    kind = _format(files)
    try:
        check_fits(path, 2 * sum(kind.size(file) for file in files))
        tables = [kind.read(file) for file in files]
        for table in tables:
            check_names(path, table.column_names)
        # By the names of the columns, whatever order a file has them in.
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowException, OSError) as error:
        raise CorruptFileError(
            f"{path} is truncated, damaged or no {kind.name} ({_first_line(error)}): save it again."
        ) from None


@dataclasses.dataclass(frozen=True)
class _Format:
    """How files with tables are read: their columns' names, about their bytes, and all of it."""

    name: str
    columns: Callable[[Path], tuple[str, ...]]
    size: Callable[[Path], int]
    read: Callable[[Path], Any]


def _format(files: Sequence[Path]) -> _Format:
    return FORMATS[files[0].suffix.lower()]


def _parquet_columns(file: Path) -> tuple[str, ...]:
    import_parquet()
    import pyarrow.parquet as pq

    return tuple(pq.read_schema(file).names)


def _parquet_bytes(file: Path) -> int:
    import pyarrow.parquet as pq

    head = pq.read_metadata(file)
    return sum(head.row_group(n).total_byte_size for n in range(head.num_row_groups))


def _read_parquet(file: Path) -> Any:
    import pyarrow.parquet as pq

    return pq.read_table(file)


def _csv_columns(file: Path) -> tuple[str, ...]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        return tuple(next(csv.reader(lines)))


def _read_csv(file: Path) -> Any:
    import pyarrow as pa
    import pyarrow.csv as pc

    table = pc.read_csv(
        file,
        parse_options=pc.ParseOptions(newlines_in_values=True),
        # An empty label is no class of its own.
        convert_options=pc.ConvertOptions(
            strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )
    if any(map(pa.types.is_binary, table.schema.types)):
        raise pa.ArrowInvalid("its text is not UTF-8")
    return table


FORMATS = {
    ".parquet": _Format("Parquet", _parquet_columns, _parquet_bytes, _read_parquet),
    ".csv": _Format("CSV", _csv_columns, lambda file: file.stat().st_size, _read_csv),
}


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
