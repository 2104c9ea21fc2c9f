"""A body that is shared, and a head that stays with its client."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torch_advanced.data import share


class Net(nn.Module):
    """Two layers, the second of which is the head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(64, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


def load_data(partition: int, partitions: int):
    x, y = share(partition, partitions)
    return DataLoader(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), 32, shuffle=True)


def train(net, batches, rate):
    optimiser = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    total = 0.0
    for x, y in batches:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimiser.step()
        total += loss.item()
    return total / len(batches)


def test(net, batches):
    with torch.no_grad():
        right = sum((net(x).argmax(1) == y).sum().item() for x, y in batches)
    return right / len(batches.dataset)
