import numpy as np
import pytest
from scipy.stats import chisquare

from fedcohort import make_selector
from fedcohort.selection import Need, Outcome
from fedcohort.selection.fedcbs import qcid
from fedcohort.testing import check_selector

COUNTS = np.array(
    [[30, 0, 0], [5, 20, 5], [0, 12, 0], [8, 9, 6], [0, 0, 25], [10, 0, 14]], np.float64
)
# Of the first two places in the third round, everyone having been chosen twice before.
FIRST = [0.0512554767, 0.0771376685, 0.0512554767, 0.6946128165, 0.0512554767, 0.0744830848]
SECOND = [0.0014625367, 0.0, 0.0003010589, 0.0047582483, 0.0020853208, 0.9913928353]


class Scripted(np.random.Generator):
    """A generator that notes the probabilities it is given and draws what it was told to."""

    def __new__(cls, *_):
        return super().__new__(cls, np.random.PCG64(0))  # type: ignore[call-arg]

    def __init__(self, *draws):
        super().__init__(np.random.PCG64(0))
        self.draws = iter(draws)
        self.probabilities = []

    def choice(self, n, p):
        assert len(p) == n
        self.probabilities.append(p)
        return next(self.draws)


def test_conformance():
    check_selector("fed-cbs")


def test_it_declares_its_leak():
    assert make_selector("fed-cbs").needs == {Need.LABEL_COUNTS}


def test_imbalance_is_that_of_public_code():
    """Compared with `qcid_fn` of ispras/FedXplore, src/client_selectors/fedcbs.py, on COUNTS."""
    expected = [0.66666667, 0.16666667, 0.66666667, 0.00882168, 0.66666667, 0.18055556]
    np.testing.assert_allclose(qcid(COUNTS), expected, atol=1e-8)
    assert qcid(COUNTS[[0, 1, 4]].sum(axis=0)) == pytest.approx(0.0161476355, abs=1e-9)


def test_imbalance_is_what_inner_products_give():
    members = [1, 3, 4]
    products = COUNTS @ COUNTS.T
    total = COUNTS[members].sum()
    expected = products[np.ix_(members, members)].sum() / total**2 - 1 / 3
    assert qcid(COUNTS[members].sum(axis=0)) == pytest.approx(expected)


def test_the_first_two_draws_are_those_of_public_code():
    """Compared with `select_clients_to_train` of ispras/FedXplore on COUNTS, in its third round.

    Its counts start at 1 and its logarithm is of the round + 1, as here. From the second place on
    its code departs from the paper: the exploration term of the candidate stands where that of the
    first client should, which cancels while counts are equal (as here), and from the third place
    on its exponents are one too low; so the third is compared with the paper's formula.
    """
    selector = make_selector("fed-cbs").fit(label_counts=COUNTS, sizes=COUNTS.sum(axis=1))
    for round_ in range(2):
        cohort = selector.select(6, rng=Scripted(*range(6)))
        assert len(cohort) == 6, round_
    rng = Scripted(1, 4, 5)
    selector.select(3, rng=rng)
    first, second, third = rng.probabilities
    np.testing.assert_allclose(first, FIRST, atol=1e-8)
    np.testing.assert_allclose(second, SECOND, atol=1e-8)
    joint = np.array([qcid(COUNTS[[1, 4, c]].sum(axis=0)) for c in range(6)])
    weights = np.where(np.isin(range(6), [1, 4]), 0.0, joint**-3.0)
    np.testing.assert_allclose(third, weights / weights.sum(), atol=1e-12)


def test_exploration_prefers_who_was_chosen_least():
    counts = np.tile([20.0, 10.0], (4, 1))
    selector = make_selector("fed-cbs").fit(label_counts=counts)
    for _ in range(8):
        selector.select(1, rng=Scripted(0))
    rng = Scripted(0)
    selector.select(1, rng=rng)
    (probabilities,) = rng.probabilities
    assert probabilities[0] < probabilities[1] == probabilities[2] == probabilities[3]
    balance, bonus = 1 / qcid(counts[0]), 10 * np.sqrt(1.5 * np.log(9) / np.array([9, 1]))
    assert probabilities[0] / probabilities[1] == pytest.approx(
        (balance + bonus[0]) / (balance + bonus[1])
    )


def test_who_dropped_out_is_not_counted():
    selector = make_selector("fed-cbs").fit(label_counts=np.tile([20.0, 10.0], (3, 1)))
    selector.select(2, rng=Scripted(0, 1))
    selector.observe(Outcome(np.array([0, 1]), np.array([True, False])))
    rng = Scripted(2)
    selector.select(1, rng=rng)
    assert rng.probabilities[0][0] < rng.probabilities[0][1] == rng.probabilities[0][2]


def test_cohorts_are_balanced_where_they_can_be():
    counts = np.repeat(np.eye(5) * 30, 4, axis=0)
    selector = make_selector("fed-cbs").fit(label_counts=counts)
    rng = np.random.default_rng(0)
    ids = np.array([selector.select(5, rng=rng).ids for _ in range(300)])
    assert np.mean([qcid(counts[cohort].sum(axis=0)) for cohort in ids]) < 0.03
    assert chisquare(np.bincount(ids.ravel(), minlength=20)).pvalue > 1e-3


def test_it_balances_classes_and_not_the_mixture_of_all():
    # Class 0 is rare: a balanced cohort holds it more often than the federation does.
    counts = np.concatenate([np.tile([20.0, 0], (3, 1)), np.tile([0.0, 20], (27, 1))])
    selector = make_selector("fed-cbs").fit(label_counts=counts)
    rng = np.random.default_rng(0)
    rare = [np.isin(selector.select(4, rng=rng).ids, [0, 1, 2]).sum() for _ in range(50)]
    assert np.mean(rare) > 1.8
