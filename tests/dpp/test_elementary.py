import itertools
import math

import mpmath
import numpy as np
import pytest
import scipy.fft

from fedcohort.dpp import KDPP
from fedcohort.dpp.eigenvectors import DenseEigenvectors
from fedcohort.dpp.elementary import choice_probabilities, log_elementary
from fedcohort.dpp.spectral import Spectrum, choose_eigenvectors


def test_table_against_enumeration():
    values = np.array([5.0, 2.0, 1.5, 0.3, 1e-3])
    table = log_elementary(np.log(values), 3)
    for degree in range(4):
        for j in range(6):
            expected = sum(math.prod(c) for c in itertools.combinations(values[:j], degree))
            assert np.exp(table[degree, j]) == pytest.approx(expected, rel=1e-13)


def test_choice_probabilities_against_enumeration():
    values = np.array([5.0, 2.0, 1.5, 0.3, 1e-3])
    chosen = choice_probabilities(np.log(values), log_elementary(np.log(values), 3))
    weights = {c: math.prod(values[list(c)]) for c in itertools.combinations(range(5), 3)}
    for j in range(5):
        share = sum(w for c, w in weights.items() if j in c) / sum(weights.values())
        assert chosen[j] == pytest.approx(share, rel=1e-12)


@pytest.fixture(scope="module")
def large():
    """3000 eigenvalues over fourteen decades and k = 200, with mpmath's answer."""
    values = np.sort(np.exp(np.random.default_rng(0).uniform(-16, 16, size=3000)))[::-1]
    k = 200
    with mpmath.workdps(400):
        exact = [mpmath.mpf(float(v)) for v in values]
        full = [mpmath.mpf(1)] + [mpmath.mpf(0)] * k
        for value in exact:
            for degree in range(k, 0, -1):
                full[degree] += value * full[degree - 1]
        chosen = np.empty(values.size)
        for j, value in enumerate(exact):
            # Dividing a factor out is unstable, but not with 400 digits.
            without = mpmath.mpf(1)
            for degree in range(1, k):
                without = full[degree] - value * without
            chosen[j] = float(value * without / full[k])
        log_normalizer = float(mpmath.log(full[k]))
    return values, k, chosen, log_normalizer


def test_large_spectrum_overflows_plain_floats(large):
    values, k, *_ = large
    plain = np.zeros(k + 1)
    plain[0] = 1
    with np.errstate(over="ignore", invalid="ignore"):
        for value in values:
            plain[1:] += value * plain[:-1]
    assert not np.isfinite(plain[k])


def test_large_spectrum_matches_high_precision(large):
    values, k, expected, log_normalizer = large
    assert expected.sum() == pytest.approx(k, rel=1e-12)
    table = log_elementary(np.log(values), k)
    assert table[k, -1] == pytest.approx(log_normalizer, rel=1e-13)
    chosen = choice_probabilities(np.log(values), table)
    # Near a probability of 1e-10 the logarithms' own rounding shows: they are near 2000.
    np.testing.assert_allclose(chosen, expected, rtol=1e-8)


def test_large_spectrum_mean_eigen_index_of_draws(large):
    values, k, expected, _ = large
    draws = 4000
    chosen = choose_eigenvectors(log_elementary(np.log(values), k), np.random.default_rng(1), draws)
    assert (np.diff(chosen, axis=1) > 0).all()
    means = chosen.mean(axis=1)
    index = np.arange(values.size) @ expected / k
    assert means.mean() == pytest.approx(index, abs=5 * means.std() / math.sqrt(draws))
    # The standard error must be small against the index for this to say something.
    assert 5 * means.std() / math.sqrt(draws) < 0.005 * index
    frequency = np.bincount(chosen.ravel(), minlength=values.size) / draws
    error = np.sqrt(expected * (1 - expected) / draws)
    assert (np.abs(frequency - expected) <= 5 * error + 5 / draws).all()


def test_large_spectrum_inclusion_probabilities_of_items(large):
    values, k, expected, _ = large
    vectors = scipy.fft.dct(np.eye(values.size), norm="ortho")
    sampler = KDPP(Spectrum(np.log(values), DenseEigenvectors(vectors)), k)
    inclusion = sampler.inclusion_probabilities()
    np.testing.assert_allclose(inclusion, expected @ vectors**2, rtol=1e-9)
    assert np.ptp(inclusion) > 0.01

    draws = sampler.sample(np.random.default_rng(2), size=80)
    assert (np.diff(draws, axis=1) > 0).all()
    frequency = np.bincount(draws.ravel(), minlength=values.size) / 80
    # Items repel each other, so the error of a sum is below that of independent draws.
    high = inclusion > np.median(inclusion)
    spread = math.sqrt((inclusion[high] * (1 - inclusion[high])).sum() / 80)
    assert frequency[high].sum() == pytest.approx(inclusion[high].sum(), abs=4 * spread)
