import numpy as np
import pytest
from scipy.stats import chisquare

from fedcohort import make_selector
from fedcohort.selection import Need, Outcome
from fedcohort.selection.hics import entropy_of, temperature_for
from fedcohort.testing import check_selector


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"outputs": 5, "temperature": 1.0},
        {"clusters": 2, "gamma": 0.0},
        {"clusters": 50, "horizon": 1},
        {"outputs": 1},
        {"outputs": 4, "freeze": True},
        {"outputs": 3, "fallback": None},
    ],
)
def test_conformance(parameters):
    check_selector(lambda: make_selector("hics", **parameters))


def test_entropy_by_hand():
    biases = np.array([[0.0, 0.0, 0.0, 0.0], [np.log(3) / 2, 0.0, -1e9, -1e9], [5.0, 0, 0, 0]])
    # Over T = ½ the softmax is uniform over four; (3, 1, 0, 0) / 4; almost all in one.
    found = entropy_of(biases, 0.5)
    assert found[0] == pytest.approx(np.log(4))
    assert found[1] == pytest.approx(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25)))
    assert found[2] < 0.01


def test_the_temperature_follows_the_size_of_the_changes():
    biases = np.array([[3.0, 4.0, 0.0, 0.0], [0.0, 0.0, -5.0, 0.0]])
    assert temperature_for(biases) == pytest.approx(0.5 * np.sqrt(50 / 8))
    assert temperature_for(1e-200 * biases) == pytest.approx(0.5e-200 * np.sqrt(50 / 8))
    assert temperature_for(np.zeros((2, 3))) == 1.0
    # So entropies are the same at any learning rate.
    for lr in (1e-4, 1.0, 300.0):
        found = entropy_of(lr * biases, temperature_for(lr * biases))
        assert found == pytest.approx(entropy_of(biases, temperature_for(biases)))


def test_the_default_sees_the_entropy_of_labels_at_any_learning_rate():
    # What one step from even predictions does to the biases: lr · (share of the class − 1/N).
    labels = np.random.default_rng(0).dirichlet(np.full(10, 0.1), size=60)
    true = -np.sum(labels * np.log(np.maximum(labels, 1e-300)), axis=1)
    for lr in (0.001, 0.5):
        biases = lr * (labels - 0.1)
        assert np.corrcoef(entropy_of(biases, temperature_for(biases)), true)[0, 1] > 0.75
    # A temperature made for one learning rate sees little at another.
    assert np.corrcoef(entropy_of(0.5 * (labels - 0.1), 0.0025), true)[0, 1] < 0.5


def test_models_are_averaged_plainly():
    selector = make_selector("hics").fit(sizes=[1.0, 2.0, 3.0, 94.0])
    assert selector.select(4, rng=np.random.default_rng(0)).weights.tolist() == [0.25] * 4


def test_frozen_only_the_first_update_of_each_client_is_heard():
    selector = make_selector("hics", outputs=2, freeze=True).fit(clients=3)
    selector.tell(Need.UPDATE, [0, 1], np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
    selector.tell(Need.UPDATE, [1, 2], np.array([[9.0, 9.0], [5.0, 6.0]], np.float32))
    assert selector.state()["client.update"].tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    selector.tell(Need.UPDATE, [2], np.array([[9.0, 9.0]], np.float32))
    assert selector.state()["client.update"][2].tolist() == [5.0, 6.0]


def test_everyone_is_chosen_once_first_also_those_who_drop_out():
    selector = make_selector("hics").fit(clients=10)
    rng = np.random.default_rng(0)
    met = []
    for _ in range(3):
        ids = selector.select(3, rng=rng).ids
        met += ids.tolist()
        selector.observe(Outcome(ids, np.zeros(3, bool)))
    last = selector.select(3, rng=rng).ids.tolist()
    assert len(set(met)) == 9
    assert set(met) | set(last) == set(range(10))
    assert len(selector.select(3, rng=rng)) == 3


def _met(biases, sizes=None, padding=0, **parameters):
    """Return a selector that knows everyone's update, whose end is `biases`."""
    count, outputs = biases.shape
    usual = {"outputs": outputs, "temperature": 1.0, "fallback": None}
    selector = make_selector("hics", **{**usual, **parameters})
    selector.fit(sizes=sizes, clients=count)
    selector.select(count, rng=np.random.default_rng(0))
    rest = np.random.default_rng(5).normal(size=(count, padding))
    selector.tell(Need.UPDATE, range(count), np.hstack([rest, biases]).astype(np.float32))
    return selector


def test_only_the_bias_at_the_end_of_the_update_is_kept():
    biases = np.arange(12.0).reshape(3, 4)
    selector = _met(biases, padding=30)
    assert np.array_equal(selector.state()["client.update"], biases)


# Two clients with even labels (entropy ln 3), four that hold one class each way.
BIASES = np.array([[0.0, 0.1, 0.0]] * 2 + [[9.0, 0.0, 0.0]] * 2 + [[0.0, 0.0, 9.0]] * 2)


def _counts(selector, draws=1000):
    state = selector.state()
    rng = np.random.default_rng(1)
    counts = np.zeros(len(selector.clients))
    for _ in range(draws):
        selector.restore(state)
        counts[selector.select(1, rng=rng).ids] += 1
    return counts


def test_clusters_are_drawn_by_entropy_and_clients_in_them_by_size():
    sizes = np.array([1.0, 3.0, 1.0, 1.0, 2.0, 2.0])
    selector = _met(BIASES, sizes, gamma=1.0, clusters=3, horizon=10**9)
    entropies = entropy_of(BIASES, 1.0)[[0, 2, 4]]
    clusters = np.exp(entropies) / np.exp(entropies).sum()
    expected = np.repeat(clusters, 2) * [1 / 4, 3 / 4, 1 / 2, 1 / 2, 1 / 2, 1 / 2]
    assert chisquare(_counts(selector), 1000 * expected).pvalue > 1e-3


def test_the_preference_fades_with_the_rounds():
    # Half of the horizon is over: γ = 4 counts as 2; beyond the end it counts as 0.
    for horizon, gamma in ((2, 2.0), (1, 0.0)):
        selector = _met(BIASES, gamma=4.0, clusters=3, horizon=horizon)
        weights = np.exp(gamma * entropy_of(BIASES, 1.0))
        expected = 1000 * weights / weights.sum()
        assert chisquare(_counts(selector), expected).pvalue > 1e-3


@pytest.mark.parametrize(
    "other",
    [
        [0.0, 9.0],  # of equal entropy, in another direction
        [0.5, 0.0],  # in the same direction, of another entropy
    ],
)
def test_angle_and_entropy_both_set_clients_apart(other):
    biases = np.array([[9.0, 0.0], other, [9.0, 0.0], other])
    selector = _met(biases, sizes=[1.0, 2.0, 3.0, 4.0], gamma=0.0, clusters=2)
    # Each of {0, 2} and {1, 3} is drawn half of the time.
    expected = 1000 * np.array([1 / 8, 2 / 12, 3 / 8, 4 / 12])
    assert chisquare(_counts(selector), expected).pvalue > 1e-3


def test_a_cluster_that_is_used_up_is_not_drawn_again():
    selector = _met(BIASES, gamma=50.0, clusters=3, horizon=10**9)
    for seed in range(10):
        ids = selector.select(4, rng=np.random.default_rng(seed)).ids.tolist()
        assert set(ids) >= {0, 1}
        assert len(set(ids)) == 4


def test_the_fallback_draws_one_client_from_each_of_k_kinds():
    # Half of the clients are even and half skewed: their entropies vary by more than 0.1.
    changes = np.concatenate([np.zeros((6, 4)), np.tile([9.0, 0, 0, 0], (6, 1))]).astype(np.float32)
    selector = make_selector("hics", outputs=4, temperature=1.0).fit(clients=12)
    rng = np.random.default_rng(0)
    for _ in range(6):
        ids = selector.select(2, rng=rng).ids
        selector.observe(Outcome(ids, np.ones(2, bool), updates=changes[ids]))
    for _ in range(20):
        assert sorted(selector.select(2, rng=rng).ids // 6) == [0, 1]
    assert len(set(selector.select(12, rng=rng).ids.tolist())) == 12


def test_updates_of_any_size_leave_distances_that_compare():
    changes = np.array([[1e308, -1e308], [1e-308, 0], [0, 0], [-1e308, 5], [3, 1]])
    selector = make_selector("hics", outputs=2).fit(clients=5)
    rng = np.random.default_rng(0)
    selector.select(5, rng=rng)
    selector.observe(Outcome(np.arange(5), np.ones(5, bool), updates=changes))
    for _ in range(5):
        assert len(set(selector.select(3, rng=rng).ids.tolist())) == 3
    assert np.isfinite(entropy_of(changes, 0.0025)).all()
