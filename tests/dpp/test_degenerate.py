import numpy as np
import pytest
from brute_force import all_cohorts, clustered_profiles, counts, inclusion
from scipy import stats

from fedcohort.dpp import KDPP, Landmarks, similarity
from fedcohort.errors import (
    CohortSizeError,
    InvalidInputError,
    InvalidKernelError,
    InvalidParameterError,
    InvalidProfilesError,
)

BOTH = pytest.mark.parametrize("rank", [None, 8], ids=["exact", "low-rank"])


@BOTH
@pytest.mark.parametrize("value", [0.0, 1.0, -3.7e150, 0.1])
def test_identical_profiles_are_uniform(rank, value):
    sampler = KDPP.from_profiles(np.full((6, 4), value), 3, rank=rank)
    assert sampler.report.kind == "uniform"
    assert sampler.report.from_uniform == 3
    np.testing.assert_allclose(np.exp(sampler.log_probability(all_cohorts(6, 3))), 1 / 20)
    np.testing.assert_allclose(sampler.inclusion_probabilities(), 0.5)
    assert sampler.log_normalizer == 0
    seen = counts(sampler.sample(np.random.default_rng(0), size=4000), 6)
    assert stats.chisquare(seen).pvalue > 1e-3


@BOTH
def test_more_members_than_distinct_profiles(rank):
    """Three pairs of duplicates: three members from the kernel, the others from anybody left."""
    places = np.array([0, 1, 2, 0, 1, 2])
    profiles = np.array([[0.0, 0.0], [1.0, 0.2], [0.3, 2.0]])[places]
    sampler = KDPP.from_profiles(profiles, 4, rank=rank)
    report = sampler.report
    assert (report.rank, report.from_kernel, report.from_uniform) == (3, 3, 1)
    cohorts = all_cohorts(6, 4)
    # One of each pair, then one of three others: each cohort with all places is reached in as
    # many ways as it has sets of three distinct places.
    ways = np.array([np.prod(np.bincount(places[y], minlength=3)) for y in cohorts])
    expected = ways / 8 / 3
    np.testing.assert_allclose(np.exp(sampler.log_probability(cohorts)), expected, atol=1e-12)
    np.testing.assert_allclose(
        sampler.inclusion_probabilities(), inclusion(expected, 6, 4), atol=1e-12
    )
    seen = counts(sampler.sample(np.random.default_rng(0), size=6000), 6)
    assert not seen[expected == 0].any()
    assert stats.chisquare(seen[expected > 0], expected[expected > 0] * 6000).pvalue > 1e-3


@BOTH
def test_duplicates_are_never_drawn_together(rank):
    profiles = np.repeat(clustered_profiles(8, groups=8, features=5), 2, axis=0)
    sampler = KDPP.from_profiles(profiles, 5, rank=rank)
    assert sampler.report.from_uniform == 0
    draws = sampler.sample(np.random.default_rng(0), size=500) // 2
    assert (np.diff(draws, axis=1) > 0).all()
    assert sampler.log_probability([0, 1, 4, 6, 8]) == -np.inf


@BOTH
def test_everybody(rank):
    sampler = KDPP.from_profiles(clustered_profiles(8, groups=8, features=5), 8, rank=rank)
    np.testing.assert_array_equal(sampler.sample(np.random.default_rng(0)), np.arange(8))
    assert sampler.log_probability(np.arange(8)) == pytest.approx(0, abs=1e-8)
    np.testing.assert_allclose(sampler.inclusion_probabilities(), 1)


@BOTH
def test_one_member_is_drawn_with_the_diagonal(rank):
    profiles = clustered_profiles(8, groups=8, features=5)
    diagonal = np.diag(similarity(profiles) @ similarity(profiles))
    expected = diagonal / diagonal.sum()
    sampler = KDPP.from_profiles(profiles, 1, rank=rank)
    np.testing.assert_allclose(sampler.inclusion_probabilities(), expected)
    np.testing.assert_allclose(np.exp(sampler.log_probability(np.arange(8)[:, None])), expected)


@BOTH
def test_one_client(rank):
    sampler = KDPP.from_profiles([[1.0, 2.0]], 1, rank=rank)
    np.testing.assert_array_equal(sampler.sample(np.random.default_rng(0)), [0])
    np.testing.assert_array_equal(sampler.inclusion_probabilities(), [1.0])


@BOTH
def test_one_feature(rank):
    profiles = np.array([[0.0], [1.0], [2.0], [4.0], [8.0], [8.5]])
    s = 1 - np.abs(profiles - profiles.T) / 8.5
    np.testing.assert_allclose(similarity(profiles), s)
    sampler = KDPP.from_profiles(profiles, 3, rank=rank)
    exact = KDPP.from_kernel(s @ s, 3)
    cohorts = all_cohorts(6, 3)
    np.testing.assert_allclose(
        sampler.log_probability(cohorts), exact.log_probability(cohorts), rtol=1e-6
    )


@BOTH
@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1e150, 1e300])
def test_huge_and_tiny_scales(rank, scale):
    profiles = clustered_profiles(8, groups=8, features=5)
    cohorts = all_cohorts(8, 3)
    with np.errstate(all="raise"):
        scaled = KDPP.from_profiles(profiles * scale, 3, rank=rank)
        draws = scaled.sample(np.random.default_rng(0), size=10)
    plain = KDPP.from_profiles(profiles, 3)
    np.testing.assert_allclose(
        scaled.log_probability(cohorts), plain.log_probability(cohorts), rtol=1e-9
    )
    assert draws.shape == (10, 3)


def test_noise_far_below_the_distance_between_clusters():
    """1e-12 of noise: distances from ‖x‖² + ‖z‖² − 2xᵀz would be off by 1e-8."""
    rng = np.random.default_rng(0)
    clean = np.repeat(rng.standard_normal((10, 30)), 10, axis=0)
    noisy = clean + 1e-12 * rng.standard_normal(clean.shape)
    within = 1 - similarity(noisy)[0, 1:10]
    expected = np.linalg.norm(noisy[1:10] - noisy[0], axis=1)
    largest = np.linalg.norm(noisy[:, None] - noisy[None], axis=2).max()
    np.testing.assert_allclose(within, expected / largest, atol=3e-16)

    for rank in (None, 40):
        sampler = KDPP.from_profiles(noisy, 10, rank=rank)
        draws = sampler.sample(np.random.default_rng(1), size=300)
        np.testing.assert_array_equal(draws // 10, np.tile(np.arange(10), (300, 1)))
        np.testing.assert_allclose(sampler.inclusion_probabilities(), 0.1, atol=1e-6)
    more = KDPP.from_profiles(noisy, 15)
    draws = more.sample(np.random.default_rng(1), size=50)
    assert (np.diff(draws, axis=1) > 0).all()
    assert all(np.unique(draw // 10).size == 10 for draw in draws)
    assert more.inclusion_probabilities().sum() == pytest.approx(15)
    assert KDPP.from_profiles(noisy, 15, rank=40).report.from_uniform == 5


def test_duplicates_of_landmarks_in_a_large_population():
    profiles = np.repeat(clustered_profiles(4, groups=4, features=6), 500, axis=0)
    sampler = KDPP.from_profiles(profiles, 4, rank=30)
    assert sampler.report.landmarks == 4
    draws = sampler.sample(np.random.default_rng(0), size=200)
    np.testing.assert_array_equal(draws // 500, np.tile(np.arange(4), (200, 1)))


def test_landmarks_of_identical_clients_notice_a_different_one():
    landmarks = Landmarks.fit(np.ones((5, 3)), 4)
    assert not landmarks.drifted(
        landmarks.features(np.ones((2, 3))), landmarks.reach(np.ones((2, 3)))
    )
    assert landmarks.drifted(
        landmarks.features(np.zeros((1, 3))), landmarks.reach(np.zeros((1, 3)))
    )


@BOTH
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_by_client(rank, value):
    profiles = clustered_profiles(8).astype(np.float32)
    profiles[5, 2] = value
    with pytest.raises(InvalidProfilesError, match="client 5 holds a value that is not finite"):
        KDPP.from_profiles(profiles, 3, rank=rank)


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        ([[1.0, 2.0], [1.0, 2.0], [1.0]], "client 2 has 1 numbers, but that of client 0 has 2"),
        ([[1.0, 2.0], [[1.0, 2.0]]], "client 1 must be a vector"),
        (np.ones(4), "must be an array"),
        ([], "are empty"),
        (np.ones((3, 0)), "are empty"),
        (np.ones((3, 2), dtype=complex), "real numbers"),
        ([["a"], ["b"]], "real numbers"),
    ],
)
def test_profiles_of_a_wrong_shape_or_kind(profiles, message):
    with pytest.raises(InvalidProfilesError, match=message):
        KDPP.from_profiles(profiles, 1)


def test_whole_numbers_and_half_precision_are_profiles():
    profiles = np.array([[0, 0], [3, 4], [1, 1]])
    expected = KDPP.from_profiles(profiles.astype(float), 2).inclusion_probabilities()
    for kind in (np.int32, np.uint8, np.float16, np.float32):
        sampler = KDPP.from_profiles(profiles.astype(kind), 2)
        np.testing.assert_allclose(sampler.inclusion_probabilities(), expected)
    listed = KDPP.from_profiles(profiles.tolist(), 2)
    np.testing.assert_allclose(listed.inclusion_probabilities(), expected)


def test_joining_profiles_of_another_length():
    landmarks = Landmarks.fit(clustered_profiles(30), 10)
    with pytest.raises(InvalidProfilesError, match="19 numbers, but the landmarks have 20"):
        landmarks.features(np.ones((2, 19)))


@BOTH
@pytest.mark.parametrize("k", [0, -1, 9, 2.5, "3"])
def test_cohort_sizes_that_cannot_be(rank, k):
    with pytest.raises(CohortSizeError):
        KDPP.from_profiles(clustered_profiles(8), k, rank=rank)


def test_cohort_larger_than_the_available_clients():
    with pytest.raises(CohortSizeError, match="cohort of 4 cannot be drawn from 3 clients"):
        KDPP.from_profiles(clustered_profiles(8), 4, available=[0, 1, 2])


def test_nobody_available():
    nobody = np.empty(0, dtype=np.int64)
    for rank in (None, 4):
        with pytest.raises(CohortSizeError, match="from 0 clients"):
            KDPP.from_profiles(clustered_profiles(8), 1, available=nobody, rank=rank)


@pytest.mark.parametrize("rank", [0, -3, 2, 2.5])
def test_rank_that_cannot_be(rank):
    with pytest.raises(InvalidParameterError):
        KDPP.from_profiles(clustered_profiles(8), 3, rank=rank)


@pytest.mark.parametrize("available", [[0, 0, 1], [0, 8], [-1, 2], [0.5], [[0, 1]]])
@BOTH
def test_available_rows_that_cannot_be(available, rank):
    with pytest.raises(InvalidInputError, match="available"):
        KDPP.from_profiles(clustered_profiles(8), 1, available=available, rank=rank)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (np.ones((2, 3)), "square"),
        (np.array([[1.0, 0.5], [0.2, 1.0]]), r"not symmetric: entries \(0, 1\)"),
        ([[1.0, 0.5], [0.2]], "must be a square matrix: setting an array element"),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), r"entry \(0, 1\) is not finite"),
        (np.array([[1.0, 2.0], [2.0, 1.0]]), "eigenvalue -1"),
        (np.array([["a"]]), "real numbers"),
        (np.zeros((0, 0)), "square"),
    ],
)
def test_kernels_that_cannot_be(kernel, message):
    with pytest.raises(InvalidKernelError, match=message):
        KDPP.from_kernel(kernel, 1)


def test_kernel_of_zeros_is_uniform():
    assert KDPP.from_kernel(np.zeros((4, 4)), 2).report.kind == "uniform"


@pytest.mark.parametrize(
    "ids", [[0, 1], [0, 1, 1], [0, 1, 8], [-1, 0, 1], [0.0, 1.0, 2.0], [[[0, 1, 2]]]]
)
def test_cohorts_that_cannot_be(ids):
    with pytest.raises(InvalidInputError):
        KDPP.from_profiles(clustered_profiles(8), 3).log_probability(ids)


@pytest.mark.parametrize("sizes", [[1, 2], np.zeros(8), np.full(8, np.nan), [-1] + [1] * 7])
def test_sizes_that_cannot_be(sizes):
    with pytest.raises(InvalidInputError, match="sizes"):
        KDPP.from_profiles(clustered_profiles(8), 3).horvitz_thompson_weights([0, 1, 2], sizes)


def test_features_that_do_not_fit():
    landmarks = Landmarks.fit(clustered_profiles(30), 10)
    features = landmarks.features(clustered_profiles(30))
    with pytest.raises(InvalidInputError, match="Features"):
        KDPP.from_features(features[:, :5], landmarks, 3)
    with pytest.raises(InvalidInputError, match="Gram"):
        KDPP.from_features(features, landmarks, 3, population_gram=np.eye(3))


def test_a_seed_is_no_source_of_chance():
    with pytest.raises(InvalidInputError, match=r"such as np\.random\.default_rng\(0\), not 0"):
        KDPP.from_kernel(np.eye(4), 2).sample(0)
