import pytest
import torch
from made_models import made
from torch import nn

from fedcohort.errors import InvalidModelError, InvalidParameterError, UnknownNameError
from fedcohort.training import INITIALISATIONS
from fedcohort.training.architectures.lstm import CharLSTM
from fedcohort.training.initialisation import initialise


def linear(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[-1], classes))


NOT_A_FACTORY = 3


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Make this file importable under a plain name, as a user's module is."""
    import sys

    monkeypatch.setitem(sys.modules, "user_models", sys.modules[__name__])


def test_the_paper_cnn_has_the_documented_widths():
    model = made("auto", (1, 28, 28), 10, 0)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if "weight" in name}
    assert shapes == {
        "conv1.weight": (20, 1, 5, 5),
        "conv2.weight": (50, 20, 5, 5),
        "fc1.weight": (500, 800),
        "fc2.weight": (10, 500),
    }


def test_an_lstm_has_the_layers_that_it_is_asked_for():
    one, two = (
        {name for name, _ in CharLSTM((7,), 12, 12, 8, **layers).named_parameters()}
        for layers in ({"layers": 1}, {})
    )
    assert "lstm.weight_hh_l0" in one
    assert two - one == {
        f"lstm.{kind}_l1" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    }


def test_weights_are_a_function_of_the_seed_and_leave_the_global_generator_alone():
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one, two, other = (made("auto", (1, 8, 8), 10, seed) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(one.fc1.weight, two.fc1.weight)
    assert not torch.equal(one.fc1.weight, other.fc1.weight)


def test_a_users_model_is_built_by_module_and_factory():
    assert made("user_models:linear", (6,), 3, 0)(torch.zeros(2, 6)).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("user_models:missing", "cannot be imported"),
        ("user_models:NOT_A_FACTORY", "not callable"),
        ("no_such_module:x", "cannot be imported"),
        ("cnn", "'cnn' reads images, and made has tables: choose another model, or auto"),
        ("char-lstm", "'char-lstm' reads tokens, and made has tables"),
        ("mlp:hidden=no", "cannot be built"),
    ],
)
def test_models_that_cannot_be_used_are_refused_in_a_sentence(name, complaint):
    with pytest.raises(InvalidModelError, match=complaint):
        made(name, (6,), 3, 0)


def test_an_unknown_model_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'cnn-small'"):
        made("cnn-smal", (1, 8, 8), 10, 0)


@pytest.mark.parametrize("scheme", INITIALISATIONS[1:])
def test_initialisations_have_their_variance(scheme):
    model = initialise(made("cnn", (1, 28, 28), 10, 0), scheme, 5)
    weight = model.fc1.weight
    fan_out, fan_in = weight.shape
    variance = 2 / (fan_in + fan_out) if scheme.startswith("xavier") else 2 / fan_in
    assert weight.var().item() == pytest.approx(variance, rel=0.02)
    assert weight.mean().item() == pytest.approx(0, abs=3e-4)
    assert (model.fc1.bias == 0).all()
    uniform = weight.abs().max().item() <= (3 * variance) ** 0.5 * 1.0001
    assert uniform == scheme.endswith("uniform")


def test_an_unknown_initialisation_is_named():
    with pytest.raises(UnknownNameError, match="xavier-normal"):
        initialise(nn.Linear(2, 2), "xavier-normall", 0)


def test_an_initialisation_reaches_weights_that_are_computed():
    plain = nn.Linear(6, 3)
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))
    for layer in (plain, normed):
        initialise(layer, "xavier-normal", 1)
    torch.testing.assert_close(normed.weight, plain.weight)


def test_an_initialisation_that_reaches_no_weight_is_refused():
    orthogonal = nn.utils.parametrizations.orthogonal(nn.Linear(6, 3))
    with pytest.raises(InvalidParameterError, match=r"does not reach .* leave it out"):
        initialise(orthogonal, "xavier-normal", 1)
    with pytest.raises(InvalidParameterError, match=r"no linear .* leave it out"):
        initialise(nn.LSTM(6, 3), "xavier-normal", 1)
