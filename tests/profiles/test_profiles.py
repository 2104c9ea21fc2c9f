import pytest
import torch
import torch.nn.functional as F
from made_models import made
from torch import nn

from fedcohort.errors import InvalidModelError
from fedcohort.profiles import fc1_profiles, gradient_profiles, representative_gradient_profiles

SIZES = torch.tensor([3, 10, 1, 6])


@pytest.fixture
def setting():
    generator = torch.Generator().manual_seed(0)
    model = made("cnn-small", (1, 8, 8), 10, 0)
    x, y = torch.randn(25, 1, 8, 8, generator=generator), torch.arange(25) % 10
    return model, x, y, torch.randperm(25, generator=generator)[:20]


def test_a_profile_is_the_mean_output_of_fc1_before_the_activation(setting):
    model, x, _, samples = setting
    profiles = fc1_profiles(model, x, samples, SIZES, samples_at_once=7)
    own = samples[3:13]
    features = F.max_pool2d(F.relu(model.conv2(F.relu(model.conv1(x[own])))), 2).flatten(1)
    assert profiles.shape == (4, 32)
    assert torch.allclose(profiles[1], model.fc1(features).mean(0), atol=1e-6)
    assert (profiles < 0).any(), "post-activation outputs would not be negative"


def test_a_named_layer_is_read_instead(setting):
    model, x, _, samples = setting
    logits = fc1_profiles(model, x, samples, SIZES, layer="fc2")
    assert torch.allclose(logits[2], model(x[samples[13:14]])[0], atol=1e-6)
    assert fc1_profiles(model, x, samples, SIZES, layer="conv1").shape == (4, 8 * 6 * 6)


def test_a_missing_layer_is_refused_with_the_names_there_are(setting):
    model, x, _, samples = setting
    with pytest.raises(InvalidModelError, match="conv1, conv2, fc1, fc2"):
        fc1_profiles(model, x, samples, SIZES, layer="fc3")
    with pytest.raises(InvalidModelError, match="no fully connected layer"):
        fc1_profiles(nn.Conv2d(1, 1, 3), x, samples, SIZES)


def test_a_model_keeps_no_hook_after_profiling(setting):
    model, x, _, samples = setting
    fc1_profiles(model, x, samples, SIZES)
    assert model(x).shape == (25, 10)


def test_gradients_are_those_of_the_clients_mean_loss(setting):
    model, x, y, samples = setting
    profiles = gradient_profiles(model, x, y, samples, SIZES)
    own = samples[13:14]
    F.cross_entropy(model(x[own]), y[own]).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert torch.allclose(profiles[2], expected, atol=1e-7)


def test_representative_gradients_are_local_minus_initial():
    initial = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0]])}
    local = {"a": torch.tensor([[1.5, 2.0], [0.0, 0.0]]), "b": torch.tensor([[[3.0]], [[4.0]]])}
    found = representative_gradient_profiles(initial, local)
    assert found.tolist() == [[0.5, 0.0, 0.0], [-1.0, -2.0, 1.0]]
