"""The model, and a site's share of the data, for training and for the selector's queries."""

import functools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedcohort.federation import Dataset, build_federation, load_dataset

DATASET, SKEW, SITES = "mnist", "dirichlet:0.1", 10
_MOST_SAMPLES = 1000


class Net(nn.Module):
    """A small convolutional network for images of 28 × 28."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc1 = nn.Linear(16 * 7 * 7, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes."""
        x = nn.functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = nn.functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


@functools.cache
def dataset() -> Dataset:
    """Return the data set, downloaded once."""
    return load_dataset(DATASET)


@functools.cache
def batches_of(site: str) -> DataLoader:
    """Return the batches of site-1, site-2, …, a few classes each."""
    data = dataset()
    federation = build_federation(data, skew=SKEW, clients=SITES, seed=0)
    mine = federation.partition.of(int(site.rpartition("-")[2]) - 1)[:_MOST_SAMPLES]
    tensors = TensorDataset(scaled(data.x_train[mine]), torch.tensor(data.y_train[mine]))
    return DataLoader(tensors, batch_size=50, shuffle=True)


def scaled(images: object) -> torch.Tensor:
    """Return images as the model takes them."""
    return torch.tensor(images).float() / dataset().scale


def load(site: str) -> tuple[nn.Module, DataLoader]:
    """Return what `fedcohort.nvflare.TorchQueryExecutor` answers with."""
    return Net(), batches_of(site)
