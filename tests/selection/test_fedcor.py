import numpy as np
import pytest
from scipy.stats import chisquare

from fedcohort import make_selector
from fedcohort.selection import Need, Outcome
from fedcohort.selection.fedcor import covariance, greedy
from fedcohort.testing import check_selector


@pytest.mark.parametrize(
    "parameters", [{}, {"warmup": 2, "interval": 3, "history": 3}, {"warmup": 0, "rank": 1}]
)
def test_conformance(parameters):
    check_selector(lambda: make_selector("fedcor", **parameters))


def _play(selector, k, losses, rng):
    """Do one round; return whether everyone was asked, and the cohort."""
    asked = selector.ask(k, rng=rng)
    if asked:
        assert asked[Need.LOSS].tolist() == selector.clients.tolist()
        selector.tell(Need.LOSS, asked[Need.LOSS], losses)
    return bool(asked), selector.select(k, rng=rng)


def test_losses_are_asked_before_and_after_each_sample():
    selector = make_selector("fedcor", warmup=3, interval=4).fit(clients=5)
    rng = np.random.default_rng(0)
    asked = [_play(selector, 2, rng.random(5), rng)[0] for _ in range(12)]
    # Samples are rounds 1 to 3, 7 and 11.
    assert [t for t, yes in enumerate(asked, 1) if yes] == [1, 2, 3, 4, 7, 8, 11, 12]


def test_samples_are_the_changes_that_single_rounds_made():
    selector = make_selector("fedcor", warmup=2, interval=3, history=3).fit(clients=2)
    rng = np.random.default_rng(0)
    for t in range(1, 10):
        _play(selector, 1, np.array([10.0, 20.0]) - [t**2, 2 * t**2], rng)
    # In round t the loss falls by 2t + 1, from 10 − t² to 10 − (t + 1)². Samples are rounds 1, 2, 5
    # and 8, of which three are kept.
    state = selector.state()
    found = dict(zip(state["fedcor.sampled"].tolist(), state["client.changes"][0], strict=True))
    assert found == {8: -17.0, 2: -5.0, 5: -11.0}
    assert np.array_equal(state["client.changes"][1], 2 * state["client.changes"][0])


def test_chosen_cohorts_are_no_samples_where_everyone_is_asked_before_every_round():
    selector = make_selector("fedcor", warmup=2, interval=2).fit(clients=4)
    rng = np.random.default_rng(0)
    assert all(_play(selector, 2, rng.random(4), rng)[0] for _ in range(9))
    sampled = selector.state()["fedcor.sampled"]
    assert sorted(sampled[sampled > 0].tolist()) == [1, 2, 4, 6, 8]


def test_the_covariance_is_the_samples_own_where_the_rank_allows():
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(30, 4))
    factor, noise = covariance(samples, np.ones(4), 3)
    found = factor @ factor.T + noise * np.eye(30)
    exact = np.cov(samples, bias=True)
    assert np.abs(found - exact).max() < 0.02 * np.trace(exact)


def test_few_columns_leave_the_rest_to_noise_as_the_likelihood_wants():
    rng = np.random.default_rng(1)
    samples = rng.normal(size=(6, 40))
    factor, noise = covariance(samples, np.ones(40), 2)
    values = np.sort(np.linalg.eigvalsh(np.cov(samples, bias=True)))[::-1]
    assert noise == pytest.approx(values[2:].mean())
    found = np.sort(np.linalg.eigvalsh(factor @ factor.T + noise * np.eye(6)))[::-1]
    assert np.allclose(found, [*values[:2], *[noise] * 4])


def test_weights_and_gaps_count_in_the_covariance():
    samples = np.array([[1.0, 3.0, np.nan], [2.0, 6.0, 1e6]])
    factor, _ = covariance(samples[:, :2], np.array([3.0, 1.0]), 1)
    # Means 1.5 and 3; variances ¾·¼ + ¼·2.25 = .75 and 3; perfectly correlated.
    assert np.allclose(factor @ factor.T, np.array([[0.75, 1.5], [1.5, 3.0]]), rtol=0.01)
    factor, _ = covariance(samples, np.ones(3), 2)
    assert np.isfinite(factor).all()


def _greedy_by_hand(sigma, shares, alpha, k):
    sigma, chosen = sigma.copy(), []
    for _ in range(k):
        left = [c for c in range(len(sigma)) if c not in chosen]
        best = max(left, key=lambda c: alpha[c] * shares @ sigma[:, c] / np.sqrt(sigma[c, c]))
        sigma -= np.outer(sigma[:, best], sigma[best]) / sigma[best, best]
        chosen.append(best)
    return chosen


def test_the_greedy_choice_conditions_the_covariance():
    rng = np.random.default_rng(2)
    for _ in range(30):
        factor, noise = rng.normal(size=(10, 3)), 0.2
        shares, alpha = rng.dirichlet(np.ones(10)), rng.uniform(0.5, 1, 10)
        sigma = factor @ factor.T + noise * np.eye(10)
        found = greedy(factor, noise, shares, alpha, 5, np.arange(10))
        assert found.tolist() == _greedy_by_hand(sigma, shares, alpha, 5)


def _two_groups(**parameters):
    """Return a selector past its warm-up: 0-5 move together strongly, 6-8 together, 9 alone."""
    rng = np.random.default_rng(0)
    selector = make_selector("fedcor", **{"warmup": 20, "interval": 100, **parameters})
    selector.fit(clients=10)
    groups = np.repeat([0, 1, 2], [6, 3, 1])
    losses = np.full(10, 5.0)
    for _ in range(20):
        _play(selector, 2, losses, rng)
        losses = losses + rng.normal(size=3)[groups] + 0.05 * rng.normal(size=10)
    selector.tell(Need.LOSS, range(10), losses)
    return selector, groups, rng


def test_one_of_each_group_that_moves_together_is_chosen():
    selector, groups, rng = _two_groups()
    for _ in range(5):
        assert sorted(groups[selector.select(2, rng=rng).ids]) == [0, 1]
        assert sorted(groups[selector.select(3, rng=rng).ids]) == [0, 1, 2]


def test_annealing_lets_the_members_of_a_group_take_turns():
    selector, groups, rng = _two_groups(beta=0.8)
    met = {int(selector.select(1, rng=rng).ids[0]) for _ in range(8)}
    assert len(met) >= 6
    selector, groups, rng = _two_groups(beta=1.0)
    assert len({int(selector.select(1, rng=rng).ids[0]) for _ in range(8)}) == 1
    assert groups[selector.select(1, rng=rng).ids].tolist() == [0]


def test_a_new_sample_starts_the_annealing_anew():
    selector, _, rng = _two_groups(interval=3)
    for _ in range(2):
        _play(selector, 2, np.ones(10), rng)
    assert selector.state()["client.picks"].sum() == 4
    for _ in range(2):
        _play(selector, 2, np.full(10, 0.5), rng)
    assert selector.state()["client.picks"].sum() == 2


def test_warm_up_and_a_federation_never_told_are_uniform():
    rng = np.random.default_rng(0)
    for warmup in (0, 10**6):
        selector = make_selector("fedcor", warmup=warmup).fit(clients=5)
        drawn = np.concatenate([selector.select(2, rng=rng).ids for _ in range(1000)])
        assert chisquare(np.bincount(drawn, minlength=5)).pvalue > 1e-3


def test_samples_fade_with_the_rounds(monkeypatch):
    seen = []

    def spy(samples, weights, rank):
        seen.append(weights)
        return covariance(samples, weights, rank)

    monkeypatch.setattr("fedcohort.selection.fedcor.covariance", spy)
    selector = make_selector("fedcor", warmup=2, interval=3, gamma=0.5).fit(clients=4)
    rng = np.random.default_rng(0)
    for _ in range(7):
        _play(selector, 2, rng.random(4), rng)
    # In rounds 3 and 4 there are samples of rounds 1 and 2; in 6 and 7 also of round 5.
    expected = [[1, 0.5], [1, 0.5], [1, 0.5**3, 0.5**4], [1, 0.5**3, 0.5**4]]
    assert [w.tolist() for w in seen] == expected


def test_losses_of_training_are_not_wanted():
    selector = make_selector("fedcor").fit(clients=2)
    selector.tell(Need.LOSS, [0, 1], [1.0, 2.0])
    selector.observe(Outcome(np.arange(2), np.ones(2, bool), losses=np.array([9.0, 9.0])))
    assert selector.state()["client.loss"].tolist() == [1.0, 2.0]
