"""Files that appear whole or not at all, and outlast a power cut."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from fedcohort.errors import StoreError


def unwritable(folder: Path, error: Exception) -> StoreError:
    """Return the error of a folder that cannot be written to just now."""
    return StoreError(
        f"The results in {str(folder)!r} cannot be written ({error}): what was saved before is"
        " whole; make room and give the same command again to resume."
    )


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write to, which takes the place of `path` if nothing goes wrong.

    Raises
    ------
    StoreError
        When it cannot be written.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(exist_ok=True)
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync(path.parent)
    except OSError as error:
        raise unwritable(path.parent.parent, error) from error


def _sync(folder: Path) -> None:
    """Make a rename outlast a power cut, where folders can be synchronised."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
