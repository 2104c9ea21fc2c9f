import numpy as np
import pytest
from scipy.stats import chisquare

from fedcohort import make_selector
from fedcohort.selection import Need, Outcome


def test_losses_are_asked_once_and_of_newcomers():
    selector = make_selector("fedsae").fit(clients=4)
    rng = np.random.default_rng(0)
    assert selector.ask(2, rng=rng)[Need.LOSS].tolist() == [0, 1, 2, 3]
    selector.tell(Need.LOSS, [0, 1, 2, 3], [1.0, 1.0, 1.0, 1.0])
    assert selector.ask(2, rng=rng) == {}
    selector.join([9])
    assert selector.ask(2, rng=rng)[Need.LOSS].tolist() == [9]


def test_the_first_choice_follows_the_softmax_of_root_size_times_loss():
    sizes, losses, beta = np.array([100, 400, 900, 25]), np.array([2.0, 1.0, 1.5, 3.0]), 0.05
    selector = make_selector("fedsae", beta=beta).fit(sizes=sizes)
    selector.tell(Need.LOSS, range(4), losses)
    rng = np.random.default_rng(1)
    drawn = [int(selector.select(1, rng=rng).ids[0]) for _ in range(6000)]
    values = np.exp(beta * np.sqrt(sizes) * losses)
    expected = 6000 * values / values.sum()
    assert chisquare(np.bincount(drawn, minlength=4), expected).pvalue > 1e-3


def test_those_chosen_last_are_asked_for_the_loss_of_the_new_model():
    selector = make_selector("fedsae").fit(clients=4)
    rng = np.random.default_rng(0)
    selector.tell(Need.LOSS, range(4), [1.0, 2.0, 3.0, 4.0])
    # Also who dropped out; what was seen in training does not count.
    trained = np.array([True, False])
    selector.observe(Outcome(np.array([0, 3]), trained, losses=np.array([0.5, np.nan])))
    assert selector.ask(2, [0, 1, 2], rng=rng)[Need.LOSS].tolist() == [0]
    selector.tell(Need.LOSS, [0], [0.7])
    assert selector.ask(2, [0, 1, 2], rng=rng) == {}
    assert selector.ask(2, rng=rng)[Need.LOSS].tolist() == [3], "asked when it is there again"
    assert selector.state()["client.loss"].tolist() == [0.7, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("passes", "following"),
    [
        (2.0, [7.0, 11.0]),  # both done: 1 + 10/1 = 11 and 2 + 10/2 = 7, sorted
        (1.0, [1.0, 11.0]),  # easy one done: 1 + 10/1 = 11 and 2/2 = 1
        (0.0, [1.0, 1.0]),  # failed: both halved, not below one pass
    ],
)
def test_ira_sets_the_next_tasks(passes, following):
    selector = make_selector("fedsae", workload="ira").fit(clients=1)
    assert _tasks_after(selector, passes, capacity=passes) == following


@pytest.mark.parametrize(
    ("passes", "capacity", "following"),
    [
        # θ starts at the passes that were seen: the hard task, 2; 1 + 3 = 4 and 2 + 1 = 3, sorted.
        (2.0, 10.0, [3.0, 4.0]),
        (1.0, 1.7, [1.0, 2.0]),  # easy done, θ = 1 ≤ L: 1 + 1 and 2/2
        (0.0, 0.4, [1.0, 1.0]),
    ],
)
def test_fassa_sets_the_first_tasks(passes, capacity, following):
    selector = make_selector("fedsae", workload="fassa").fit(clients=1)
    assert _tasks_after(selector, passes, capacity) == following


def test_fassa_remembers_what_was_seen_of_a_client():
    selector = make_selector("fedsae", workload="fassa").fit(clients=1)
    steps = [
        (2.0, 9.0, 2.0, [3.0, 4.0]),
        (4.0, 9.0, 0.95 * 2 + 0.05 * 4, [4.0, 5.0]),  # θ = 2.1 ≤ L: both slowly
        (0.0, 0.5, 0.95 * 2.1, [2.0, 2.5]),
        (0.0, 0.5, 0.95**2 * 2.1, [1.0, 1.25]),
        (1.25, 9.0, 0.95**3 * 2.1 + 0.05, [4.0, 4.25]),  # θ = 1.85 > H: both fast
        (4.0, 4.2, 0.95 * (0.95**3 * 2.1 + 0.05) + 0.05 * 4, [2.125, 5.0]),  # easy done, θ ≤ L
    ]
    for passes, capacity, threshold, following in steps:
        _observe(selector, passes, capacity)
        assert selector.state()["client.threshold"][0] == pytest.approx(threshold)
        assert selector.select(1, rng=np.random.default_rng(0)).work[0].tolist() == following


def test_tasks_stop_at_the_cap():
    selector = make_selector("fedsae", workload="ira").fit(clients=1)
    for _ in range(40):
        tasks = selector.select(1, rng=np.random.default_rng(0)).work[0]
        _observe(selector, tasks[1], 20.0)
    assert (selector.select(1, rng=np.random.default_rng(0)).work <= 15).all()


def _tasks_after(selector, passes, capacity):
    cohort = selector.select(1, rng=np.random.default_rng(0))
    assert cohort.work.tolist() == [[1.0, 2.0]]
    _observe(selector, passes, capacity)
    return selector.select(1, rng=np.random.default_rng(0)).work[0].tolist()


def _observe(selector, passes, capacity):
    selector.observe(
        Outcome(
            np.array([0]),
            np.array([passes > 0]),
            passes=np.array([passes]),
            capacity=np.array([capacity]),
        )
    )
