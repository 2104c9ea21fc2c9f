import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom

from fedcohort.errors import InvalidInputError, NoClientsAvailableError, UnknownClientError
from fedcohort.federation import build_federation, load_dataset
from fedcohort.metrics import gemd, gemd_from, gemd_of_cohorts

COUNTS = np.array([[10, 0], [0, 30], [5, 5]])


def test_by_hand():
    # Everyone: 15 and 35 of 50. Clients 0 and 2: 15 and 5 of 20.
    assert gemd(COUNTS, [0, 2]) == pytest.approx(2 * (0.75 - 0.3))
    assert gemd(COUNTS, [0, 1, 2]) == pytest.approx(0.0)


def test_a_client_drawn_twice_counts_twice():
    # Clients 0, 0 and 1: 20 and 30 of 50.
    assert gemd(COUNTS, [0, 0, 1]) == pytest.approx(2 * (0.4 - 0.3))


def test_weights_mix_the_clients_distributions():
    # Half of client 0's (1, 0) and half of client 1's (0, 1).
    assert gemd(COUNTS, [0, 1], weights=[0.5, 0.5]) == pytest.approx(2 * (0.5 - 0.3))
    assert gemd(COUNTS, [0, 1], weights=[7, 7]) == pytest.approx(2 * (0.5 - 0.3))
    assert gemd(COUNTS, [0, 1], weights=[0, 1]) == pytest.approx(2 * 0.3)


def test_a_client_without_samples_changes_nothing():
    counts = np.vstack([COUNTS, [[0, 0]]])
    assert gemd(counts, [0, 3]) == gemd(COUNTS, [0])


def direct(counts, ids, weights):
    sizes = counts.sum(axis=1)
    weight = sizes[ids] if weights is None else np.asarray(weights)
    total = 0.0
    for label in range(counts.shape[1]):
        mixture = sum(w * counts[c, label] / sizes[c] for c, w in zip(ids, weight, strict=True))
        total += abs(mixture / sum(weight) - counts[:, label].sum() / counts.sum())
    return total


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), weighted=st.booleans())
def test_it_is_the_definition_and_many_cohorts_are_as_one(seed, weighted):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 20, (8, 4)) + np.eye(8, 4, dtype=int) + 1
    cohorts = rng.integers(0, 8, (5, 3))
    weights = rng.random((5, 3)) + 0.01 if weighted else None
    many = gemd_of_cohorts(counts, cohorts, weights)
    for row in range(5):
        w = None if weights is None else weights[row]
        assert many[row] == pytest.approx(direct(counts, cohorts[row], w))
        assert gemd(counts, cohorts[row], w) == pytest.approx(many[row])
        assert 0 <= many[row] <= 2


@pytest.mark.parametrize(
    ("counts", "ids", "weights", "error", "sentence"),
    [
        (COUNTS, [], None, NoClientsAvailableError, "without clients"),
        (COUNTS, [3], None, UnknownClientError, "no client 3: ids go from 0 to 2"),
        (COUNTS, [-1], None, UnknownClientError, "no client -1"),
        (COUNTS, [0.5], None, InvalidInputError, "must be integers"),
        (COUNTS, [[0]], None, InvalidInputError, "row of client ids"),
        (COUNTS, [0, 1], [1.0], InvalidInputError, "Cohort weights"),
        (COUNTS, [0, 1], [1.0, -1.0], InvalidInputError, "Cohort weights"),
        (COUNTS, [0, 1], [0.0, 0.0], InvalidInputError, "no sample of any weight"),
        (np.zeros((3, 2)), [0], None, InvalidInputError, "population holds no sample"),
        (np.ones(3), [0], None, InvalidInputError, "Label counts"),
        ([[0, 0], [1, 0]], [0], None, InvalidInputError, "no sample of any weight"),
        ([[0, 0], [1, 0]], [0, 1], [1, 1], InvalidInputError, "Client 0 holds no sample"),
    ],
)
def test_what_has_no_gemd_is_refused(counts, ids, weights, error, sentence):
    with pytest.raises(error, match=sentence):
        gemd(counts, ids, weights)


def uniform_cohorts(draws, rng):
    return np.argsort(rng.random((draws, 100)), axis=1)[:, :10]


def expected_uniform_gemd():
    # Ten classes, ten clients each, all of one size: h of the ten drawn hold class j, and the
    # GEMD is Σ_j |h_j/10 − 1/10|. E|h − 1| = 2·P(h = 0), because E h = 1.
    return 2 * hypergeom(100, 10, 10).pmf(0)


def test_uniform_cohorts_have_the_gemd_that_theory_says():
    counts = np.repeat(np.eye(10, dtype=int) * 542, 10, axis=0)
    gemds = gemd_of_cohorts(counts, uniform_cohorts(4000, np.random.default_rng(0)))
    # One cohort's GEMD has a standard deviation of about .15: .01 is four standard errors.
    assert gemds.mean() == pytest.approx(expected_uniform_gemd(), abs=0.01)


def test_uniform_cohorts_on_mnist_at_full_skew():
    if not os.environ.get("FEDCOHORT_DATA"):
        pytest.skip("FEDCOHORT_DATA is not set: the tests on MNIST need a folder that holds it.")
    federation = build_federation(load_dataset("mnist"), skew="1", clients=100, seed=0)
    cohorts = uniform_cohorts(4000, np.random.default_rng(1))
    mean = gemd_of_cohorts(federation.label_counts, cohorts).mean()
    assert mean == pytest.approx(expected_uniform_gemd(), abs=0.01)
    assert mean == pytest.approx(0.66, abs=0.015)


def test_counts_that_cannot_be_summed_are_refused():
    with pytest.raises(InvalidInputError, match="cannot be summed"):
        gemd([[1e308, 1e308], [1.0, 2.0]], [0])
    assert 0 <= gemd([[1e300, 1e300], [1.0, 2.0]], [1]) <= 2


def test_gemd_from_everyones_distribution_is_gemd():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 30, (50, 7))
    everyone = counts.sum(0) / counts.sum()
    for _ in range(20):
        ids = rng.integers(50, size=6)
        weights = rng.random(6)
        found = gemd_from(everyone, counts[ids], weights)
        assert found == pytest.approx(gemd(counts, ids, weights))
        sizes = counts[ids].sum(axis=1).astype(float)
        assert gemd_from(everyone, counts[ids], sizes) == pytest.approx(gemd(counts, ids))
