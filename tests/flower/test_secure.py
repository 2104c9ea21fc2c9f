"""Secure aggregation: the server sees the average, and nothing of a single client."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from fake_federation import Federation, model
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg as FlowersFedAvg
from flwr.serverapp.strategy import FedAvgM

from fedcohort import Cohort, FedAvg
from fedcohort.errors import InvalidParameterError
from fedcohort.flower import CohortStrategy, SecureAggregation, answer_queries, secure_mods


def people(federation: Federation, count: int, seen: list[RecordDict]) -> None:
    for client in range(count):
        node = federation.add(client)
        app = ClientApp()
        answer_queries(
            app,
            size=lambda _, c=client: 10 + c,
            profile=lambda *_, c=client: federation.profile_of(c),
        )
        train = federation.trainer(client, 10 + client)

        def fit(message: Message, _: Any, train: Any = train) -> Message:
            assert message.content["config"]["server-round"]
            return Message(train(message), reply_to=message)

        app.train(mods=secure_mods())(fit)

        def spied(message: Message, context: Any, app: Any = app) -> Message:
            reply = app(message, context)
            seen.append(reply.content)
            return reply

        federation.grid.nodes[node].app = spied  # type: ignore[assignment]


@pytest.mark.parametrize("selector", ["match:weights=size", "fedavg"])
def test_the_average_is_right_and_no_update_is_seen(federation: Federation, selector: str) -> None:
    seen: list[RecordDict] = []
    people(federation, 7, seen)
    strategy = CohortStrategy(
        FlowersFedAvg(fraction_evaluate=0.0),
        selector,
        cohort=4,
        min_clients=7,
        identify=True,
        secure=SecureAggregation(largest_size=1000),
    )
    result = strategy.start(federation.grid, model(), num_rounds=1)
    (summary,) = strategy.history
    assert len(summary.trained) == 4
    clients = [int(name) for name in summary.trained]
    expected = np.average(clients, weights=[10 + c for c in clients])
    np.testing.assert_allclose(result.arrays["w"].numpy(), [expected, 1, 1], atol=1e-3)
    for content in seen:
        for arrays in content.array_records.values():
            assert "w" not in arrays, "an update left its client unmasked"
            assert not arrays or set(arrays) == {"profile"}
        for metrics in content.metric_records.values():
            assert "train_loss" not in metrics


class Lopsided(FedAvg):
    """Draws at random, some clients twice, and has weights of its own."""

    name = "lopsided"
    repeats = True

    def _choose(self, k: int, rows: Any, rng: np.random.Generator) -> Cohort:
        assert k == 4
        (first, second, third) = rng.choice(rows, 3, replace=False).tolist()
        return self._cohort([first, second, third, first], [0.1, 0.55, 0.05, 0.3])


def test_weights_of_a_selectors_own_reach_the_average(federation: Federation) -> None:
    people(federation, 7, [])
    strategy = CohortStrategy(
        FlowersFedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1),
        Lopsided(),
        cohort=4,
        min_clients=7,
        identify=True,
        secure=SecureAggregation(),
    )
    result = strategy.start(federation.grid, model(), num_rounds=1)
    (summary,) = strategy.history
    expected = np.dot([int(name) for name in summary.cohort], [0.1, 0.55, 0.05, 0.3])
    assert result.arrays["w"].numpy()[0] == pytest.approx(expected, abs=1e-3)


def test_rounds_go_on_and_strategies_with_momentum_work(federation: Federation) -> None:
    people(federation, 6, [])
    inner = FedAvgM(fraction_evaluate=0.0, server_learning_rate=1.0, server_momentum=0.5)
    strategy = CohortStrategy(
        inner, "match", cohort=3, min_clients=6, secure=SecureAggregation(largest_size=1000)
    )
    result = strategy.start(federation.grid, model(), num_rounds=3)
    assert [len(s.trained) for s in strategy.history] == [3, 3, 3]
    # Steps of 1, 1.5 and 1.75 with momentum.
    assert result.arrays["w"].numpy()[1] == pytest.approx(4.25, abs=0.01)


@pytest.mark.parametrize("answers", [0, 2])
def test_a_node_that_drops_out_spoils_nothing(federation: Federation, answers: int) -> None:
    """After its keys are shared, the others' average is right; before, the model stays."""
    people(federation, 5, [])
    lost = next(iter(federation.grid.nodes))
    name = str(federation.grid.nodes[lost].context.node_config["partition-id"])
    left = [answers]

    def delay(message: Message) -> float:
        if message.metadata.message_type != "train":
            return 0.0
        left[0] -= 1
        return 0.0 if left[0] >= 0 else 1e9

    federation.grid.nodes[lost].delay = delay
    strategy = CohortStrategy(
        FlowersFedAvg(fraction_evaluate=0.0),
        "match",
        cohort=5,
        secure=SecureAggregation(largest_size=1000, timeout=10),
    )
    result = strategy.start(federation.grid, model(), num_rounds=1)
    (summary,) = strategy.history
    clients = [int(n) for n in summary.trained]
    assert name in summary.left_out
    if answers:
        assert len(clients) == 4
        expected = np.average(clients, weights=[10 + c for c in clients])
        assert result.arrays["w"].numpy()[0] == pytest.approx(expected, abs=1e-3)
    else:
        assert not clients
        assert not result.arrays, "a round that cannot be unmasked is dropped"


@dataclasses.dataclass(kw_only=True, eq=False)
class OneCounts(FedAvg):
    """Chooses everyone, of whom the first has a weight, and all others `rest`."""

    rest: float = 0.0

    name = "one-counts"

    def _choose(self, k: int, rows: Any, rng: np.random.Generator) -> Cohort:  # noqa: ARG002
        return self._cohort(rows, np.maximum(np.eye(k)[0], self.rest))


@pytest.mark.filterwarnings("ignore:.*divide by zero", "ignore:.*invalid value")
@pytest.mark.parametrize("rest", [0.0, 1e-9])
def test_a_round_of_weights_of_0_is_dropped(
    federation: Federation, caplog: pytest.LogCaptureFixture, rest: float
) -> None:
    people(federation, 5, [])
    lost = next(iter(federation.grid.nodes))
    seen = [0]

    def delay(message: Message) -> float:
        seen[0] += message.metadata.message_type == "train"
        return 0.0 if seen[0] <= 2 else 1e9

    federation.grid.nodes[lost].delay = delay
    strategy = CohortStrategy(
        FlowersFedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1),
        OneCounts(rest=rest),
        cohort=5,
        min_clients=5,
        identify=True,
        secure=SecureAggregation(largest_size=1000, timeout=10),
    )
    result = strategy.start(federation.grid, model(), num_rounds=1)
    assert len(strategy.history[0].trained) == 4
    assert not result.arrays
    assert "Round 1 is dropped: its usable updates (4) weigh nothing" in caplog.text


@pytest.mark.parametrize("selector", ["divfl", "fedsae", "clustered", "match:guard=updates"])
def test_selectors_that_need_single_updates_are_refused(selector: str) -> None:
    inner = FlowersFedAvg(min_train_nodes=1, min_available_nodes=1)
    with pytest.raises(InvalidParameterError, match="which secure aggregation"):
        CohortStrategy(inner, selector, secure=SecureAggregation())
