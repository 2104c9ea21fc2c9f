"""Digits, a few classes to each partition."""

import importlib.util
import pathlib

import numpy as np

# From scikit-learn's folder: to import it takes every client's process more than a second.
FOLDER = pathlib.Path(importlib.util.find_spec("sklearn").origin).parent


def share(partition: int, partitions: int):
    """Return inputs [n, 64] and labels [n] of one client."""
    digits = np.loadtxt(FOLDER / "datasets/data/digits.csv.gz", np.float32, delimiter=",")
    inputs, labels = digits[:, :64] / 16, digits[:, 64].astype(np.int64)
    mine = labels * partitions // 10 == partition % partitions
    mine |= np.arange(len(labels)) % 17 == partition
    return inputs[mine], labels[mine]
