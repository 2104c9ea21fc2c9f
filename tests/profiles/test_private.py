import sys

import numpy as np
import pytest
import torch
from made_models import made
from scipy.stats import norm
from torch import nn

from fedcohort.errors import (
    InvalidModelError,
    InvalidParameterError,
    MissingPackageError,
    UnknownNameError,
)
from fedcohort.privacy import Promise, noise_multiplier, promised, unpredictable_normal
from fedcohort.profiles import private_profiles
from fedcohort.profiles.private import DIRECTIONS, bounded_profiles
from fedcohort.training.models import MODELS

SIZES = torch.tensor([5, 15])


@pytest.fixture
def setting():
    x = torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return made("cnn-small", (1, 8, 8), 10, 0), x, torch.arange(20)


@pytest.mark.parametrize("replacement", [0.0, 1e6, 1e38, float("inf"), float("nan"), -3.0])
def test_one_sample_moves_a_profile_by_at_most_two_over_n(setting, replacement):
    model, x, samples = setting
    before = bounded_profiles(model, x, samples, SIZES)
    x = x.clone()
    x[0] = replacement
    moved = np.linalg.norm(bounded_profiles(model, x, samples, SIZES) - before, axis=1)
    assert 0 < moved[0] <= 2 / 5 + 1e-12
    assert moved[1] == 0


def test_the_bound_is_reached_when_a_sample_turns_round(setting):
    # So far out the centre does not count, and a linear layer turns with its input.
    layer = nn.Sequential(nn.Flatten(), nn.Linear(64, 9, bias=False))
    _, x, samples = setting
    before = bounded_profiles(layer, x * 1e9, samples, SIZES)
    turned = x.clone()
    turned[0] *= -1
    moved = bounded_profiles(layer, turned * 1e9, samples, SIZES) - before
    assert np.linalg.norm(moved[0]) == pytest.approx(2 / 5, rel=1e-6)


def test_samples_do_not_mix_even_in_a_model_with_batch_norm(setting):
    _, x, samples = setting
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 12))
    model.train()
    before = bounded_profiles(model, x, samples, SIZES)
    x = x.clone()
    x[0] = 100.0
    after = bounded_profiles(model, x, samples, SIZES)
    assert np.linalg.norm(after[0] - before[0]) <= 2 / 5 + 1e-12
    np.testing.assert_array_equal(after[1], before[1])
    assert model.training


class OfAll(nn.Module):
    """A layer that is a function of the whole batch."""

    def __init__(self, of):
        super().__init__()
        self.of = of

    def forward(self, x):
        return self.of(x)


MIXING = {
    "batch norm": nn.BatchNorm1d(64, track_running_stats=False),
    "mean": OfAll(lambda x: x - x.mean(0)),
    "earlier samples": OfAll(lambda x: x.cumsum(0)),
    "a logarithm": OfAll(lambda x: (x - x.mean(0)).log()),
}


@pytest.mark.parametrize("case", MIXING)
@pytest.mark.parametrize("same", [False, True])
def test_a_layer_that_looks_at_other_samples_is_refused(setting, case, same):
    _, x, samples = setting
    x = x[:1].expand_as(x) if same else x
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), MIXING[case])
    with pytest.raises(InvalidModelError, match="outputs of 2, which depend on other samples"):
        bounded_profiles(model, x, samples, SIZES, layer="2")
    assert model.training
    assert bounded_profiles(model, x, samples, SIZES).shape == (2, 64)


@pytest.mark.parametrize("samples", [1, 20])
def test_tokens_that_are_mixed_are_refused(samples):
    tokens = torch.full((samples, 7), 3)
    model = nn.Sequential(nn.Embedding(5, 4), OfAll(lambda x: x - x.mean(0)), nn.Linear(4, 8))
    with pytest.raises(InvalidModelError, match="depend on other samples"):
        bounded_profiles(model, tokens, torch.arange(samples), torch.tensor([samples]))


OWN = ["resnet8:norm=batch", "resnet18:norm=batch", *sorted(MODELS.keys() - {"char-lstm"})]


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OWN)
def test_models_that_see_samples_one_by_one_are_not_refused(name, precision):
    x = torch.randn(20, 3, 16, 16, generator=torch.Generator().manual_seed(0)).to(precision)
    model = made(name, (3, 16, 16), 10).to(precision)
    assert len(bounded_profiles(model, x, torch.arange(20), SIZES)) == 2


@pytest.mark.parametrize("layer", [None, "lstm"])
def test_a_recurrent_model_is_not_refused(layer):
    model = MODELS["char-lstm"]((7,), 5, vocabulary=5, hidden=16)
    tokens = torch.randint(0, 5, (20, 7), generator=torch.Generator().manual_seed(0))
    assert len(bounded_profiles(model, tokens, torch.arange(20), SIZES, layer=layer)) == 2


def test_a_wide_layer_is_projected_onto_fixed_directions(setting):
    _, x, samples = setting
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, 200))
    profiles = bounded_profiles(wide, x, samples, SIZES)
    assert profiles.shape == (2, DIRECTIONS)
    np.testing.assert_array_equal(profiles, bounded_profiles(wide, x, samples, SIZES))


def test_noise_has_the_promised_size(setting):
    model, x, samples = setting
    promise = Promise(1.0, 1e-3)
    rng = np.random.default_rng(0)
    clean = bounded_profiles(model, x, samples, SIZES)
    drawn = np.array(
        [
            private_profiles(
                model, x, samples, SIZES, promise, noise=lambda _, count: rng.normal(size=count)
            )
            - clean
            for _ in range(60)
        ]
    )
    np.testing.assert_allclose(drawn[:, 0].std(), promise.noise(5), rtol=0.05)
    np.testing.assert_allclose(drawn[:, 1].std(), promise.noise(15), rtol=0.05)
    assert promise.noise(5) == pytest.approx(3 * promise.noise(15))


@pytest.mark.parametrize(("epsilon", "delta"), [(8, 1e-5), (1, 1e-5), (0.1, 1e-6), (20, 1e-3)])
def test_noise_is_just_enough(epsilon, delta):
    # Theorem 8 of Balle and Wang 2018, with sensitivity 1.
    sigma = noise_multiplier(epsilon, delta)
    spent = norm.cdf(0.5 / sigma - epsilon * sigma)
    spent -= np.exp(epsilon) * norm.cdf(-0.5 / sigma - epsilon * sigma)
    assert spent == pytest.approx(delta, rel=1e-5)


@pytest.mark.parametrize("samples", [5, 600])
def test_the_noise_covers_the_farthest_that_one_sample_can_move(samples):
    # By the test above that is 2 / n: with it the mechanism is exactly (ε, δ)-private.
    epsilon, delta = 2.0, 1e-4
    ratio = (2 / samples) / Promise(epsilon, delta).noise(samples)
    spent = norm.cdf(ratio / 2 - epsilon / ratio)
    spent -= np.exp(epsilon) * norm.cdf(-ratio / 2 - epsilon / ratio)
    assert spent == pytest.approx(delta, rel=1e-5)


@pytest.mark.parametrize("replacement", [0.0, 1e38, float("nan"), -3.0])
def test_all_samples_together_move_a_profile_by_at_most_two(setting, replacement):
    model, x, samples = setting
    before = bounded_profiles(model, x, samples, SIZES)
    other = x.clone()
    other[:5] = replacement
    moved = np.linalg.norm(bounded_profiles(model, other, samples, SIZES) - before, axis=1)
    assert 0 < moved[0] <= 2 + 1e-12
    assert moved[1] == 0
    # In or out: nothing at all stands at 0, and no profile is farther from it than 1.
    assert np.linalg.norm(before, axis=1).max() <= 1 + 1e-12


def test_that_bound_is_reached_when_the_whole_client_turns_round(setting):
    layer = nn.Sequential(nn.Flatten(), nn.Linear(64, 9, bias=False))
    x = setting[1][:1].expand(20, -1, -1, -1) * 1e9
    moved = np.subtract(*(bounded_profiles(layer, s * x, setting[2], SIZES) for s in (1, -1)))
    np.testing.assert_allclose(np.linalg.norm(moved, axis=1), 2, rtol=1e-6)


@pytest.mark.parametrize("samples", [1, 5, 10**6])
def test_the_noise_covers_a_client_as_a_whole_however_much_it_holds(samples):
    epsilon, delta = 2.0, 1e-4
    ratio = 2 / Promise(epsilon, delta, "client").noise(samples)
    spent = norm.cdf(ratio / 2 - epsilon / ratio)
    spent -= np.exp(epsilon) * norm.cdf(-ratio / 2 - epsilon / ratio)
    assert spent == pytest.approx(delta, rel=1e-5)


def test_noise_for_a_client_is_what_is_added(setting):
    model, x, samples = setting
    promise = Promise(1.0, 1e-3, "client")
    clean = bounded_profiles(model, x, samples, SIZES)
    ones = private_profiles(model, x, samples, SIZES, promise, noise=lambda _, n: np.ones(n))
    np.testing.assert_allclose(ones - clean, 2 * noise_multiplier(1.0, 1e-3), rtol=1e-5)
    assert "for each client with all its data" in str(promise)


def test_who_can_be_protected_is_checked():
    with pytest.raises(UnknownNameError, match="did you mean 'client'"):
        Promise(1.0, protects="clients")
    Promise(1.0, 1e-3, "client").check(np.full(999, 5000))
    with pytest.raises(InvalidParameterError, match="nothing to one of 1000 clients"):
        Promise(1.0, 1e-3, "client").check(np.full(1000, 5))
    assert promised(None, 1e-5, "sample") is None
    with pytest.raises(InvalidParameterError, match="belongs to an epsilon"):
        promised(None, 1e-5, "client")


@pytest.mark.parametrize("epsilon", [0, -1, 20.5, float("inf"), float("nan")])
def test_an_epsilon_that_promises_nothing_is_refused(epsilon):
    with pytest.raises(InvalidParameterError, match="promises nothing"):
        Promise(epsilon)


@pytest.mark.parametrize("delta", [0, 1, -1e-5, float("nan")])
def test_a_delta_that_promises_nothing_is_refused(delta):
    with pytest.raises(InvalidParameterError, match="promises nothing"):
        Promise(1.0, delta)


def test_a_delta_of_one_sample_in_n_is_refused():
    assert Promise(1.0, 1e-3).noise(999) > 0
    with pytest.raises(InvalidParameterError, match="client with 1000 samples"):
        Promise(1.0, 1e-3).noise(1000)


def test_a_missing_library_is_named(monkeypatch):
    noise_multiplier.cache_clear()
    monkeypatch.setitem(sys.modules, "dp_accounting.gaussian_mechanism", None)
    with pytest.raises(MissingPackageError, match=r"fedcohort\[privacy\]"):
        noise_multiplier(3.3, 1e-5)


def test_unpredictable_noise_is_normal_and_never_the_same():
    drawn = unpredictable_normal(20_000)
    assert np.isfinite(drawn).all()
    assert abs(drawn.mean()) < 0.04
    assert drawn.std() == pytest.approx(1, abs=0.03)
    assert not np.array_equal(unpredictable_normal(4), unpredictable_normal(4))
