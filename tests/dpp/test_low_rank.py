import numpy as np
import pytest
from brute_force import all_cohorts, clustered_profiles, cohort_probabilities, counts
from scipy import stats

from fedcohort.dpp import KDPP, Landmarks, gram, similarity
from fedcohort.dpp.kernels import Frame, distances
from fedcohort.dpp.landmarks import largest_distance, low_rank_spectrum, spread


def approximate_kernel(landmarks, profiles):
    features = landmarks.features(profiles)
    s = features * landmarks.signs @ features.T
    return s @ s


@pytest.mark.parametrize(("clients", "noise", "tolerance"), [(100, 0.1, 0.02), (300, 0.3, 0.05)])
def test_inclusion_probabilities_are_close_to_exact(clients, noise, tolerance):
    profiles = clustered_profiles(clients, noise=noise)
    exact = KDPP.from_profiles(profiles, 10).inclusion_probabilities()
    low = KDPP.from_profiles(profiles, 10, rank=40)
    assert np.abs(low.inclusion_probabilities() - exact).sum() / 10 < tolerance
    assert low.report.kind == "low-rank"
    assert low.report.rank <= 40


def test_more_landmarks_come_closer():
    profiles = clustered_profiles(200, noise=0.3)
    errors = []
    for count in (12, 50, 200):
        landmarks = Landmarks.fit(profiles, count)
        features = landmarks.features(profiles)
        errors.append(
            np.linalg.norm(features * landmarks.signs @ features.T - similarity(profiles))
        )
    assert errors[0] > 1.2 * errors[1]
    assert errors[2] < 1e-9


def test_settled_landmarks_favour_no_client(monkeypatch):
    """A landmark at a client represents it better than its neighbours, and draws it more."""
    profiles = clustered_profiles(100, noise=0.1)
    exact = KDPP.from_profiles(profiles, 10).inclusion_probabilities()
    errors = []
    for steps in (3, 0):
        monkeypatch.setattr("fedcohort.dpp.landmarks._SETTLING_STEPS", steps)
        low = KDPP.from_profiles(profiles, 10, rank=20).inclusion_probabilities()
        errors.append(np.abs(low - exact).sum() / 10)
    assert errors[0] < 0.015 < 2 * errors[0] < errors[1]


def test_spread_landmarks_beat_crowded_ones():
    """Three large groups and seven small: uniform choice would often miss the small ones."""
    sizes = np.repeat(np.arange(10), [200, 200, 200, 3, 3, 3, 3, 3, 3, 3])
    rng = np.random.default_rng(0)
    profiles = rng.standard_normal((10, 20))[sizes] + 0.05 * rng.standard_normal((sizes.size, 20))
    for seed in range(5):
        chosen = spread(profiles, 12, np.random.default_rng(seed))
        assert np.unique(sizes[chosen]).size == 10


@pytest.mark.parametrize("rank", [4, 6])
def test_available_clients_against_determinants(rank):
    profiles = np.random.default_rng(0).standard_normal((9, 3))
    kernel = approximate_kernel(Landmarks.fit(profiles, rank), profiles)
    rows = np.array([8, 1, 2, 5, 4, 7])
    sampler = KDPP.from_profiles(profiles, 3, rank=rank, available=rows)
    expected = cohort_probabilities(kernel[np.ix_(rows, rows)], 3)
    probabilities = np.exp(sampler.log_probability(all_cohorts(6, 3)))
    np.testing.assert_allclose(probabilities, expected, atol=1e-10)
    # The comparison with absent clients matters: leaving them out gives something else.
    alone = KDPP.from_features(
        Landmarks.fit(profiles, rank).features(profiles)[rows], Landmarks.fit(profiles, rank), 3
    )
    assert np.abs(np.exp(alone.log_probability(all_cohorts(6, 3))) - expected).max() > 1e-3
    seen = counts(sampler.sample(np.random.default_rng(0), size=20_000), 6)
    assert stats.chisquare(seen, expected * 20_000).pvalue > 1e-3


def test_frequencies_with_many_blocks():
    """More clients than one step of the distribution function holds, and a last step cut short."""
    profiles = clustered_profiles(203, noise=0.3)
    for sampler in (
        KDPP.from_profiles(profiles, 4, rank=12),
        KDPP.from_profiles(profiles, 4),
    ):
        draws = 20_000
        drawn = sampler.sample(np.random.default_rng(0), size=draws).ravel()
        frequency = np.bincount(drawn, minlength=203) / draws
        exact = sampler.inclusion_probabilities()
        error = np.sqrt(exact * (1 - exact) / draws)
        assert (np.abs(frequency - exact) < 4.5 * error).all()


def test_landmarks_everywhere_give_the_exact_kernel():
    profiles = clustered_profiles(40, noise=0.4)
    exact = KDPP.from_profiles(profiles, 5)
    low = KDPP.from_profiles(profiles, 5, rank=40)
    cohorts = exact.sample(np.random.default_rng(0), size=50)
    np.testing.assert_allclose(
        low.log_probability(cohorts), exact.log_probability(cohorts), rtol=1e-8
    )


def test_a_common_offset_does_not_matter():
    """‖x‖² + ‖z‖² − 2xᵀz of profiles near 1e7 would have no digits left."""
    profiles = clustered_profiles(100, noise=0.2)
    plain = KDPP.from_profiles(profiles, 5, rank=20).inclusion_probabilities()
    moved = KDPP.from_profiles(profiles + 1e7, 5, rank=20).inclusion_probabilities()
    np.testing.assert_allclose(moved, plain, atol=1e-6)


def test_joining_and_leaving_change_nobody_elses_features():
    profiles = clustered_profiles(120, noise=0.2)
    landmarks = Landmarks.fit(profiles[:100], 20)
    before = landmarks.features(profiles[:100])
    joined = landmarks.features(profiles[100:])
    everybody = np.concatenate([before, joined])
    np.testing.assert_allclose(landmarks.features(profiles), everybody, atol=1e-12)

    updated = gram(before) + gram(joined) - gram(before[:10])
    np.testing.assert_allclose(updated, gram(everybody[10:]), atol=1e-9)
    sampler = KDPP.from_features(everybody[10:], landmarks, 6)
    kernel = approximate_kernel(landmarks, profiles[10:])
    cohort = np.array([0, 11, 22, 33, 99, 104])
    expected = np.linalg.slogdet(kernel[np.ix_(cohort, cohort)])[1] - sampler.log_normalizer
    assert sampler.log_probability(cohort) == pytest.approx(expected, rel=1e-8)


def test_same_population_has_not_drifted():
    profiles = clustered_profiles(400, noise=0.2)
    landmarks = Landmarks.fit(profiles, 30)
    again = clustered_profiles(400, noise=0.2)[::2]
    assert not landmarks.drifted(landmarks.features(again), landmarks.reach(again))


def test_a_new_group_is_drift():
    profiles = clustered_profiles(400, noise=0.2)
    landmarks = Landmarks.fit(profiles, 30)
    features = landmarks.features(profiles)
    new = profiles[:40] * 0.05 + np.random.default_rng(1).standard_normal(20)
    assert landmarks.reach(new) < 1.1
    assert landmarks.drifted(np.concatenate([features, landmarks.features(new)]))
    few = landmarks.features(new[:2])
    assert not landmarks.drifted(np.concatenate([features, few]))


def test_one_client_beyond_the_scale_is_drift():
    profiles = clustered_profiles(400, noise=0.2)
    landmarks = Landmarks.fit(profiles, 30)
    far = profiles[:1] * 10
    everybody = landmarks.features(np.concatenate([profiles, far]))
    assert landmarks.reach(far) > 1.1
    np.testing.assert_array_equal(landmarks.features(far), 0)
    assert landmarks.drifted(everybody, landmarks.reach(far))
    assert not landmarks.drifted(everybody)


def test_landmarks_explain_themselves():
    profiles = clustered_profiles(100, noise=0.2)
    landmarks = Landmarks.fit(profiles, 100)
    np.testing.assert_allclose(landmarks.residuals(landmarks.features(profiles)), 0, atol=1e-9)
    few = Landmarks.fit(profiles, 5)
    assert few.residuals(few.features(profiles)).mean() > 0.1


def test_largest_distance_is_found_without_all_pairs():
    for seed in range(10):
        profiles = np.random.default_rng(seed).standard_normal((500, 5))
        frame = Frame.around(profiles, profiles)
        framed = frame(profiles)
        found = largest_distance(profiles, frame, framed[:8])
        true = distances(framed, framed).max()
        assert found <= true * (1 + 1e-12)
        assert found > 0.97 * true


def test_float32_profiles_are_read_in_blocks(monkeypatch):
    profiles = clustered_profiles(500, noise=0.2).astype(np.float32)
    whole = Landmarks.fit(profiles, 20)
    # 37 rows at a time, and a last block that is shorter.
    monkeypatch.setattr("fedcohort.dpp.kernels._BLOCK_NUMBERS", 37 * 20)
    parts = Landmarks.fit(profiles, 20)
    np.testing.assert_allclose(parts.features(profiles), whole.features(profiles), atol=1e-10)
    one, other = (KDPP.from_profiles(profiles, 5, rank=20) for _ in range(2))
    np.testing.assert_array_equal(
        one.sample(np.random.default_rng(0), size=9), other.sample(np.random.default_rng(0), size=9)
    )


def test_seeding_looks_at_a_part_of_a_large_population(monkeypatch):
    monkeypatch.setattr("fedcohort.dpp.landmarks._SEEDING_CLIENTS", 100)
    profiles = clustered_profiles(500, noise=0.1)
    exact = KDPP.from_profiles(profiles, 5).inclusion_probabilities()
    low = KDPP.from_profiles(profiles, 5, rank=30).inclusion_probabilities()
    assert np.abs(low - exact).sum() / 5 < 0.03


def test_landmark_seed_chooses_the_landmarks():
    profiles = clustered_profiles(300, noise=0.3)
    first, again, other = (Landmarks.fit(profiles, 12, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.points, again.points)
    assert not np.array_equal(first.points, other.points)


def test_landmarks_survive_being_saved_as_arrays():
    profiles = clustered_profiles(60, noise=0.3)
    landmarks = Landmarks.fit(profiles, 12)
    restored = Landmarks.from_arrays(landmarks.to_arrays())
    np.testing.assert_array_equal(restored.features(profiles), landmarks.features(profiles))
    assert restored.reach(2 * profiles) == landmarks.reach(2 * profiles)
    assert restored.tolerated == landmarks.tolerated


def test_negative_eigenvalues_of_the_landmarks():
    """S may be indefinite: Φ J (ΦᵀΦ) J Φᵀ with signs of both kinds, of some rows."""
    features = np.random.default_rng(0).standard_normal((12, 4))
    signs = np.array([1.0, -1.0, 1.0, -1.0])
    s = features * signs @ features.T
    rows = np.arange(7)
    expected = (s @ s)[np.ix_(rows, rows)]
    spectrum = low_rank_spectrum(features[rows], signs, gram(features))
    vectors = spectrum.vectors.entries(rows[None, :], np.arange(4)[None, :])[0]
    np.testing.assert_allclose(vectors * np.exp(spectrum.log_values) @ vectors.T, expected)


def test_nearly_dependent_features_still_give_an_orthonormal_basis():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((500, 6))
    features[:, 5] = features[:, 4] + 1e-5 * rng.standard_normal(500)
    spectrum = low_rank_spectrum(features, np.ones(6))
    items, vectors = np.arange(500)[None, :], np.arange(spectrum.rank)[None, :]
    basis = spectrum.vectors.entries(items, vectors)[0]
    assert spectrum.rank == 6
    np.testing.assert_allclose(basis.T @ basis, np.eye(6), atol=1e-9)
    singular = np.linalg.svd(features, compute_uv=False)
    np.testing.assert_allclose(spectrum.log_values, 4 * np.log(singular), rtol=1e-5)
