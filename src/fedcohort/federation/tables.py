"""From the columns of a table to arrays: one set of rules for Parquet, CSV, Arrow, Hugging Face.

- targets: the column ``y``, ``label``, ``labels`` or ``target``;
- clients: ``client``, ``client_id`` or ``user_id``; without one a skew divides the samples;
- samples: the column ``x``, ``image``, ``img`` or ``features``: numbers, lists of numbers (all of
  one length), or pictures (PNG or another format that Pillow reads). Without one, every other
  column but pandas' row numbers is a column of a table, in the order of the first file, and must
  hold numbers.

Of each group the first that is there is taken; where the other columns make a sample, a second one
is refused, since it would tell the model what it is to learn. Capitals, and spaces around a name,
do not count, but a name that is written as above comes first, and ``X`` is a column like others.
Where Hugging Face's description says what the classes are called, they keep their names and order.
The targets' task is told from their type as `fedcohort.federation.arrays` says.
"""

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedcohort.errors import InvalidInputError, MissingPackageError
from fedcohort.federation.reading import number_in, place_of

TARGET_COLUMNS = ("y", "label", "labels", "target")
CLIENT_COLUMNS = ("client", "client_id", "user_id")
SAMPLE_COLUMNS = ("x", "image", "img", "features")
# What pandas calls the row numbers of a table that it writes, and of one that it has read again.
_ROW_NUMBERS = re.compile(r"|__index_level_\d+__|Unnamed: 0")


def arrays_of(
    path: str | Path,
    columns: Sequence[str],
    column: Callable[[str], Any],
    suffix: str = "",
    first: Sequence[str] | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """Return ``x``, ``y`` and, if there, ``client``, each with `suffix` added to its name.

    ``column(name)`` returns a column's values: an array, or one value for each row. The suffix of a
    table of test samples is ``"_test"``. Where this is not the only table, `first` has the columns
    of the first one: what makes a sample there does here too, in the same order.
    """
    check_names(path, columns)
    target = first_of(TARGET_COLUMNS, columns)
    client = first_of(CLIENT_COLUMNS, columns)
    if target is None:
        raise InvalidInputError(
            f"{path} has no column for the targets, only {', '.join(columns) or 'none'}: call it "
            f"{' or '.join(TARGET_COLUMNS)}."
        )
    names = _sample_columns(columns if first is None else first)
    if odd := set(names).symmetric_difference(_sample_columns(columns)):
        raise InvalidInputError(
            f"In {path}, not every table has {', '.join(sorted(odd))}: give all the same columns."
        )
    if not names:
        raise InvalidInputError(
            f"{path} has no column for the samples: call it {' or '.join(SAMPLE_COLUMNS)}, or add "
            "columns of numbers."
        )
    arrays = {f"y{suffix}": as_array(path, target, column(target))}
    if client is not None:
        arrays[f"client{suffix}"] = as_array(path, client, column(client))
    if known_as(names[0]) in SAMPLE_COLUMNS:
        return arrays | {f"x{suffix}": as_array(path, names[0], column(names[0]))}
    for role, taken in ((TARGET_COLUMNS, target), (CLIENT_COLUMNS, client)):
        if (other := first_of(role, names)) is not None:
            raise InvalidInputError(
                f"{path} has the columns {taken} and {other}, of which one alone can be meant: "
                "rename or leave out the other."
            )
    parts = [_numbers(path, name, as_array(path, name, column(name))) for name in names]
    return arrays | {f"x{suffix}": np.stack(parts, axis=1)}


def check_names(path: str | Path, columns: Sequence[str]) -> None:
    """Refuse a table in which a name does not say which column is meant."""
    if twice := [name for name, count in Counter(columns).items() if count > 1]:
        raise InvalidInputError(f"{path} has several columns {twice[0]}: give each its own name.")
    for role in (*TARGET_COLUMNS, *CLIENT_COLUMNS, *SAMPLE_COLUMNS):
        if len(alike := [name for name in columns if known_as(name) == role]) > 1:
            raise InvalidInputError(
                f"{path} has the columns {alike[0]!r} and {alike[1]!r}, of which one alone can be "
                f"meant by {role}: rename or leave out the other."
            )


def as_array(path: str | Path, name: str, values: Any) -> npt.NDArray[Any]:
    """Return a column as an array, pictures as [N, channels, H, W] or [N, H, W]."""
    if not isinstance(values, np.ndarray):
        values = _from_rows(path, name, list(values))
    if values.dtype == object:
        values = _from_rows(path, name, values.tolist())
    return np.asarray(values)


def class_names_of(features: Any, columns: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the classes in Hugging Face's description of the columns, if any.

    A column is described by a dict in a file, and by an object in a `datasets.Dataset`.
    """
    target = first_of(TARGET_COLUMNS, tuple(columns))
    said = features.get(target) if isinstance(features, dict) else None
    names = said.get("names") if isinstance(said, dict) else getattr(said, "names", None)
    return tuple(str(name) for name in names) if names else ()


def features_in(metadata: dict[bytes, bytes] | None) -> Any:
    """Return Hugging Face's description of the columns from an Arrow schema's metadata."""
    try:
        return json.loads((metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}


def first_of(wanted: Sequence[str], columns: Sequence[str]) -> str | None:
    """Return the column that has the first of some names, if any."""
    written = {column: column for column in columns}
    known = {known_as(column): column for column in columns}
    found = (names[name] for names in (written, known) for name in wanted if name in names)
    return next(found, None)


def known_as(column: str) -> str:
    """Return the name by which a column's role is told."""
    # Beside Y and Z, a capital X is a coordinate.
    return column if column == "X" else column.strip().casefold()


def _sample_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns that make a sample: one that holds samples, or all that have no role."""
    if (sample := first_of(SAMPLE_COLUMNS, columns)) is not None:
        return [sample]
    roles = (first_of(TARGET_COLUMNS, columns), first_of(CLIENT_COLUMNS, columns))
    return [n for n in columns if n not in roles and not _ROW_NUMBERS.fullmatch(n)]


def _from_rows(path: str | Path, name: str, rows: list[Any]) -> npt.NDArray[Any]:
    if any(row is None for row in rows):
        empty = next(place for place, row in enumerate(rows) if row is None)
        raise InvalidInputError(
            f"In {path}, {name} is empty in {place_of(path, empty)}: remove or fill it."
        )
    if rows and _is_picture(rows[0]):
        rows = [_pixels(path, name, place, row) for place, row in enumerate(rows)]
    try:
        array = np.array(rows)
    except ValueError:
        raise InvalidInputError(
            f"In {path}, the rows of {name} are not all of one shape: bring them to one."
        ) from None
    if array.dtype == object:
        kinds = sorted({type(value).__name__ for value in array.flat})
        raise InvalidInputError(
            f"In {path}, {name} holds values of type {' and '.join(kinds)}, which NumPy has no "
            "numbers for: turn them into numbers or leave the column out."
        )
    return array


def _numbers(path: str | Path, name: str, values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if values.ndim == 1 and values.dtype.kind in "biuf":
        return values.astype(np.float32, copy=False)
    texts = enumerate(values.tolist() if values.dtype.kind == "U" else ())
    odd = ((row, text) for row, text in texts if number_in(text) is None)
    found = (f" ({text!r:.40} in {place_of(path, row)})" for row, text in odd)
    raise InvalidInputError(
        f"In {path}, the column {name} does not hold one number per row{next(found, '')}: turn it "
        "into numbers or leave it out."
    )


def _is_picture(row: Any) -> bool:
    encoded = isinstance(row, bytes) or (isinstance(row, dict) and "bytes" in row)
    return encoded or hasattr(row, "getbands")


def _pixels(path: str | Path, name: str, place: int, row: Any) -> npt.NDArray[Any]:
    """Return a picture, encoded or already Pillow's, as [channels, H, W] or [H, W].

    It is uint8 unless its pixels have more than 8 bits.
    """
    if not hasattr(row, "getbands"):
        try:
            from PIL import Image
        except ImportError as error:
            raise MissingPackageError("Reading pictures", "sim", error) from None
        content = row["bytes"] if isinstance(row, dict) else row
        try:
            row = Image.open(io.BytesIO(content))
            row.load()
        except (OSError, TypeError, ValueError):
            raise InvalidInputError(
                f"In {path}, {name} is no picture that can be read in row {place}: save PNGs."
            ) from None
    # Those with an I or F are integers and floats of up to 32 bits, which RGB would cut to 255.
    if row.mode not in ("L", "RGB", "RGBA") and row.mode[0] not in "IF":
        row = row.convert("RGB")
    pixels = np.asarray(row)
    return pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels
