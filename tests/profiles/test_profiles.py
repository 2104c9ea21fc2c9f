import pytest
import torch
import torch.nn.functional as F
from made_models import made
from torch import nn

from fedcohort.errors import InvalidModelError
from fedcohort.profiles import fc1_profiles, gradient_profiles, representative_gradient_profiles
from fedcohort.profiles.fc1 import describe_layer

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


class Returns(nn.Module):
    """A layer that returns what is made of its input."""

    def __init__(self, made_of):
        super().__init__()
        self.made_of = made_of

    def forward(self, x):
        return self.made_of(x)


@pytest.mark.parametrize(
    "answer", [lambda x: {"out": x}, lambda x: x.sum(), lambda x: x.reshape(-1, 32)]
)
def test_a_layer_without_a_row_per_sample_is_refused(setting, answer):
    x, samples = setting[1], setting[3]
    with pytest.raises(InvalidModelError, match=r"layer 1, .* no row for each sample: name one"):
        fc1_profiles(nn.Sequential(nn.Flatten(), Returns(answer)), x, samples, SIZES, layer="1")


def test_of_a_layer_that_returns_more_the_outputs_are_read(setting):
    x, samples = setting[1].flatten(2).squeeze(1), setting[3]
    model = nn.Sequential(Returns(lambda x: x[:, None]), nn.RNN(64, 3, batch_first=True))
    found = fc1_profiles(model, x, samples, SIZES, layer="1")
    assert torch.allclose(found[2], model[1](x[samples[13:14], None])[0].flatten(), atol=1e-6)
    single = fc1_profiles(nn.Sequential(Returns(lambda x: x[:, 0])), x, samples, SIZES, layer="0")
    assert torch.allclose(single[2], x[samples[13], :1])


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


def test_the_input_of_the_only_fully_connected_layer_is_read():
    x = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    model = made("resnet8", (3, 8, 8), 10, 0)
    found = fc1_profiles(model, x, torch.arange(6), torch.tensor([4, 2]))
    features = []
    model.fc.register_forward_hook(lambda _m, inputs, _o: features.append(inputs[0].detach()))
    model(x)
    assert torch.allclose(found, torch.stack([features[0][:4].mean(0), features[0][4:].mean(0)]))
    assert describe_layer(model, None) == "inputs of fc"
    assert describe_layer(model, "fc") == "outputs of fc"
    assert describe_layer(made("cnn-small", (1, 8, 8), 10, 0), None) == "outputs of fc1"


class Attentive(nn.Module):
    """A plain encoder, whose first fully connected layer is the one inside attention."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(4, 2, dim_feedforward=6, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(input=self.encoder(x).mean(1))


def test_the_layer_inside_attention_is_not_the_first():
    model, x = Attentive().eval(), torch.randn(5, 7, 4)
    everyone = torch.arange(5), torch.tensor([2, 3])
    found = fc1_profiles(model, x, *everyone)
    assert describe_layer(model, None) == "outputs of encoder.linear1"
    assert torch.equal(found, fc1_profiles(model, x, *everyone, layer="encoder.linear1"))
    assert found.shape == (2, 6)


def test_a_layer_may_be_called_by_keyword():
    class Alone(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(input=x)

    x = torch.randn(3, 4)
    found = fc1_profiles(Alone(), x, torch.arange(3), torch.tensor([1, 2]))
    assert torch.allclose(found, torch.stack([x[0], x[1:].mean(0)]))


def test_places_of_a_sequence_are_averaged():
    class PerPlace(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(5, 4)
            self.first, self.last = torch.nn.Linear(4, 3), torch.nn.Linear(3, 5)

        def forward(self, tokens):
            return self.last(self.first(self.embedding(tokens)))

    tokens = torch.randint(0, 5, (6, 7), generator=torch.Generator().manual_seed(0))
    model = PerPlace()
    found = fc1_profiles(model, tokens, torch.arange(6), torch.tensor([6]))
    assert torch.allclose(found[0], model.first(model.embedding(tokens)).mean((0, 1)), atol=1e-6)
