"""The data sets by name: embedded digits, MNIST, Fashion-MNIST, or a user's own ``.npz``."""

import struct

import numpy as np
import numpy.typing as npt

from fedcohort.errors import DatasetError, UnknownNameError
from fedcohort.federation.dataset import Dataset
from fedcohort.federation.download import Progress, fetch
from fedcohort.federation.npz import load_npz
from fedcohort.federation.sources import (
    SOURCES,
    TEST_IMAGES,
    TEST_LABELS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
    Source,
    find_file,
    locate,
    read_verified,
)
from fedcohort.randomness import generator

DATASETS = ("digits", *SOURCES)


def load_dataset(spec: str, *, progress: Progress | None = None) -> Dataset:
    """Load a data set by its name or its file.

    Parameters
    ----------
    spec : str
        ``digits`` (embedded in scikit-learn), ``mnist``, ``fashion-mnist``, or the path of a
        ``.npz`` file (see `load_npz`).
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
        When a ``.npz`` file cannot be used.
    """
    if spec.lower().endswith(".npz"):
        return load_npz(spec)
    if spec == "digits":
        return _load_digits()
    if spec in SOURCES:
        return _load_idx(SOURCES[spec], progress)
    raise UnknownNameError("data set", spec, (*DATASETS, "FILE.npz"))


def _load_digits() -> Dataset:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DatasetError(
            "digits is embedded in scikit-learn, which is not installed: "
            "pip install 'fedcohort[sim]'."
        ) from None
    bundle = load_digits()
    images = bundle.images.astype(np.uint8)[:, None]
    labels = bundle.target.astype(np.int64)
    # The split belongs to the data set, not to a run: it has one seed for everyone.
    rng = generator(0, "digits test split")
    in_test = np.zeros(len(labels), dtype=bool)
    for value in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == value))
        in_test[members[: round(0.2 * len(members))]] = True
    return Dataset(
        name="digits",
        x_train=images[~in_test],
        y_train=labels[~in_test],
        x_test=images[in_test],
        y_test=labels[in_test],
        classes=10,
        scale=16.0,
        class_names=tuple(str(value) for value in bundle.target_names),
    )


def _load_idx(source: Source, progress: Progress | None) -> Dataset:
    folder = locate(source) or fetch(source.name, progress=progress, source=source)

    def read(name: str) -> npt.NDArray[np.uint8]:
        path = find_file(folder, name)
        if path is None:
            raise DatasetError(f"{folder / name} vanished while {source.name} was being read.")
        return parse_idx(read_verified(path, source))

    return Dataset(
        name=source.name,
        x_train=read(TRAIN_IMAGES)[:, None],
        y_train=read(TRAIN_LABELS).astype(np.int64),
        x_test=read(TEST_IMAGES)[:, None],
        y_test=read(TEST_LABELS).astype(np.int64),
        classes=10,
        scale=255.0,
        class_names=source.class_names,
    )


def parse_idx(content: bytes) -> npt.NDArray[np.uint8]:
    """Read an array from the idx format: magic number, big-endian dimensions, bytes."""
    dimensions = content[3]
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    values = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions)
    return values.reshape(shape).copy()  # torch does not take arrays that cannot be written to
