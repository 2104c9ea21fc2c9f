"""What clients claim: sizes, profiles, words for the log. Claims count as far as a rule says."""

from typing import Any

import numpy as np
import pytest
from fake_federation import Federation, model, trained
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from fedcohort import make_selector
from fedcohort.flower import CohortStrategy
from fedcohort.selection import always, only

HUGE = 10**12


def cohorts(inner: Any = None, **settings: Any) -> CohortStrategy:
    inner = inner or FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    return CohortStrategy(inner, **{"cohort": 3} | settings)


def test_a_claimed_size_does_not_take_every_place(federation: Federation, lines: list[str]) -> None:
    for client in range(6):
        federation.add(client, size=HUGE if client == 0 else 10)
    strategy = cohorts(selector="clustered", min_clients=6)
    strategy.start(federation.grid, model(), num_rounds=12)
    places = [name for s in strategy.history for name in s.cohort]
    # It counts as 40 of 90 samples, and clustered draws by size.
    assert 0.3 < places.count("0") / len(places) < 0.6
    said = [line for line in lines if "says it holds 1e+12 samples, of which 40 count" in line]
    assert len(said) == 1
    assert "largest_size=None" in said[0]

    believing = cohorts(selector="clustered", min_clients=6, largest_size=None)
    believing.start(federation.grid, model(), num_rounds=3)
    assert {name for s in believing.history for name in s.cohort} == {"0"}


def test_sizes_of_newcomers_move_the_limit(federation: Federation) -> None:
    federation.add(0, size=HUGE)
    federation.add(1, size=HUGE)

    def join(round_: int, _: ArrayRecord) -> None:
        if round_ == 1:
            for client in range(2, 12):
                federation.add(client, size=10)

    strategy = cohorts(cohort=2, selector="match", min_clients=2)
    strategy.start(federation.grid, model(), num_rounds=4, evaluate_fn=join)
    assert strategy._selector.sizes.tolist() == [40, 40, *[10] * 10]


@pytest.mark.parametrize("selector", ["dp3s", "fedavg"])
def test_a_size_claimed_in_training_is_bounded(
    federation: Federation, lines: list[str], selector: str
) -> None:
    for client in range(5):
        said = HUGE if client == 4 else 10
        federation.add(
            client,
            size=10,
            train=lambda m, c=client, n=said: trained(
                m.content["arrays"]["w"].numpy() + np.array([c, 1, 1], np.float32), n
            ),
        )
    strategy = cohorts(selector=selector, cohort=5, min_clients=5)
    result = strategy.start(federation.grid, model(), num_rounds=1)
    # Twice what it said on joining; where nobody was asked then, four times the others' quartile.
    counted = 20 if selector == "dp3s" else 40
    expected = np.average(range(5), weights=[10, 10, 10, 10, counted])
    assert result.arrays["w"].numpy()[0] == pytest.approx(expected)
    assert sum(f"of which {counted} count" in line for line in lines) == 1

    believing = cohorts(
        selector=selector, cohort=5, min_clients=5, size_growth=None, largest_size=None
    )
    result = believing.start(federation.grid, model(), num_rounds=1)
    assert result.arrays["w"].numpy()[0] == pytest.approx(4)


def test_growth_within_the_factor_counts_and_honest_sizes_are_untouched(
    federation: Federation, lines: list[str]
) -> None:
    sizes = [10, 12, 19, 30]
    for client, size in enumerate(sizes):
        federation.add(
            client,
            size=size,
            train=lambda m, c=client, n=2 * size: trained(
                m.content["arrays"]["w"].numpy() + np.array([c, 1, 1], np.float32), n
            ),
        )
    strategy = cohorts(cohort=4)
    result = strategy.start(federation.grid, model(), num_rounds=1)
    expected = np.average(range(4), weights=sizes)
    assert result.arrays["w"].numpy()[0] == pytest.approx(expected)
    assert not [line for line in lines if "count" in line]


def test_a_claim_does_not_outweigh_others_evaluations(federation: Federation) -> None:
    for client in range(5):
        said = HUGE if client == 0 else 10
        accuracy = 1.0 if client == 0 else 0.5
        federation.add(
            client,
            evaluate=lambda _, n=said, a=accuracy: RecordDict(
                {"m": MetricRecord({"num-examples": n, "accuracy": a})}
            ),
        )
    strategy = CohortStrategy(FedAvg(), cohort=3, min_clients=5)
    result = strategy.start(federation.grid, model(), num_rounds=1)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx(0.75)


# -- profiles ------------------------------------------------------------------------------------


def test_the_guard_is_on_unless_turned_off(federation: Federation, lines: list[str]) -> None:
    for client in range(12):
        scale = 1e4 if client == 5 else 1.0
        federation.add(client, profile=(scale * federation.profile_of(client)).astype(np.float32))
    strategy = cohorts(selector="match", min_clients=12)
    strategy.start(federation.grid, model(), num_rounds=6)
    assert all("5" not in s.cohort for s in strategy.history)
    said = [line for line in lines if line.startswith("The guard leaves out '5'")]
    assert len(said) == 1
    assert "guard='off' lets them in" in said[0]
    for settings in (
        {"selector": "match:guard=off"},
        {"selector": "match", "guard": "off"},
        {"selector": make_selector("match"), "guard": "off"},
    ):
        assert cohorts(**settings)._selector.guard == "off"
    assert cohorts(selector=only("match", ["*"]))._selector.innermost.guard == "profiles"
    assert cohorts(selector="match:guard=updates")._selector.guard == "updates"


# -- words ---------------------------------------------------------------------------------------


def test_terminal_escapes_reach_neither_log_nor_history(
    federation: Federation, lines: list[str]
) -> None:
    def boom(_: Any) -> RecordDict:
        raise RuntimeError("\x1b]0;owned\x07\x1b[2J" + "x" * 5000)

    federation.add(0, train=boom)
    for client in range(1, 4):
        federation.add(client)

    def strange(_: Any) -> RecordDict:
        vector = ArrayRecord({"profile": Array("f4\x1b[31m", (4,), "\x1b[31mevil", b"abc")})
        return RecordDict({"vectors": vector, "fedcohort": ConfigRecord({"client-id": "\x1b[2J"})})

    federation.add(9, answer=strange)
    strategy = cohorts(cohort=4, min_clients=4)
    strategy.start(federation.grid, model(), num_rounds=2)
    # The table of settings at the start is Flower's, with tabs.
    heard = [line for line in lines if not line.startswith("\t")]
    said = [*heard, *(reason for s in strategy.history for reason in s.left_out.values())]
    assert any("owned" in line for line in said)
    assert all(line.isprintable() and len(line) < 500 for line in said)


# -- rules of the house ----------------------------------------------------------------------------


def test_only_and_always_know_names_and_tags(federation: Federation) -> None:
    for client in range(8):
        tags = "gpu, night" if client % 2 else "day"
        federation.add(client, config={"fedcohort-id": f"ward-{client}", "fedcohort-tags": tags})
    strategy = cohorts(selector=always(only("fedavg", ["tag:gpu"]), ["ward-3"]), min_clients=4)
    strategy.start(federation.grid, model(), num_rounds=8)
    met = {name for s in strategy.history for name in s.cohort}
    assert met == {"ward-1", "ward-3", "ward-5", "ward-7"}
    assert all("ward-3" in s.cohort for s in strategy.history)


def test_evaluation_can_stay_with_the_cohort(federation: Federation) -> None:
    for client in range(8):
        federation.add(client)
    strategy = CohortStrategy(FedAvg(), cohort=3, min_clients=8, evaluate_on="cohort")
    strategy.start(federation.grid, model(), num_rounds=2)
    nodes = federation.grid.nodes.items()
    name = {n: str(node.context.node_config["partition-id"]) for n, node in nodes}
    asked = [name[n] for n in federation.grid.recipients("evaluate")]
    assert [set(asked[:3]), set(asked[3:])] == [set(s.cohort) for s in strategy.history]
