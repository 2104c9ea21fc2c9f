import numpy as np
import pytest

from fedcohort.report.comparison import compare, holm

ROUNDS = np.arange(11)


def ramp(reach, seeds, jitter=0.0):
    """Return curves that rise evenly and pass 0.9 at round `reach`."""
    rise = 0.9 * ROUNDS / reach
    return np.clip(rise + jitter * np.arange(seeds)[:, None], 0, 1)


def test_a_clear_difference_has_the_smallest_possible_p_value():
    found = compare("fedavg", ROUNDS, ramp(4, 8), ramp(8, 8), 0.9)
    assert (found.difference, found.low, found.high) == (-4, -4, -4)
    assert found.p_value == 2 / 2**8
    assert not found.censored
    turned = compare("dp3s", ROUNDS, ramp(8, 8), ramp(4, 8), 0.9)
    assert (turned.difference, turned.p_value) == (4, found.p_value)


def test_no_difference_has_p_value_one():
    curves = ramp(5, 6, jitter=0.01)
    found = compare("fedavg", ROUNDS, curves, curves, 0.9)
    assert (found.difference, found.low, found.high, found.p_value) == (0, 0, 0, 1.0)


def test_a_selector_that_never_arrives_is_counted_as_one_round_late():
    found = compare("fedavg", ROUNDS, ramp(4, 3), ramp(100, 3), 0.9)
    assert found.difference == 4 - 11
    assert found.censored


def test_a_seed_that_diverged_counts_as_late_where_it_is_drawn():
    """Ours with seed 2 is never there; the interval reaches to the resamples without it."""
    ours = ramp(4, 3)
    ours[2, 3:] = np.nan
    found = compare("fedavg", ROUNDS, ours, ramp(8, 3), 0.9)
    assert (found.difference, found.censored) == (11 - 8, True)
    assert (found.low, found.high) == (4 - 8, 11 - 8)
    # However pairs are exchanged, the side with that seed never arrives, and the other does.
    assert found.p_value == 1


def test_nothing_can_be_said_without_arrivals_or_with_one_pair():
    assert compare("fedavg", ROUNDS, ramp(100, 3), ramp(100, 3), 0.9) is None
    assert compare("fedavg", ROUNDS, ramp(4, 1), ramp(8, 1), 0.9) is None


def test_many_seeds_are_drawn_and_p_is_never_zero():
    found = compare("fedavg", ROUNDS, ramp(4, 30), ramp(8, 30), 0.9)
    assert 0 < found.p_value < 0.001


def test_equally_fast_selectors_are_seldom_called_different():
    rng = np.random.default_rng(5)
    p_values = []
    for _ in range(200):
        a, b = (np.cumsum(rng.exponential(0.1, (7, 20)), axis=1) for _ in range(2))
        found = compare("fedavg", np.arange(20), a, b, 1.0)
        p_values.append(found.p_value)
    # A valid test: at most 5 % in the long run; 200 draws of that exceed 10 % once in 1000.
    assert np.mean(np.array(p_values) <= 0.05) <= 0.1
    assert np.mean(np.array(p_values) <= 0.5) > 0.25


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []
