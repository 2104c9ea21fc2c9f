"""Theorem 1 of the paper on real data: the part that linearity makes exact.

The variance and normality that it also claims rest on assumptions that images do not meet;
`benchmarks/theorem1.py` measures by how much, and the docs say so.
"""

import pytest
import torch

from fedcohort.profiles import fc1_profiles
from fedcohort.simulation import RunConfig
from fedcohort.simulation.device_data import load_device_data
from fedcohort.simulation.materials import Materials


def _class_outputs(name, label):
    config, materials = RunConfig(dataset=name, eval_samples=1), Materials()
    model = materials.model(config)
    x, y = load_device_data(materials.dataset(config), config, torch.device("cpu")).train
    own = torch.nonzero(y == label)[:, 0][:3000]
    inputs = []
    handle = model.fc1.register_forward_pre_hook(lambda _m, given: inputs.append(given[0]))
    with torch.no_grad():
        model(x[own])
    handle.remove()
    profile = fc1_profiles(model, x, own, torch.tensor([len(own)]))[0]
    return model.fc1, torch.cat(inputs).double(), profile.double()


@pytest.mark.parametrize("label", [0, 5, 8])
def test_the_mean_output_follows_from_the_mean_input_on_digits(label):
    _check_mean(*_class_outputs("digits", label))


@pytest.mark.usefixtures("mnist")
def test_the_mean_output_follows_from_the_mean_input_on_mnist():
    _check_mean(*_class_outputs("mnist", 5))


def _check_mean(layer, inputs, profile):
    weight, bias = layer.weight.detach().double(), layer.bias.detach().double()
    expected = inputs.mean(0) @ weight.T + bias
    assert torch.allclose(profile, expected, atol=1e-5)
