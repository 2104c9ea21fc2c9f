"""What readers of users' files share: rows and cells, which is wrong, and what cannot be read."""

import contextlib
import csv
import itertools
from collections.abc import Iterator
from pathlib import Path

from fedcohort.errors import InvalidInputError


def place_of(path: str | Path, row: int) -> str:
    """Say which row it is: of a CSV file the line that it ends in, otherwise the array's row."""
    if Path(path).suffix.lower() == ".csv":
        with contextlib.suppress(OSError, ValueError, csv.Error, StopIteration):
            line, _ = next(itertools.islice(csv_rows(Path(path)), row + 1, None))
            return f"line {line}"
    return f"row {row}"


def csv_rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Give each row's line, counted from 1, and its values; those of the first name the columns."""
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines)
        yield from ((reader.line_num, row) for row in reader if row)


def number_in(text: str) -> float | None:
    """Return the number that a cell holds, which may be infinite or NaN; None if it holds none."""
    try:
        return float(text)
    except ValueError:
        return None


def unreadable(path: str | Path, error: OSError) -> InvalidInputError:
    """Return what refuses a file or folder that the system does not let us read."""
    return InvalidInputError(
        f"{path} cannot be read ({error.strerror or error}): check the path and its permissions."
    )
