"""The model, a client's share of the data, and plain local training."""

from functools import lru_cache

import torch
import torch.nn.functional as F  # noqa: N812
from flwr.app import UserConfig
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedcohort.federation import Dataset, build_federation, load_dataset


@lru_cache
def dataset_named(name: str) -> Dataset:
    """Return a data set; the embedded digits need no network."""
    return load_dataset(name)


def make_model(config: UserConfig) -> nn.Module:
    """Return the first model, the same on server and clients."""
    dataset = dataset_named(str(config["dataset"]))
    side = dataset.x_train.shape[-1]
    with torch.random.fork_rng():
        torch.manual_seed(int(config["seed"]))
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * (side // 4) ** 2, 128),
            nn.ReLU(),
            nn.Linear(128, dataset.classes),
        )


def client_data(config: UserConfig, partition: int, partitions: int) -> DataLoader:
    """Return the share of one client, split unevenly by label."""
    dataset = dataset_named(str(config["dataset"]))
    federation = build_federation(
        dataset, skew=str(config["skew"]), clients=partitions, seed=int(config["seed"])
    )
    mine = federation.partition.of(partition)
    tensors = _inputs(dataset, dataset.x_train[mine]), torch.from_numpy(dataset.y_train[mine])
    return DataLoader(TensorDataset(*tensors), batch_size=int(config["batch-size"]), shuffle=True)


def test_data(config: UserConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the test set, which the server evaluates on."""
    dataset = dataset_named(str(config["dataset"]))
    return _inputs(dataset, dataset.x_test), torch.from_numpy(dataset.y_test)


def train(model: nn.Module, batches: DataLoader, config: UserConfig) -> float:
    """Train in place and return the mean loss."""
    optimiser = torch.optim.SGD(model.parameters(), lr=float(config["learning-rate"]))
    total, count = 0.0, 0
    for _ in range(int(config["local-epochs"])):
        for x, y in batches:
            loss = F.cross_entropy(model(x), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total, count = total + float(loss.detach()) * len(y), count + len(y)
    return total / count


def _inputs(dataset: Dataset, images: object) -> torch.Tensor:
    return (torch.tensor(images).float() / dataset.scale - dataset.mean) / dataset.std
