import pytest
import torch
from made_models import made
from torch import nn

from fedcohort.profiles import fc1_profiles
from fedcohort.simulation.profiling import _on_cpu


class Residual(nn.Module):
    """Not a chain."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.second(x + torch.tanh(self.first(x)))


@pytest.mark.parametrize("kind", ["cnn-small", "mlp", Residual])
def test_profiles_made_on_several_cores_are_the_same(kind, monkeypatch):
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(0)
        model = kind() if kind is Residual else made(kind, (1, 8, 8), 10, 0)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(60, 1, 8, 8, generator=generator)
    samples, sizes = torch.randperm(60, generator=generator), torch.tensor([4, 25, 1, *[3] * 10])
    expected = fc1_profiles(model, x, samples, sizes)
    found = []
    for count in (1, 2, 3):
        monkeypatch.setattr("fedcohort.training.workers._limit", count)
        found.append(_on_cpu(model, x, samples, sizes, None))
    assert torch.allclose(found[0], expected, atol=1e-6)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
