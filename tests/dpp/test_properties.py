import numpy as np
from brute_force import all_cohorts
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcohort.dpp import KDPP

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)


@st.composite
def profile_arrays(draw):
    """Profiles of up to 12 clients, often with duplicates, and a cohort size that fits."""
    clients = draw(st.integers(1, 12))
    features = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    distinct = draw(st.integers(1, clients))
    profiles = rng.standard_normal((distinct, features))[rng.integers(distinct, size=clients)]
    return profiles, draw(st.integers(1, clients))


@SETTINGS
@given(profile_arrays(), st.booleans(), st.integers(0, 2**32))
def test_draws_are_k_distinct_clients_and_repeatable(case, low_rank, seed):
    profiles, k = case
    rank = max(k, 5) if low_rank else None
    sampler = KDPP.from_profiles(profiles, k, rank=rank)
    draws = sampler.sample(np.random.default_rng(seed), size=7)
    assert draws.shape == (7, k)
    assert draws.min() >= 0
    assert draws.max() < len(profiles)
    assert (np.diff(draws, axis=1) > 0).all()
    again = KDPP.from_profiles(profiles, k, rank=rank).sample(np.random.default_rng(seed), size=7)
    np.testing.assert_array_equal(again, draws)
    assert np.isfinite(sampler.log_probability(draws)).all()


@SETTINGS
@given(profile_arrays(), st.booleans())
def test_probabilities_sum_up(case, low_rank):
    profiles, k = case
    sampler = KDPP.from_profiles(profiles, k, rank=max(k, 5) if low_rank else None)
    inclusion = sampler.inclusion_probabilities()
    np.testing.assert_allclose(inclusion.sum(), k, rtol=1e-9)
    assert inclusion.min() >= 0
    assert inclusion.max() <= 1 + 1e-12
    probabilities = np.exp(sampler.log_probability(all_cohorts(len(profiles), k)))
    np.testing.assert_allclose(probabilities.sum(), 1, rtol=1e-6)
    report = sampler.report
    assert report.from_kernel + report.from_uniform == k
    assert report.from_kernel == min(k, report.rank)


@SETTINGS
@given(
    profile_arrays(),
    st.floats(-1e3, 1e3),
    st.integers(-400, 400),
    st.integers(0, 2**32),
)
def test_shift_scale_and_order_do_not_matter(case, shift, exponent, seed):
    profiles, k = case
    plain = KDPP.from_profiles(profiles, k).inclusion_probabilities()
    moved = KDPP.from_profiles(profiles * 2.0**exponent, k).inclusion_probabilities()
    np.testing.assert_allclose(moved, plain, atol=1e-9)
    order = np.random.default_rng(seed).permutation(len(profiles))
    permuted = KDPP.from_profiles(profiles[order], k).inclusion_probabilities()
    np.testing.assert_allclose(permuted, plain[order], atol=1e-7)
    shifted = KDPP.from_profiles(profiles + shift, k)
    if shifted.report.rank == KDPP.from_profiles(profiles, k).report.rank:
        np.testing.assert_allclose(shifted.inclusion_probabilities(), plain, atol=1e-5)
