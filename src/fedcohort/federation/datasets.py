"""The data sets by name, and what else `load_dataset` takes: a file or a folder of one's own."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from pathlib import Path

from fedcohort.errors import InvalidInputError, UnknownNameError
from fedcohort.federation.array_folder import load_array_folder
from fedcohort.federation.by_writer import QMNIST, load_mnist_by_writer
from fedcohort.federation.cifar10 import CIFAR_10, load_cifar10
from fedcohort.federation.dataset import Dataset
from fedcohort.federation.digits import load_digits
from fedcohort.federation.download import ensure
from fedcohort.federation.huggingface import is_saved_to_disk, load_huggingface, saved_columns
from fedcohort.federation.idx import FASHION_MNIST, MNIST, load_idx
from fedcohort.federation.npz import load_npz, npz_names
from fedcohort.federation.reading import unreadable
from fedcohort.federation.shakespeare import SHAKESPEARE, load_shakespeare
from fedcohort.federation.sources import Source
from fedcohort.federation.table_files import FORMATS, has_tables, load_table, table_columns
from fedcohort.federation.tables import CLIENT_COLUMNS, first_of
from fedcohort.federation.transfer import Progress


@dataclasses.dataclass(frozen=True)
class NamedDataset:
    """A data set that comes with fedcohort.

    Parameters
    ----------
    load : callable
        Loads it; given ``progress`` where it has files.
    sources : tuple of Source
        The files that it is made from.
    own_clients : bool
        Whether it says itself who holds what, so that no skew applies.

    Examples
    --------
    >>> DATASETS["shakespeare"].own_clients
    True
    """

    load: Callable[..., Dataset]
    sources: tuple[Source, ...] = ()
    own_clients: bool = False


DATASETS = {
    "digits": NamedDataset(load_digits),
    "mnist": NamedDataset(functools.partial(load_idx, MNIST), (MNIST,)),
    "fashion-mnist": NamedDataset(functools.partial(load_idx, FASHION_MNIST), (FASHION_MNIST,)),
    "cifar-10": NamedDataset(load_cifar10, (CIFAR_10,)),
    "mnist-by-writer": NamedDataset(load_mnist_by_writer, (MNIST, QMNIST), own_clients=True),
    "shakespeare": NamedDataset(load_shakespeare, (SHAKESPEARE,), own_clients=True),
}

_PICTURES = (".png", ".jpg", ".jpeg")


def load_dataset(
    spec: str | Path, *, task: str | None = None, progress: Progress | None = None
) -> Dataset:
    """Load a data set by its name, its file or its folder.

    Parameters
    ----------
    spec : str or Path
        A name in `DATASETS`, or a path: a ``.npz`` file (`load_npz`), a ``.parquet`` or ``.csv``
        file or a folder of them (`load_table`), a folder of ``.npy`` files (`load_array_folder`),
        or what ``save_to_disk`` of Hugging Face's `datasets` wrote (`load_huggingface`).
    task : str, optional
        What is learned, one of `TASKS`; told from the targets if not given. A data set that comes
        with fedcohort has one task alone.
    progress : callable, optional
        Told (file name, bytes done, bytes in all or None) while a data set is downloaded.

    Raises
    ------
    UnknownNameError
        When there is no such data set.
    CorruptFileError
        When a file on disk is damaged.
    DownloadError
        When the data set is not on this machine and no source answers.
    InvalidInputError
        When a file or folder cannot be used.

    Examples
    --------
    >>> load_dataset("digits").x_train.shape
    (1438, 1, 8, 8)
    """
    spec = str(spec)
    try:
        if spec in DATASETS:
            named = DATASETS[spec]
            dataset = named.load(progress=progress) if named.sources else named.load()
            return check_task(dataset, task)
        return _load_own(spec, task)
    except OSError as error:
        raise unreadable(error.filename or spec, error) from None


def _load_own(spec: str, task: str | None) -> Dataset:
    if spec.lower().endswith(".npz"):
        return load_npz(spec, task)
    if spec.lower().endswith(tuple(FORMATS)):
        return load_table(spec, task)
    folder = Path(spec)
    if not spec or not folder.is_dir():
        files = (f"FILE{suffix}" for suffix in (".npz", *FORMATS))
        raise UnknownNameError("data set", spec, (*DATASETS, *files, "FOLDER"))
    if is_saved_to_disk(folder):
        return load_huggingface(folder, task)
    if (folder / "x.npy").is_file():
        return load_array_folder(folder, task)
    if has_tables(folder):
        return load_table(folder, task)
    inside = itertools.chain(folder.glob("*/*"), folder.glob("*/*/*"))
    remedy = "put one of them there"
    if any(file.suffix.lower() in _PICTURES for file in inside):
        made = f"datasets.load_dataset('imagefolder', data_dir={spec!r}).save_to_disk('mine')"
        remedy = f"for pictures in folders, write the last with {made} in Python"
    raise InvalidInputError(
        f"The folder {spec} holds neither x.npy, nor {' or '.join(FORMATS)} files to train on, nor "
        f"a data set that save_to_disk wrote: {remedy}."
    )


def check_task(dataset: Dataset, task: str | None) -> Dataset:
    """Return a data set, or refuse it where another task is wanted than the one it has."""
    if task not in (None, dataset.task):
        raise InvalidInputError(
            f"task of the run is {task!r}, and {dataset.name} is made for {dataset.task}: leave the"
            " task out."
        )
    return dataset


def has_own_clients(spec: str | Path) -> bool:
    """Tell whether a data set says itself who holds what, without loading it.

    A file or folder does when it has an array or a column for clients; one that cannot be read
    does not, and `load_dataset` will say why.

    Parameters
    ----------
    spec : str or Path
        As in `load_dataset`.

    Examples
    --------
    >>> has_own_clients("shakespeare"), has_own_clients("digits")
    (True, False)
    """
    spec, path = str(spec), Path(spec)
    if spec in DATASETS:
        return DATASETS[spec].own_clients
    if spec.lower().endswith(".npz"):
        return "client" in npz_names(spec)
    try:
        if (path / "x.npy").is_file():
            return (path / "client.npy").is_file()
        columns = saved_columns(path) if is_saved_to_disk(path) else table_columns(path)
    except OSError:
        return False
    return first_of(CLIENT_COLUMNS, columns) is not None


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
        A name in `DATASETS` that has files, or that of one of its sources (``qmnist``).
    progress : callable, optional
        Told (file name, bytes done, bytes in all or None) as bytes arrive.
    source : Source, optional
        Where to get it from, instead of the public sources.
    timeout : float, default 30
        Seconds without a byte after which a mirror is given up.

    Returns
    -------
    Path
        The folder with the files; of a data set with several sources, that of the last.

    Raises
    ------
    CorruptFileError
        When a file outside the user cache is damaged.
    DownloadError
        When no source delivers.

    Examples
    --------
    >>> fetch("mnist")  # doctest: +SKIP
    """
    known = {key: named.sources for key, named in DATASETS.items() if named.sources}
    for named in DATASETS.values():
        known |= {each.name: (each,) for each in named.sources if each.name not in known}
    if source is not None:
        known = {name: (source,)}
    if name not in known:
        raise UnknownNameError("data set to fetch", name, known)
    folders = [ensure(each, progress=progress, timeout=timeout) for each in known[name]]
    return folders[-1]
