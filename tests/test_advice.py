"""Advice from profiles alone."""

import dataclasses
import json
import math

import numpy as np
import pytest

import fedcohort.advice
from fedcohort import advise, make_selector
from fedcohort.advice import OTHER_ERROR, OTHER_GRADIENT_ERROR, cohort_weights, predicted_gain
from fedcohort.errors import CohortSizeError, InvalidInputError, InvalidParameterError
from fedcohort.selection.coordinates import Basis


def clients(kinds=5, count=60, apart=1.0, noise=0.05, seed=0):
    """Return profiles around `kinds` vertices, far from the origin."""
    rng = np.random.default_rng(seed)
    vertices = 5 + apart * rng.normal(size=(kinds, 20))
    return vertices[np.arange(count) % kinds] + noise * rng.normal(size=(count, 20))


def test_kinds_are_counted():
    assert [advise(clients(kinds), k=6).kinds for kinds in (2, 5, 8)] == [2, 5, 8]


def test_clients_that_are_all_alike_are_of_one_kind():
    assert advise(np.ones((20, 5)), k=5).kinds == 1
    alike = 5 + np.zeros((20, 5)) + 1e-9 * np.random.default_rng(0).normal(size=(20, 5))
    assert advise(alike, k=5).kinds == 1


def test_clients_without_kinds_have_no_number():
    profiles = 5 + np.random.default_rng(0).normal(size=(60, 20))
    assert advise(profiles, k=6).kinds is None


def test_clients_of_one_profile_are_one_kind_and_gain_nothing():
    advice = advise(np.full((20, 8), 3.0), k=4)
    assert advice.kinds == 1
    assert advice.gain == 1
    assert advice.distances == {"fedavg": 0, "dp3s": 0, "match": 0}
    assert "Stay with uniform sampling" in advice.recommendation


def test_exact_copies_are_kinds_too():
    vertices = 5 + np.random.default_rng(0).normal(size=(4, 20))
    assert advise(vertices[np.arange(40) % 4], k=4).kinds == 4


def test_the_closer_rule_is_found_and_bounded_by_the_best():
    advice = advise(clients(), k=5)
    assert advice.best <= advice.distances["match"] < advice.distances["dp3s"]
    assert advice.distances["dp3s"] < advice.distances["fedavg"]


def test_distances_do_not_depend_on_the_unit_of_profiles():
    profiles = clients()
    advice, scaled = advise(profiles, k=5), advise(1e6 * profiles, k=5)
    assert scaled.distances == pytest.approx(advice.distances, rel=1e-6)
    assert scaled.spread == pytest.approx(advice.spread)


def test_uniform_cohorts_of_the_equal_size_are_as_close_as_match():
    profiles = clients(count=40)
    advice = advise(profiles, k=10)
    basis = Basis.fit(profiles, np.ones(40))
    points = basis.project(profiles) * basis.scales(10)
    points -= points.mean(axis=0)
    rng = np.random.default_rng(0)
    drawn = [rng.choice(40, advice.equal_cohort, replace=False) for _ in range(2000)]
    squares = [np.sum(points[cohort].mean(axis=0) ** 2) for cohort in drawn]
    assert 10 < advice.equal_cohort < 40
    assert np.sqrt(np.mean(squares)) == pytest.approx(advice.distances["match"], rel=0.06)


def test_clients_that_differ_more_gain_more():
    gains = [advise(clients(apart=apart), k=5).gain for apart in (0.05, 0.3, 1.0)]
    assert gains[0] < gains[1] < gains[2]
    assert gains[0] < 1.02
    assert gains[2] > 1.25


def test_lost_clients_take_the_gain_away():
    whole, half = (advise(clients(), k=5, lost=lost) for lost in (0.0, 0.5))
    assert half.left > 3 * whole.left
    assert half.distances["fedavg"] > whole.distances["fedavg"]
    assert half.best == whole.best


def test_somebody_who_counts_is_left_of_every_cohort():
    rng = np.random.default_rng(11)
    profiles = rng.normal(size=(20, 6)) * rng.lognormal(0, 2, size=(20, 1))
    sizes = rng.integers(1, 2000, size=20).astype(np.float64)
    # Matched weights of so different clients are 0 now and then.
    weights = cohort_weights("match", profiles, sizes, 3, 0.7)
    assert np.allclose(weights.sum(axis=1), 1)
    assert math.isfinite(advise(profiles, sizes, 3, lost=0.7).distances["match"])


def test_sizes_weigh():
    profiles = clients(kinds=2, count=20)
    plain = advise(profiles, None, 4)
    sevens = advise(profiles, np.full(20, 7), 4)
    assert (sevens.spread, sevens.left) == pytest.approx((plain.spread, plain.left))
    assert sevens.kinds == plain.kinds
    # Some clients outweigh the rest of their cohorts.
    assert advise(profiles, np.geomspace(1, 30, 20), 4).spread > 1.1 * plain.spread


def test_the_gain_is_a_ratio_of_variances():
    assert predicted_gain(0.08, 0.0) == pytest.approx(1 + (0.08 / OTHER_ERROR) ** 2)
    assert predicted_gain(2 * OTHER_ERROR, 0.5) == pytest.approx((1 + 4) / (1 + 1))
    assert predicted_gain(0.08, 1.0) == 1
    assert predicted_gain(0.0, 1.0) == 1


def label_clients(count=60, classes=5, purity=1.0, seed=0):
    """Return label shares [C, K], and profiles that tell them; classes are equally frequent."""
    rng = np.random.default_rng(seed)
    shares = purity * np.eye(classes)[np.arange(count) % classes] + (1 - purity) / classes
    vertices = 5 + rng.normal(size=(classes, 20))
    return shares, shares @ vertices + 1e-4 * rng.normal(size=(count, 20))


@pytest.mark.parametrize("purity", [1.0, 0.5, 0.2])
def test_agreements_give_the_error_of_a_uniform_cohort_s_gradient(purity):
    shares, profiles = label_clients(purity=purity)
    # Gradients by the outputs of a classifier that knows nothing: 1 / K less the label.
    gradients = 1 / 5 - shares
    agreements = np.sum(gradients**2, axis=1) / (1 - 1 / 5)
    advice = advise(profiles, k=6, agreements=agreements)
    rng = np.random.default_rng(1)
    drawn = [gradients[rng.choice(60, 6, replace=False)].mean(axis=0) for _ in range(4000)]
    error = np.sqrt(np.mean(np.sum(np.square(drawn), axis=1)) / (1 - 1 / 5))
    assert advice.gradient_spread == pytest.approx(error, rel=0.05)


def test_agreements_tell_labels_from_style():
    profiles = clients()
    alone = advise(profiles, k=5)
    labels, style = (advise(profiles, k=5, agreements=np.full(60, a)) for a in (1.0, 0.01))
    assert labels.gain > 1.5
    assert style.gain < 1.05
    assert "Stay with uniform" in style.recommendation
    assert "photographs" not in style.recommendation
    # What cohorts look like does not depend on them.
    assert labels.distances == style.distances == alone.distances
    assert labels.left == alone.left
    assert alone.gradient_spread is None
    assert "would tell" in str(alone)
    assert "would tell" not in str(labels)
    assert "Their gradients are off by" in str(labels)


def test_what_all_clients_share_is_no_difference():
    # Random samples of a population in which nine of ten are of one of two classes.
    common = 2 * (0.5 - 0.9) ** 2 / (2 * 0.5**2)
    given = {"k": 5, "agreements": np.full(60, common)}
    assert advise(clients(), **given, shared=common).gain == 1
    assert advise(clients(), **given).gain > 1.3
    # Clients of one class each differ by all the variance there is.
    pure = {"k": 5, "agreements": np.ones(60)}
    assert advise(clients(), **pure, shared=common).gain == pytest.approx(
        advise(clients(), **pure).gain
    )


def test_that_nothing_is_shared_is_said_where_it_is_assumed():
    given = {"k": 5, "agreements": np.full(60, 0.5)}
    assumed, known = advise(clients(), **given), advise(clients(), **given, shared=0.0)
    assert assumed.gain == known.gain
    assert (assumed.shared, known.shared) == (None, 0.0)
    assert "if all classes are equally frequent over all clients" in assumed.line
    assert "`shared` was not given" in " ".join(str(assumed).split())
    for advice in (known, advise(clients(), k=5)):
        assert "equally frequent" not in advice.line + str(advice)


def test_large_clients_agreements_weigh_more():
    sizes, halves = np.repeat([10.0, 1.0], 30), np.repeat([0.9, 0.1], 30)
    large, small = (advise(clients(), sizes, 5, agreements=a) for a in (halves, halves[::-1]))
    ratio = (10 * 0.9 + 0.1) / (10 * 0.1 + 0.9)
    assert (large.gradient_spread / small.gradient_spread) ** 2 == pytest.approx(ratio)


def test_agreements_of_equal_profiles_gain_nothing():
    advice = advise(np.full((20, 8), 3.0), k=4, agreements=np.ones(20))
    assert advice.gain == 1


def test_agreements_are_sampled_with_a_large_population(monkeypatch):
    monkeypatch.setattr(fedcohort.advice, "_CLIENTS", 50)
    few = advise(clients(count=300), k=5, agreements=np.full(300, 0.5))
    assert few.gradient_spread == pytest.approx(math.sqrt(0.5 / 5), rel=0.1)


def test_agreements_predict_where_profiles_alone_do_not():
    centred = clients() - clients().mean(axis=0)
    advice = advise(centred, k=5, agreements=np.full(60, 0.5))
    assert advice.gain == predicted_gain(0.0, advice.left, advice.gradient_spread)
    assert predicted_gain(9.0, 0.0, OTHER_GRADIENT_ERROR) == pytest.approx(2)


def test_profiles_beyond_the_calibration_get_no_prediction():
    advice = advise(clients() - clients().mean(axis=0), k=5)
    assert advice.gain is None
    assert "No gain can be predicted" in advice.recommendation
    assert str(advice).count("redicted") == 1
    assert advice.to_json()["rounds_to_repay"] is None


@pytest.mark.parametrize(
    ("gain", "said"), [(1.6, "Select with match"), (1.15, "Try match"), (1.02, "Stay with uniform")]
)
def test_the_recommendation_follows_the_gain(gain, said):
    advice = dataclasses.replace(advise(clients(), k=5), gain=gain)
    assert advice.recommendation.startswith(said)
    assert said in str(advice)
    assert said in advice.line
    assert "\n" not in advice.line


def test_profiling_is_repaid_after_some_rounds():
    advice = dataclasses.replace(advise(clients(), k=5), gain=2.0)
    # Sending the model to 60 clients costs what 6 rounds of 5 there and back do; half is saved.
    assert advice.rounds_to_repay == pytest.approx(12)
    assert dataclasses.replace(advice, gain=1.0).rounds_to_repay == math.inf


def test_everybody_in_every_round_leaves_nothing_to_select():
    advice = advise(clients(count=12), k=12)
    assert "nothing to select" in advice.recommendation
    assert str(advice).endswith(f"\n\n{advice.recommendation}")
    assert "best cohort" not in str(advice)
    assert advice.equal_cohort == 12


@pytest.mark.parametrize(("columns", "width"), [(60, 60), (200, 80)])
def test_what_is_printed_fits_the_terminal(monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", str(columns))
    for more in ({}, {"agreements": np.full(60, 0.9)}):
        said = str(advise(clients(), k=5, lost=0.3, **more))
        assert width - 15 < max(map(len, said.splitlines())) <= width
        assert "of whom 30 % do not answer" in " ".join(said.split())
        assert "  %" not in said
        assert "\n  match               " in said


def test_clients_of_one_kind_are_not_counted():
    advice = advise(np.ones((20, 5)), k=5)
    assert "They seem to be of one kind." in str(advice)
    assert advice.line.startswith("20 clients, all of one kind; cohorts of 5")


def test_the_same_profiles_get_the_same_advice():
    assert advise(clients(), k=5) == advise(clients(), k=5)


def test_a_large_population_is_sampled(monkeypatch):
    looked_at = []
    plain = make_selector

    def watched(spec):
        selector = plain(spec)
        fit = selector.fit
        selector.fit = lambda profiles, **more: (
            looked_at.append(len(profiles)) or fit(profiles, **more)
        )
        return selector

    monkeypatch.setattr(fedcohort.advice, "make_selector", watched)
    monkeypatch.setattr(fedcohort.advice, "_CLIENTS", 50)
    advice = advise(clients(count=300), k=5)
    assert advice.clients == 300
    assert looked_at == [300, 50, 50, 50, 50]
    assert 5 < advice.equal_cohort <= 300


@pytest.mark.parametrize(
    ("error", "words", "arguments"),
    [
        (CohortSizeError, "between 1 and 60", {"k": 61}),
        (CohortSizeError, "A cohort of '5' .* whole number", {"k": "5"}),
        (InvalidParameterError, "lost must be", {"lost": 1.0}),
        (InvalidInputError, r"has shape \[60, 20\] and sizes has shape \[2\]", {"sizes": [1, 2]}),
        (InvalidInputError, "is not finite", {"profiles": np.full((9, 3), np.nan)}),
        (InvalidInputError, "must have shape", {"profiles": np.ones(9)}),
        (InvalidInputError, r"must have shape .* not \[9, 0\]", {"profiles": np.ones((9, 0))}),
        (InvalidInputError, "for each of the 60 clients", {"agreements": [0.5]}),
        (InvalidInputError, "client 1 is nan", {"agreements": [0.5, np.nan, *[0.5] * 58]}),
        (InvalidInputError, "must be numbers from 0 to 1: could", {"agreements": ["a"] * 60}),
        (InvalidInputError, "client 0 is 1.5", {"agreements": np.full(60, 1.5)}),
        (InvalidParameterError, "shared must be", {"shared": 1.0}),
    ],
)
def test_nonsense_is_refused_in_words(error, words, arguments):
    with pytest.raises(error, match=words):
        advise(**({"profiles": clients(), "k": 5} | arguments))


def test_profiles_without_any_length_are_told_as_plain_values():
    for profiles in (np.zeros((4, 2)), np.array([[1.0], [-1.0]] * 4)):
        said = advise(profiles, k=2).to_json()
        assert json.loads(json.dumps(said, allow_nan=False))["gain"] in (None, 1.0)
