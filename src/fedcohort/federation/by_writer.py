"""MNIST by the people who wrote it: each of the 539 training writers is a client.

QMNIST found out where each of MNIST's digits came from in NIST's archive. Its label files give,
for each image in MNIST's order, the class (column 0) and the writer (column 2). The test images
are by 297 other people.

References
----------
Yadav, Bottou, "Cold Case: The Lost MNIST Digits", NeurIPS 2019,
https://github.com/facebookresearch/qmnist.
"""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from fedcohort.errors import CorruptFileError
from fedcohort.federation.dataset import Dataset, IntArray
from fedcohort.federation.download import read_files
from fedcohort.federation.idx import MNIST, load_idx, parse_idx
from fedcohort.federation.sources import Source
from fedcohort.federation.transfer import Progress

_TRAIN = "qmnist-train-labels-idx2-int"
_TEST = "qmnist-test-labels-idx2-int"
_CLASS, _WRITER = 0, 2

QMNIST = Source(
    name="qmnist",
    sha256={
        _TRAIN: "bb1b6e1ec7b04fd5696f1ed50b5f58f8ef195118edd5c93c81783df9740b8ac5",
        _TEST: "92d0ccb8c25f9c6534270fb4be7e1d24a1c6d315edfc8a638bfbd31c70f362dd",
    },
    mirrors=("https://raw.githubusercontent.com/facebookresearch/qmnist/master/{file}.gz",),
)


def load_mnist_by_writer(
    mnist: Source = MNIST, qmnist: Source = QMNIST, progress: Progress | None = None
) -> Dataset:
    """Load MNIST with its writers as clients; they are named by NIST's numbers.

    Raises
    ------
    CorruptFileError
        When the label files speak of other images.
    """
    images = load_idx(mnist, progress)
    labels = {name: parse_idx(content) for name, content in read_files(qmnist, progress).items()}
    client, client_names = _writers(labels[_TRAIN], images.y_train)
    # QMNIST restored 50,000 more test images; MNIST's come first.
    test_client, test_names = _writers(labels[_TEST][: len(images.y_test)], images.y_test)
    return dataclasses.replace(
        images,
        name="mnist-by-writer",
        client=client,
        client_names=client_names,
        test_client=test_client,
        test_client_names=test_names,
    )


def _writers(rows: npt.NDArray[Any], classes: IntArray) -> tuple[IntArray, tuple[str, ...]]:
    if len(rows) != len(classes) or not np.array_equal(rows[:, _CLASS], classes):
        raise CorruptFileError(
            "QMNIST's labels are not those of MNIST's images: fetch mnist-by-writer again."
        )
    writers, numbers = np.unique(rows[:, _WRITER], return_inverse=True)
    return numbers.astype(np.int64), tuple(str(writer) for writer in writers)
