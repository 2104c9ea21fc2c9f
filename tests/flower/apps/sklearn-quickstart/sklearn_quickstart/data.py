"""Digits, a few classes to each partition."""

import numpy as np
from sklearn.datasets import load_digits


def share(partition: int, partitions: int):
    """Return inputs [n, 64] and labels [n] of one client."""
    digits = load_digits()
    kind = digits.target * partitions // 10
    mine = kind == partition % partitions
    mine |= np.arange(len(kind)) % 17 == partition
    return (digits.data[mine] / 16).astype(np.float32), digits.target[mine]
