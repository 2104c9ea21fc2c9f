"""Files that appear whole or not at all, and outlast a power cut."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from fedcohort.errors import UnwritableFileError


@contextlib.contextmanager
def replace_file(
    path: Path, advice: str = "choose another place.", *, private: bool = False
) -> Iterator[BinaryIO]:
    """Yield a file to write to, which takes the place of `path` if nothing goes wrong.

    Its folder is made if there is none. If `private`, its owner alone may read it, from its first
    byte on. Raises `UnwritableFileError`, with `advice` on what to do, when it cannot be written;
    what was there before is whole.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.unlink(missing_ok=True)
            mode = 0o600 if private else 0o666
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise UnwritableFileError(
            f"The file {str(path)!r} cannot be written ({error}): {advice}"
        ) from error


def make_folder(folder: Path) -> None:
    """Make a folder that files are to go into, or raise `UnwritableFileError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnwritableFileError(
            f"The folder {str(folder)!r} cannot be made ({error.strerror}): choose another place."
        ) from error


def sync_folder(folder: Path) -> None:
    """Make a rename outlast a power cut, where folders can be synchronised."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
