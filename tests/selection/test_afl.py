import numpy as np
import pytest
from scipy.stats import chisquare

from fedcohort import make_selector
from fedcohort.selection import Need, Outcome
from fedcohort.testing import check_selector


@pytest.mark.parametrize(
    "parameters", [{}, {"alpha1": 1.0}, {"alpha1": 0.5, "alpha3": 0.0}, {"alpha3": 1.0}]
)
def test_conformance(parameters):
    check_selector(lambda: make_selector("afl", **parameters))


def _with_losses(losses, sizes=None, **parameters):
    selector = make_selector("afl", **parameters).fit(sizes=sizes, clients=len(losses))
    selector.tell(Need.LOSS, range(len(losses)), losses)
    return selector


def test_unknown_losses_are_asked_once():
    selector = make_selector("afl").fit(clients=3)
    rng = np.random.default_rng(0)
    assert selector.ask(1, rng=rng)[Need.LOSS].tolist() == [0, 1, 2]
    selector.tell(Need.LOSS, [0, 2], [1.0, 1.0])
    assert selector.ask(1, rng=rng)[Need.LOSS].tolist() == [1]


def test_the_lowest_values_are_set_aside():
    # √n · loss is 10, 2, 30, 4, 50, 6, 70, 8: with α1 = .5 clients 0, 2, 4 and 6 stay.
    sizes = [100, 1, 100, 4, 100, 4, 100, 4]
    losses = [1.0, 2.0, 3.0, 2.0, 5.0, 3.0, 7.0, 4.0]
    selector = _with_losses(losses, sizes, alpha1=0.5, alpha3=0.0, alpha2=0.0)
    rng = np.random.default_rng(0)
    drawn = np.concatenate([selector.select(2, rng=rng).ids for _ in range(200)])
    assert set(drawn.tolist()) == {0, 2, 4, 6}
    # With α2 = 0 the four are equally likely; dependence within pairs only narrows the counts.
    assert chisquare(np.bincount(drawn // 2)).pvalue > 1e-3


def test_the_others_are_drawn_by_the_exponential_of_their_value():
    sizes, losses = np.array([100, 400, 900, 25]), np.array([2.0, 1.0, 1.5, 3.0])
    selector = _with_losses(losses, sizes, alpha1=0.0, alpha2=0.05, alpha3=0.0)
    rng = np.random.default_rng(1)
    drawn = [int(selector.select(1, rng=rng).ids[0]) for _ in range(6000)]
    weights = np.exp(0.05 * np.sqrt(sizes) * losses)
    expected = 6000 * weights / weights.sum()
    assert chisquare(np.bincount(drawn, minlength=4), expected).pvalue > 1e-3


@pytest.mark.parametrize(("alpha3", "k", "places"), [(0.5, 4, 2.0), (0.1, 5, 0.5), (1.0, 4, 4.0)])
def test_a_share_of_the_cohort_is_uniform_over_all_that_are_left(alpha3, k, places):
    selector = _with_losses(np.arange(40.0), alpha1=0.5, alpha3=alpha3)
    rng = np.random.default_rng(2)
    aside = sum((selector.select(k, rng=rng).ids < 20).sum() for _ in range(2000))
    # Only a uniform place can fall on the 20 set aside, and 40 - (k - places) clients are left
    # for each. The standard error is below 0.025.
    assert aside / 2000 == pytest.approx(places * 20 / (40 - k + places), abs=0.1)


def test_values_too_large_for_an_exponential_are_drawn_all_the_same():
    selector = _with_losses([1e6, 2e6, 3e6], alpha1=0.0, alpha2=1.0, alpha3=0.0)
    assert selector.select(1, rng=np.random.default_rng(0)).ids.tolist() == [2]


def test_a_model_without_a_finite_loss_leaves_the_last_one():
    selector = _with_losses([1.0, 2.0, 3.0])
    told = np.array([0.5, np.inf, np.nan])
    selector.observe(Outcome(np.arange(3), np.array([True, True, False]), losses=told))
    assert selector.state()["client.loss"].tolist() == [0.5, 2.0, 3.0]


def test_losses_of_another_type_are_heard_as_numbers():
    selector = make_selector("afl").fit(clients=4)
    losses = np.array([1.0, None, 3.0, 2.0], object)
    trained = np.array([True, False, True, True])
    selector.observe(Outcome(np.arange(4), trained, losses=losses))
    assert selector.state()["client.loss"][[0, 2, 3]].tolist() == [1.0, 3.0, 2.0]
