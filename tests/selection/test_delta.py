import numpy as np
import pytest
from scipy.stats import chisquare

from fedcohort import make_selector
from fedcohort.selection import Need, Outcome
from fedcohort.testing import check_selector

UPDATES = np.array(
    [
        [0.19, -0.52, -0.41, -2.44, 1.8, 1.14],
        [-0.33, 0.77, 0.28, -0.55, 0.98, -0.31],
        [-0.33, -0.79, 0.45, -0.1, 0.55, -0.61],
        [0.13, -0.89, 0.84, 0.19, 0.33, 0.41],
    ]
)
PARTICIPANTS = np.array([4, 1, 0, 5])
BEFORE = np.array([0.1, 0.3, 0.05, 0.15, 0.25, 0.15])
SIZES = np.array([50.0, 10, 7, 9, 30, 20])


@pytest.mark.parametrize("spec", ["delta", "delta:least=0", "delta:diversity=1"])
def test_conformance(spec):
    check_selector(spec)


def test_those_whose_updates_were_nothing_are_equally_likely_where_nobody_else_is_there():
    selector = make_selector("delta", diversity=0.0, least=0.0).fit(clients=4)
    selector.observe(
        Outcome(np.arange(3), np.ones(3, bool), updates=np.eye(3)[[0, 0, 1]] * [1, 0, 0])
    )
    assert selector.select(1, [2], rng=np.random.default_rng(0)).ids.tolist() == [2]


@pytest.mark.parametrize(
    ("diversity", "expected"),
    [
        (0.5, [0.26312367, 0.05845747, 0.05, 0.15, 0.36150714, 0.11691172]),
        (1.0, [0.28063101, 0.06002528, 0.05, 0.15, 0.32874594, 0.13059777]),
        (0.0, [0.24877108, 0.05717217, 0.05, 0.15, 0.38836492, 0.10569183]),
    ],
)
def test_probabilities_are_those_of_the_authors_code(diversity, expected):
    """Compared with `reweight_prac` of L3030/DELTA_FL, Femnist and CIfar-10/local_update.py.

    It was run on UPDATES, split into two layers, of clients 4, 1, 0 and 5.
    """
    selector = _after(BEFORE, SIZES, diversity)
    np.testing.assert_allclose(selector._roster["probability"], expected, atol=1e-8)


def test_with_equal_sizes_and_diversity_alone_they_are_also_fedxplores():
    """Compared with `update_probs` of ispras/FedXplore, src/client_selectors/delta.py, α₂ = 0."""
    selector = _after(BEFORE, np.ones(6), 1.0)
    expected = [0.15428169, 0.16499961, 0.05, 0.15, 0.30122282, 0.17949588]
    np.testing.assert_allclose(selector._roster["probability"], expected, atol=1e-8)


@pytest.mark.parametrize("available", [None, [0, 1, 4, 5]])
def test_the_weighted_sum_is_unbiased(available):
    selector = _after(BEFORE, SIZES, 0.5)
    rng = np.random.default_rng(0)
    total = np.zeros(6)
    for _ in range(20_000):
        cohort = selector.select(2, available, rng=rng)
        total += np.bincount(cohort.ids, cohort.weights, minlength=6)
    there = np.isin(range(6), range(6) if available is None else available)
    shares = np.where(there, SIZES, 0) / SIZES[there].sum()
    np.testing.assert_allclose(total / 20_000, shares, atol=0.012)


def test_draws_follow_the_probabilities_and_at_least_a_share_of_an_equal_chance():
    selector = make_selector("delta", least=0.4).fit(clients=4)
    selector._roster.define("probability", 0.0)
    selector._roster.put("probability", np.arange(4), np.array([0.0, 1, 1, 2]))
    rng = np.random.default_rng(0)
    drawn = np.concatenate([selector.select(4, rng=rng).ids for _ in range(2500)])
    chances = 0.6 * np.array([0, 0.25, 0.25, 0.5]) + 0.1
    assert chisquare(np.bincount(drawn, minlength=4), chances * 10_000).pvalue > 1e-3


def test_the_first_round_is_uniform_and_weighs_by_size():
    selector = make_selector("delta").fit(sizes=[10, 30])
    cohort = selector.select(2, rng=np.random.default_rng(0))
    expected = np.where(cohort.ids == 0, 0.25, 0.75) / (2 * 0.5)
    np.testing.assert_allclose(cohort.weights, expected)


@pytest.mark.parametrize("updates", [np.ones((3, 4)), np.full((3, 4), 3e38)])
def test_updates_that_tell_nothing_leave_the_probabilities_alone(updates):
    selector = make_selector("delta", diversity=1.0).fit(clients=5)
    outcome = Outcome(np.arange(3), np.ones(3, bool), updates=updates.astype(np.float32))
    selector.observe(outcome)
    np.testing.assert_array_equal(selector._roster["probability"], np.ones(5))


def test_drop_outs_keep_theirs_and_updates_are_not_kept():
    selector = make_selector("delta").fit(clients=4)
    updates = np.array([[1.0, 0], [0, 3], [np.nan, np.nan]], np.float32)
    selector.observe(Outcome(np.array([0, 1, 3]), np.array([True, True, False]), updates=updates))
    chances = selector._roster["probability"]
    assert chances[0] < 1 < chances[1]
    assert chances[0] + chances[1] == pytest.approx(2)
    assert chances[[2, 3]].tolist() == [1, 1]
    assert Need.UPDATE.value not in selector._roster


def _after(before, sizes, diversity):
    """Return a selector with the probabilities `before` that heard UPDATES of PARTICIPANTS."""
    selector = make_selector("delta", diversity=diversity, least=0.0).fit(sizes=sizes)
    selector._roster.define("probability", 0.0)
    selector._roster.put("probability", np.arange(6), before)
    selector.observe(Outcome(PARTICIPANTS, np.ones(4, bool), updates=UPDATES))
    return selector
