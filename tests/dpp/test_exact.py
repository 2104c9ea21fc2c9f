import dataclasses

import numpy as np
import pytest
from brute_force import (
    all_cohorts,
    clustered_profiles,
    cohort_probabilities,
    counts,
    inclusion,
    kernel_of,
)
from dppy.finite_dpps import FiniteDPP
from scipy import stats

from fedcohort.dpp import KDPP, similarity
from fedcohort.dpp.elementary import log_elementary
from fedcohort.dpp.spectral import Spectrum, choose_eigenvectors, finish_by_scan

PROFILES = np.random.default_rng(7).standard_normal((8, 3))


@pytest.mark.parametrize("k", [1, 2, 4, 7, 8])
def test_probabilities_against_determinants(k):
    sampler = KDPP.from_profiles(PROFILES, k)
    expected = cohort_probabilities(kernel_of(PROFILES), k)
    np.testing.assert_allclose(
        np.exp(sampler.log_probability(all_cohorts(8, k))), expected, rtol=1e-8
    )
    np.testing.assert_allclose(
        sampler.inclusion_probabilities(), inclusion(expected, 8, k), rtol=1e-10
    )


def test_normalizer_is_the_sum_of_determinants():
    kernel = kernel_of(PROFILES)
    total = sum(np.linalg.det(kernel[np.ix_(y, y)]) for y in all_cohorts(8, 3))
    assert KDPP.from_profiles(PROFILES, 3).log_normalizer == pytest.approx(np.log(total))


SIX = PROFILES[:6]
DRAWS = 250_000


def with_third_eigenvalue_raised(sampler, factor):
    logs = sampler.spectrum.log_values.copy()
    logs[2] += np.log(factor)
    return dataclasses.replace(sampler, spectrum=Spectrum(logs, sampler.spectrum.vectors))


def chi_square_p_value(sampler, expected):
    seen = counts(sampler.sample(np.random.default_rng(3), size=DRAWS), 6)
    return stats.chisquare(seen, expected * DRAWS).pvalue


def test_frequencies_of_all_cohorts():
    expected = cohort_probabilities(kernel_of(SIX), 3)
    assert chi_square_p_value(KDPP.from_profiles(SIX, 3), expected) > 1e-3


def test_frequencies_reject_an_eigenvalue_that_is_off_by_five_percent():
    expected = cohort_probabilities(kernel_of(SIX), 3)
    wrong = with_third_eigenvalue_raised(KDPP.from_profiles(SIX, 3), 1.05)
    assert chi_square_p_value(wrong, expected) < 1e-3


def test_power_of_the_frequency_test():
    """Against that eigenvalue the test at significance 1e-3 fails to reject once in 300."""
    right = KDPP.from_profiles(SIX, 3)
    cohorts = all_cohorts(6, 3)
    p = np.exp(right.log_probability(cohorts))
    q = np.exp(with_third_eigenvalue_raised(right, 1.05).log_probability(cohorts))
    noncentrality = DRAWS * ((q - p) ** 2 / p).sum()
    freedom = len(cohorts) - 1
    assert stats.ncx2.sf(stats.chi2.isf(1e-3, freedom), freedom, noncentrality) > 0.997


@pytest.mark.parametrize("k", [1, 3, 7])
def test_frequencies_of_eight_clients(k):
    expected = cohort_probabilities(kernel_of(PROFILES), k)
    draws = KDPP.from_profiles(PROFILES, k).sample(np.random.default_rng(k), size=40_000)
    assert stats.chisquare(counts(draws, 8), expected * 40_000).pvalue > 1e-3


def test_frequencies_when_draws_take_many_rounds(monkeypatch):
    monkeypatch.setattr("fedcohort.dpp.spectral.proposals_per_round", lambda k: 2)  # noqa: ARG005
    expected = cohort_probabilities(kernel_of(SIX), 4)
    draws = KDPP.from_profiles(SIX, 4).sample(np.random.default_rng(0), size=40_000)
    assert (np.diff(draws, axis=1) > 0).all()
    assert stats.chisquare(counts(draws, 6), expected * 40_000).pvalue > 1e-3


def test_frequencies_of_a_projection_by_scan():
    """The slow way to complete a draw, started after no, one and two items."""
    vectors = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 3)))[0]
    expected = np.array([np.linalg.det(vectors[y]) ** 2 for y in all_cohorts(6, 3)])
    rng = np.random.default_rng(1)
    draws = np.zeros((4000, 3), dtype=np.int64)
    for taken in draws:
        finish_by_scan(vectors, taken, 0, rng)
        finish_by_scan(vectors, taken, 2, rng)
        finish_by_scan(vectors, taken, 1, rng)
    seen = counts(np.sort(draws, axis=1), 6)
    assert stats.chisquare(seen, expected * len(draws)).pvalue > 1e-3


def test_scan_completes_a_draw_that_rounding_has_left_nothing_for():
    taken = np.array([2, 0, 0])
    finish_by_scan(np.zeros((5, 3)), taken, 1, np.random.default_rng(0))
    assert np.unique(taken).size == 3


def test_draws_end_though_eigenvectors_are_no_basis():
    """Two equal eigenvectors leave nothing to accept after the first item."""
    spectrum = Spectrum.from_singular(np.ones(2), np.full((2, 4), 0.5), 0.0)
    draws = KDPP(spectrum, 2).sample(np.random.default_rng(0), size=20)
    assert (draws[:, 0] < draws[:, 1]).all()


def test_agreement_with_dppy():
    """Marginals at C = 50, k = 8 from 4000 of DPPy's draws.

    Both of ours stay within 4.5 standard errors of DPPy's frequencies, 0.026 at most.
    """
    profiles = clustered_profiles(50, noise=0.5)
    draws = 4000
    peer = FiniteDPP("likelihood", L=kernel_of(profiles))
    state = np.random.RandomState(0)
    drawn = [peer.sample_exact_k_dpp(8, random_state=state) for _ in range(draws)]
    theirs = np.bincount(np.ravel(drawn), minlength=50) / draws

    sampler = KDPP.from_profiles(profiles, 8)
    exact = sampler.inclusion_probabilities()
    error = np.sqrt(exact * (1 - exact) / draws)
    assert (np.abs(theirs - exact) < 4.5 * error).all()
    ours = np.bincount(sampler.sample(np.random.default_rng(0), size=draws).ravel()) / draws
    assert (np.abs(ours - exact) < 4.5 * error).all()
    # Two or more of one group are rarer here than uniform draws would have them.
    assert np.ptp(exact) > 10 * error.max()


def test_available_clients_are_compared_with_everybody():
    rows = np.array([6, 0, 3, 5, 2])
    sampler = KDPP.from_profiles(PROFILES, 3, available=rows)
    expected = cohort_probabilities(kernel_of(PROFILES)[np.ix_(rows, rows)], 3)
    np.testing.assert_allclose(np.exp(sampler.log_probability(all_cohorts(5, 3))), expected)
    alone = KDPP.from_profiles(PROFILES[rows], 3)
    assert np.abs(np.exp(alone.log_probability(all_cohorts(5, 3))) - expected).max() > 0.01
    seen = counts(sampler.sample(np.random.default_rng(0), size=20_000), 5)
    assert stats.chisquare(seen, expected * 20_000).pvalue > 1e-3


def test_from_profiles_and_from_kernel_are_the_same_distribution():
    cohorts = all_cohorts(8, 3)
    s = similarity(PROFILES)
    given = s.copy()
    expected = KDPP.from_profiles(PROFILES, 3).log_probability(cohorts)
    np.testing.assert_allclose(KDPP.from_kernel(s @ s, 3).log_probability(cohorts), expected)
    np.testing.assert_array_equal(s, given)


def test_resized_is_a_sampler_of_another_size():
    sampler = KDPP.from_profiles(PROFILES, 3).resized(5)
    np.testing.assert_allclose(
        np.exp(sampler.log_probability(all_cohorts(8, 5))),
        cohort_probabilities(kernel_of(PROFILES), 5),
    )
    assert sampler.sample(np.random.default_rng(0)).shape == (5,)


def test_one_draw_and_many_have_the_documented_shapes():
    sampler = KDPP.from_profiles(PROFILES, 3)
    one = sampler.sample(np.random.default_rng(0))
    assert one.shape == (3,)
    assert one.dtype == np.int64
    assert sampler.sample(np.random.default_rng(0), size=4).shape == (4, 3)
    assert sampler.sample(np.random.default_rng(0), size=0).shape == (0, 3)
    assert isinstance(sampler.log_probability(one), float)


def test_order_of_a_cohort_does_not_matter():
    sampler = KDPP.from_profiles(PROFILES, 3)
    assert sampler.log_probability([5, 0, 2]) == pytest.approx(sampler.log_probability([0, 2, 5]))


def test_eigenvectors_are_chosen_with_their_product():
    values = np.array([4.0, 2.0, 1.0, 0.5])
    chosen = choose_eigenvectors(
        log_elementary(np.log(values), 2), np.random.default_rng(0), 50_000
    )
    products = np.array([values[y].prod() for y in all_cohorts(4, 2)])
    expected = products / products.sum()
    assert stats.chisquare(counts(chosen, 4), expected * 50_000).pvalue > 1e-3


def test_horvitz_thompson_average_is_unbiased():
    """The expectation over all cohorts, enumerated, equals the full average."""
    sizes = np.arange(1, 9)
    values = np.random.default_rng(0).standard_normal(8)
    sampler = KDPP.from_profiles(PROFILES, 3)
    cohorts = all_cohorts(8, 3)
    weights = sampler.horvitz_thompson_weights(cohorts, sizes)
    averages = (weights * values[cohorts]).sum(axis=1)
    expected = np.average(values, weights=sizes)
    probabilities = np.exp(sampler.log_probability(cohorts))
    assert probabilities @ averages == pytest.approx(expected, rel=1e-10)
    plain = (sizes[cohorts] * values[cohorts]).sum(axis=1) / sizes[cohorts].sum(axis=1)
    assert abs(probabilities @ plain - expected) > 1e-3


def test_horvitz_thompson_weights_take_equal_sizes_by_default():
    sampler = KDPP.from_profiles(PROFILES, 3)
    np.testing.assert_allclose(
        sampler.horvitz_thompson_weights([0, 1, 2]),
        sampler.horvitz_thompson_weights([0, 1, 2], np.full(8, 600)),
    )
