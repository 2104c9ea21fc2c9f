import numpy as np
import pytest

from fedcohort.errors import InvalidInputError, InvalidParameterError
from fedcohort.metrics import RoundsInterval, bootstrap_interval, drop_after_peak, rounds_to_target
from fedcohort.metrics.convergence import weighted_sums


def test_the_first_evaluated_round_at_or_above_the_target():
    rounds = [0, 5, 10, 15]
    accuracy = [0.1, 0.9, 0.8, 0.95]
    assert rounds_to_target(rounds, accuracy, 0.9) == 5
    assert rounds_to_target(rounds, accuracy, 0.91) == 15
    assert rounds_to_target(rounds, accuracy, 0.96) is None
    assert rounds_to_target(rounds, accuracy, 0.0) == 0
    assert rounds_to_target([], [], 0.5) is None


def test_of_several_seeds_the_mean_curve_counts():
    accuracy = [[0.5, 1.0, 1.0], [0.5, 0.7, 0.85]]
    assert rounds_to_target([1, 2, 3], accuracy, 0.9) == 3
    assert rounds_to_target([1, 2, 3], accuracy, 0.85) == 2


def test_a_mean_that_equals_the_target_reaches_it_despite_rounding():
    assert np.mean([0.7, 0.7, 0.7]) < 0.7
    assert rounds_to_target([4], [[0.7]] * 3, 0.7) == 4
    interval = bootstrap_interval([4], [[0.7]] * 3, 0.7, rng=np.random.default_rng(0))
    assert interval == RoundsInterval(4, 4)


def test_a_round_that_was_not_evaluated_never_counts():
    assert rounds_to_target([1, 2, 3], [0.1, np.nan, 0.9], 0.5) == 3


def test_a_seed_that_diverged_holds_the_mean_back_and_leaves_the_others_alone():
    """Of two seeds one has no accuracy in round 3: a resample reaches 0.9 without it alone."""
    curves = np.array([[0.1, 0.8, 0.9], [0.1, 0.8, np.nan]])
    assert rounds_to_target([1, 2, 3], curves, 0.9) is None
    assert rounds_to_target([1, 2, 3], curves, 0.8) == 2
    counts = np.array([[2, 0], [1, 1], [0, 2]])
    np.testing.assert_allclose(
        weighted_sums(counts, curves),
        [[0.2, 1.6, 1.8], [0.2, 1.6, np.nan], [0.2, 1.6, np.nan]],
    )
    middle = bootstrap_interval(
        [1, 2, 3], curves, 0.9, rng=np.random.default_rng(0), confidence=0.6
    )
    assert middle == RoundsInterval(3, None), "a quarter of the resamples are without it"


def test_the_drop_is_from_the_highest_point_of_the_mean_curve_to_its_last():
    assert drop_after_peak([0.5, 1.0, 0.75]) == 0.25
    assert drop_after_peak([0.5, 0.75, 1.0]) == 0
    # The mean is 0.5, 0.75, 0.5: neither seed by itself falls by a quarter.
    assert drop_after_peak([[0.25, 0.75, 0.5], [0.75, 0.75, 0.5]]) == 0.25


def noisy_curves(seeds, noise, rng):
    clean = 1 - np.exp(-np.arange(1, 101) / 25)
    return clean + noise * rng.standard_normal((seeds, 1))


def test_the_interval_holds_the_estimate_and_grows_with_the_noise():
    rounds = np.arange(1, 101)
    widths = []
    for noise in (0.0, 0.03, 0.15):
        curves = noisy_curves(20, noise, np.random.default_rng(0))
        interval = bootstrap_interval(rounds, curves, 0.8, rng=np.random.default_rng(1))
        assert interval.low <= rounds_to_target(rounds, curves, 0.8) <= interval.high
        widths.append(interval.high - interval.low)
    assert widths[0] == 0
    assert widths[0] < widths[1] < widths[2]


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    # A straight line with a small slope, so that whole rounds hardly widen the interval.
    rounds = np.arange(2001)
    covered = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        curves = rounds / 2000 + 0.2 * rng.standard_normal((30, 1))
        interval = bootstrap_interval(rounds, curves, 0.5, rng=rng, confidence=0.8, resamples=300)
        covered += interval.low <= 1000 <= interval.high
    # Binomial(200, .8): mean 160, standard deviation 5.7; three of them to either side.
    assert 143 <= covered <= 177


def test_ends_beyond_the_last_round_are_none():
    curves = np.array([[0.1, 0.2], [0.1, 0.9]])
    interval = bootstrap_interval([1, 2], curves, 0.8, rng=np.random.default_rng(0))
    assert interval == RoundsInterval(2, None)
    never = bootstrap_interval([1, 2], curves, 0.95, rng=np.random.default_rng(0))
    assert never == RoundsInterval(None, None)


def test_same_generator_same_interval():
    curves = noisy_curves(10, 0.05, np.random.default_rng(0))
    first, again = (
        bootstrap_interval(np.arange(1, 101), curves, 0.8, rng=np.random.default_rng(5))
        for _ in range(2)
    )
    assert first == again


@pytest.mark.parametrize(
    ("rounds", "accuracy", "sentence"),
    [
        ([1, 2], [0.5], "does not belong"),
        ([2, 1], [0.5, 0.5], "must rise"),
        ([1, 2], np.empty((0, 2)), "no seed"),
    ],
)
def test_curves_that_do_not_fit_are_refused(rounds, accuracy, sentence):
    with pytest.raises(InvalidInputError, match=sentence):
        rounds_to_target(rounds, accuracy, 0.5)


@pytest.mark.parametrize("options", [{"confidence": 1.0}, {"resamples": 0}])
def test_wrong_bootstraps_are_refused(options):
    with pytest.raises(InvalidParameterError, match=next(iter(options))):
        bootstrap_interval([1], [[0.5]], 0.5, rng=np.random.default_rng(0), **options)
