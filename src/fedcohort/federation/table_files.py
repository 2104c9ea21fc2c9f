"""A user's own data in tables, Parquet or CSV: one file, or a folder of them."""

import csv
import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fedcohort.errors import CorruptFileError, InvalidInputError, MissingPackageError
from fedcohort.federation.arrow import dataset_of, import_parquet
from fedcohort.federation.dataset import Dataset
from fedcohort.federation.memory import check_fits
from fedcohort.federation.reading import csv_rows, unreadable
from fedcohort.federation.tables import CLIENT_COLUMNS, TARGET_COLUMNS, check_names, known_as


def load_table(path: str | Path, task: str | None = None) -> Dataset:
    """Load a user's own data from tables.

    Parameters
    ----------
    path : str or Path
        A ``.parquet`` or ``.csv`` file, or a folder of one of these; its files are read in the
        order of their names, and those whose names begin or end with the word ``test`` hold test
        samples. The columns are told by their names, as `fedcohort.federation.tables` says. A CSV
        file is UTF-8 with commas, its first line names the columns, and what pandas takes for a
        missing value (nothing, NA, NaN, …) is one unless it is quoted. Its targets or clients are
        text where a number among them begins with 0, as in 007.
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
    tables = _read(path, train), _read(path, test) if test else None
    files = [part[0] if len(part) == 1 else path for part in (train, test)]
    return dataset_of(path, *tables, task, (files[0], files[1]))


def table_columns(path: Path) -> tuple[str, ...]:
    """Return the names of the columns; nothing when they cannot be read."""
    try:
        train, _ = _files(path)
        return _format(train).columns(train[0]) if train else ()
    except MissingPackageError:
        raise
    except Exception:
        return ()


def has_tables(folder: Path) -> bool:
    """Tell whether a folder holds tables to train on."""
    return bool(_files(folder)[0])


def _files(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the files for training and those for testing, all of one format."""
    if not path.is_dir():
        return ([path] if path.is_file() else []), []
    files = sorted(file for file in path.glob("*") if file.suffix.lower() in FORMATS)
    if folders := [file for file in files if file.is_dir()]:
        raise InvalidInputError(
            f"{folders[0]} is a folder and no table: move its files to {path}, or take it out."
        )
    if len(formats := {file.suffix.lower() for file in files}) > 1:
        raise InvalidInputError(
            f"{path} holds {' and '.join(sorted(formats))} files: keep those of one format there."
        )
    test = [file for file in files if _is_for_testing(file)]
    return [file for file in files if file not in test], test


def _is_for_testing(file: Path) -> bool:
    words = [word.lower() for word in _BETWEEN_WORDS.split(file.stem) if word]
    held_out = [word for word in words if word.startswith("test") or word in _VALIDATION]
    if held_out and (set(held_out) != {"test"} or "test" not in (words[0], words[-1])):
        raise InvalidInputError(
            f"The name of {file} does not tell what it is for: take it out of the folder or rename "
            "it (names of test files begin or end with the word test)."
        )
    return bool(held_out)


_BETWEEN_WORDS = re.compile(r"[\W\d_]+|(?<=[a-z])(?=[A-Z])")
_VALIDATION = ("val", "valid", "validation")


def _read(path: str | Path, files: list[Path]) -> Any:
    import_parquet()
    import pyarrow as pa

    kind = _format(files)
    try:
        check_fits(path, sum(map(kind.needed, files)))
        tables = kind.read(files)
        for table in tables:
            check_names(path, table.column_names)
    except PermissionError as error:
        raise unreadable(path, error) from None
    except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error) as error:
        raise CorruptFileError(
            f"{path} is truncated, damaged or no {kind.name} ({_first_line(error)}): save it again."
        ) from None
    try:
        return _joined(tables)
    except pa.ArrowException:
        _refuse_odd_column(path, dict(zip(files, tables, strict=True)))
        raise


def _joined(tables: Iterable[Any]) -> Any:
    import pyarrow as pa

    # By the names of the columns, whatever order a file has them in.
    return pa.concat_tables(tables, promote_options="permissive")


def _refuse_odd_column(path: str | Path, tables: dict[Path, Any]) -> None:
    import pyarrow as pa

    for name in dict.fromkeys(name for table in tables.values() for name in table.column_names):
        columns = {
            file: table.select([name])
            for file, table in tables.items()
            if name in table.column_names
        }
        try:
            _joined(columns.values())
        except pa.ArrowException:
            types = {column.schema.types[0]: file.name for file, column in columns.items()}
            listed = " and ".join(f"{kind} in {file}" for kind, file in types.items())
            raise InvalidInputError(
                f"In {path}, {name} is {listed}: give it one type in all files."
            ) from None


@dataclasses.dataclass(frozen=True)
class _Format:
    """How files with tables are read: a file's columns, about what memory it takes, all files."""

    name: str
    columns: Callable[[Path], tuple[str, ...]]
    needed: Callable[[Path], int]
    read: Callable[[Sequence[Path]], list[Any]]


def _format(files: Sequence[Path]) -> _Format:
    if (suffix := files[0].suffix.lower()) not in FORMATS:
        raise InvalidInputError(
            f"{files[0]} is no table that can be read: save it as {' or '.join(FORMATS)}."
        )
    return FORMATS[suffix]


def _parquet_columns(file: Path) -> tuple[str, ...]:
    import_parquet()
    import pyarrow.parquet as pq

    return tuple(pq.read_schema(file).names)


def _parquet_bytes(file: Path) -> int:
    import pyarrow.parquet as pq

    head = pq.read_metadata(file)
    return int(2 * sum(head.row_group(n).total_byte_size for n in range(head.num_row_groups)))


def _read_parquet(files: Sequence[Path]) -> list[Any]:
    import pyarrow.parquet as pq

    return [pq.read_table(file) for file in files]


def _csv_columns(file: Path) -> tuple[str, ...]:
    return tuple(next(csv_rows(file), (0, []))[1])


def _csv_bytes(file: Path) -> int:
    """Return what a file takes in memory if it goes on as it begins."""
    with file.open("rb") as stream:
        head = stream.read(2**20)
    values = head.count(b",") + head.count(b"\n")
    # As text it is read ahead and parsed. A value takes 8 bytes while its column's type is open
    # and 8 when it is told, then 4 in each of two float copies.
    return int(file.stat().st_size * (2 + 24 * values / max(1, len(head))))


def _read_csv(files: Sequence[Path]) -> list[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    # As numbers, the clients 1 and 01 would be one.
    padded: dict[str, Any] = {}
    for file in files:
        columns = _csv_columns(file)
        _check_separator(file, columns)
        roles = {
            name: pa.string()
            for name in columns
            if known_as(name) in (*TARGET_COLUMNS, *CLIENT_COLUMNS)
        }
        table = _csv_table(file, column_types=roles, include_columns=list(roles))
        padded |= {
            name: kind
            for name, kind in roles.items()
            if pc.any(pc.match_substring_regex(table[name], r"^\s*0\d+\s*$")).as_py()
        }
    return [_csv_table(file, column_types=padded) for file in files]


def _csv_table(file: Path, **options: Any) -> Any:
    import pyarrow as pa
    import pyarrow.csv as pc

    # An empty label is no class of its own.
    nulls = {"strings_can_be_null": True, "quoted_strings_can_be_null": False}
    try:
        table = pc.read_csv(
            file,
            parse_options=pc.ParseOptions(newlines_in_values=True),
            convert_options=pc.ConvertOptions(**nulls, **options),
        )
    except pa.ArrowInvalid:
        _refuse_ragged(file)
        raise
    if any(map(pa.types.is_binary, table.schema.types)):
        raise pa.ArrowInvalid("its text is not UTF-8")
    return table


def _check_separator(file: Path, columns: Sequence[str]) -> None:
    signs = [sign for sign in (";", "\t", "|") if len(columns) == 1 and sign in columns[0]]
    if signs:
        raise InvalidInputError(
            f"{file} has {signs[0]!r} between its columns: save it with commas there, and with "
            "points in its numbers."
        )


def _refuse_ragged(file: Path) -> None:
    columns = len(_csv_columns(file))
    for line, row in csv_rows(file):
        if len(row) != columns:
            raise CorruptFileError(
                f"{file} has {columns} columns but {len(row)} values in line {line}: give each "
                "column one."
            )


FORMATS = {
    ".parquet": _Format("Parquet", _parquet_columns, _parquet_bytes, _read_parquet),
    ".csv": _Format("CSV in UTF-8", _csv_columns, _csv_bytes, _read_csv),
}


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
