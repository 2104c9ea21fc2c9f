import pytest
import torch
from torch import nn

from fedcohort.training.layers import Convolution, NotAChainError, find_chain, read_chain


def test_layers_are_read_however_they_are_written():
    class Written(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 3)
            self.fc = nn.Linear(4 * 3 * 3, 10)

        def forward(self, x):
            x = torch.relu(torch.max_pool2d(self.conv(x), 2))
            return self.fc(x.view(x.size(0), -1))

    convolution, linear = read_chain(Written(), (1, 8, 8))
    assert isinstance(convolution, Convolution)
    assert (convolution.pool, convolution.relu, convolution.image) == (2, True, (3, 3))
    assert (linear.inputs, linear.image, linear.relu) == (36, (4, 3, 3), False)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.Flatten(), nn.Linear(36, 9)), "stride"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 9)), "Tanh"),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(16, 9)), "2×2"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU()), "ReLU"),
        (nn.Sequential(nn.Conv2d(1, 4, 8)), "fully connected"),
        (nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 9)), "LayerNorm"),
    ],
)
def test_what_is_not_known_is_refused_with_the_reason(model, why):
    with pytest.raises(NotAChainError, match=why):
        read_chain(model, (1, 8, 8))
    assert find_chain(model, (1, 8, 8)) is None


def test_a_layer_counts_its_operations():
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3 * 4 * 4, 5)
    )
    convolution, linear = read_chain(model, (2, 8, 8))
    assert convolution.flops == 2 * (3 * 3 * 2) * 3 * 8 * 8, "all that the pool chooses from"
    assert linear.flops == 2 * 48 * 5
