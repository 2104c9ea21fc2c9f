"""The digits of scikit-learn, one class to a client (the paper's ξ = 1)."""

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 10
_TEST_SHARE = 5


def _digits(*, test: bool) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    digits = load_digits()
    chosen = (np.arange(len(digits.target)) % _TEST_SHARE == 0) == test
    return (digits.data[chosen] / 16).astype(np.float32), digits.target[chosen].astype(np.int64)


def client_data(partition: int, clients: int, batch_size: int) -> DataLoader:
    """Return the batches of one client, which holds a single class."""
    x, y = _digits(test=False)
    kind = partition % CLASSES
    rank = partition // CLASSES
    sharing = len(range(kind, clients, CLASSES))
    mine = np.flatnonzero(y == kind)[rank::sharing]
    tensors = TensorDataset(torch.from_numpy(x[mine]), torch.from_numpy(y[mine]))
    return DataLoader(tensors, batch_size=batch_size, shuffle=True)


def test_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the test set, which the server evaluates on."""
    x, y = _digits(test=True)
    return torch.from_numpy(x), torch.from_numpy(y)
