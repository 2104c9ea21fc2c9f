"""The model, and how it is trained and tested."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torch_quickstart.data import share


class Net(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def load_data(partition: int, partitions: int):
    x, y = share(partition, partitions)
    return DataLoader(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), 32, shuffle=True)


def train(net, batches, epochs, rate):
    optimiser = torch.optim.SGD(net.parameters(), lr=rate)
    total = 0.0
    for _ in range(epochs):
        for x, y in batches:
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimiser.step()
            total += loss.item()
    return total / (epochs * len(batches))


def test(net, batches):
    with torch.no_grad():
        right = sum((net(x).argmax(1) == y).sum().item() for x, y in batches)
    return right / len(batches.dataset)
