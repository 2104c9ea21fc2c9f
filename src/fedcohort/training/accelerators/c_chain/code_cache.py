"""Compiled code that is kept between processes, and loaded only if it is what was kept.

A file's name ends with the hash of its content, so that a cut or damaged one is never loaded; its
owner and its folder's must be us and nobody else may write there, so that nobody else's code is.
What was hashed is what runs: code is loaded from memory, not from the file a second time, which
also works where the cache's file system forbids to execute.
"""

import contextlib
import ctypes
import hashlib
import os
import stat
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from fedcohort.errors import FedcohortWarning, StoreError
from fedcohort.federation.sources import user_cache
from fedcohort.files import replace_file

_DIGITS = 32


class KernelWarning(FedcohortWarning):
    """Compiled code was refused or cannot be had; results stay right, and may come more slowly."""


def cache_folder() -> Path | None:
    """Return the folder that code is kept in, which is ours alone; None where there is no such."""
    folder = user_cache() / "kernels"
    try:
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        for made in (folder.parent, folder):
            made.mkdir(mode=0o700, exist_ok=True)
        why = _distrust(folder.lstat(), stat.S_ISDIR)
        if why == _WRITABLE:
            for file in folder.iterdir():
                file.unlink()
        elif why:
            _warn(f"The folder {str(folder)!r} is not used for compiled code, since {why}")
            return None
        folder.chmod(0o700)
    except OSError as error:
        _warn(f"Every process compiles for itself, since there is no cache folder ({error})")
        return None
    if why:
        _warn(f"What was in {str(folder)!r} is compiled again, since it was {why}")
    return folder


def kept_code(folder: Path, key: str) -> bytes | None:
    """Return the code that was kept under a key; what cannot be trusted is removed, and said."""
    for file in sorted(folder.glob(f"{key}-*.so")):
        code, why = _read(file)
        if code is not None:
            return code
        _warn(f"The compiled code {str(file)!r} is made again, since {why}")
        with contextlib.suppress(OSError):
            file.unlink()
    return None


def keep_code(folder: Path, key: str, code: bytes) -> None:
    """Keep code under a key, if that can be done."""
    try:
        with replace_file(folder / f"{key}-{_digest(code)}.so") as file:
            os.chmod(file.name, 0o600)
            file.write(code)
    except StoreError as error:
        _warn(f"Every process compiles for itself: {error}")


def load_code(code: bytes) -> ctypes.CDLL | None:
    """Load a library from memory or, where that cannot be done, from a folder of our own."""
    if hasattr(os, "memfd_create"):
        # Never closed: the loader knows a library by this number.
        handle = os.memfd_create("fedcohort-kernels")
        with contextlib.suppress(OSError), open(handle, "wb", closefd=False) as memory:
            memory.write(code)
            memory.flush()
            return ctypes.CDLL(f"/proc/self/fd/{handle}")
    try:
        with tempfile.TemporaryDirectory() as own:
            file = Path(own) / "kernels.so"
            file.write_bytes(code)
            return ctypes.CDLL(str(file))
    except OSError:
        return None


_WRITABLE = "writable by others"


def _read(file: Path) -> tuple[bytes | None, str]:
    """Return a file's content, or None and why it is not to be trusted."""
    try:
        with open(file, "rb", opener=_without_links) as opened:
            if why := _distrust(os.fstat(opened.fileno()), stat.S_ISREG):
                return None, f"it is {why}" if why == _WRITABLE else why
            code = opened.read()
    except OSError as error:
        return None, f"it is a link or cannot be read ({error.strerror})"
    if file.stem.rpartition("-")[2] != _digest(code):
        return None, "it is damaged"
    return code, ""


def _without_links(path: str, flags: int) -> int:
    # Nor wait for who may write to a pipe.
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _distrust(found: os.stat_result, is_kind: Callable[[int], bool]) -> str:
    """Say why a file or folder is not ours alone; nothing if it is."""
    if not is_kind(found.st_mode):
        return "it is a link or of another kind"
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        return "it belongs to another user"
    return _WRITABLE if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and os.name == "posix" else ""


def _digest(code: bytes) -> str:
    return hashlib.sha256(code).hexdigest()[:_DIGITS]


def _warn(sentence: str) -> None:
    warnings.warn(f"{sentence}.", KernelWarning, stacklevel=2)
