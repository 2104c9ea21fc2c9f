import logging
from typing import Any

import numpy as np
import pytest
from fake_federation import Federation, model, trained
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedTrimmedAvg,
    Krum,
    Strategy,
)

from fedcohort import list_selectors, make_selector
from fedcohort.errors import InvalidInputError, InvalidParameterError
from fedcohort.flower import CohortStrategy
from fedcohort.selection import Cohort, KCenter

INNER = {
    "FedAvg": FedAvg,
    "FedAdam": FedAdam,
    "Krum": Krum,
}


@pytest.mark.parametrize("inner", INNER)
def test_any_strategy_trains_exactly_the_chosen(federation: Federation, inner: str) -> None:
    for client in range(8):
        federation.add(client)
    strategy = CohortStrategy(INNER[inner](fraction_evaluate=0.0), cohort=3, min_clients=8)
    result = strategy.start(federation.grid, model(), num_rounds=4)

    trained_nodes = federation.grid.recipients(MessageType.TRAIN)
    assert len(trained_nodes) == 12
    name = {
        n: str(node.context.node_config["partition-id"])
        for n, node in federation.grid.nodes.items()
    }
    for round_, summary in enumerate(strategy.history):
        asked = trained_nodes[3 * round_ : 3 * round_ + 3]
        assert sorted(name[n] for n in asked) == sorted(summary.cohort)
        assert set(summary.trained) == set(summary.cohort)
        assert not summary.left_out
    assert len({summary.cohort for summary in strategy.history}) > 1
    assert result.arrays["w"].numpy()[1] > 0
    assert set(result.train_metrics_clientapp) == {1, 2, 3, 4}


@pytest.mark.parametrize(
    "inner",
    [
        FedProx(fraction_evaluate=0.0, proximal_mu=0.1),
        FedAvgM(fraction_evaluate=0.0),
        FedTrimmedAvg(fraction_evaluate=0.0),
        DifferentialPrivacyServerSideFixedClipping(
            FedAvg(fraction_evaluate=0.0), 0.1, 1.0, num_sampled_clients=3
        ),
    ],
    ids=lambda inner: type(inner).__name__,
)
def test_more_strategies_run(federation: Federation, inner: Strategy) -> None:
    for client in range(6):
        federation.add(client)
    strategy = CohortStrategy(inner, cohort=3)
    result = strategy.start(federation.grid, model(), num_rounds=3)
    assert all(len(s.trained) == 3 for s in strategy.history)
    assert np.isfinite(result.arrays["w"].numpy()).all()


def test_the_average_is_the_wrapped_strategys(federation: Federation) -> None:
    for client in range(5):
        federation.add(client)
    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), cohort=2, min_clients=5)
    result = strategy.start(federation.grid, model(), num_rounds=1)
    clients = [int(name) for name in strategy.history[0].trained]
    sizes = [10 + c for c in clients]
    expected = np.average(clients, weights=sizes)
    assert result.arrays["w"].numpy()[0] == pytest.approx(expected)


def test_profiles_are_asked_for_once_and_with_the_first_model(federation: Federation) -> None:
    for client in range(5):
        federation.add(client)
    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), cohort=2, min_clients=5)
    strategy.start(federation.grid, model(1, 2, 3), num_rounds=3)
    queries = [m for m in federation.grid.sent if m.metadata.message_type == "query.profile"]
    assert sorted(m.metadata.dst_node_id for m in queries) == sorted(federation.grid.nodes)
    assert queries[0].content["fedcohort"]["wants"] == ["profile"]
    np.testing.assert_array_equal(queries[0].content["arrays"]["w"].numpy(), [1, 2, 3])


def test_a_selector_without_needs_asks_nothing(federation: Federation) -> None:
    for client in range(5):
        federation.add(client)
    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), "fedavg", cohort=2, min_clients=5)
    strategy.start(federation.grid, model(), num_rounds=2)
    assert {m.metadata.message_type for m in federation.grid.sent} == {MessageType.TRAIN}
    assert strategy.history[0].cohort[0].startswith("node:")


def test_identify_gives_names_to_a_selector_without_needs(federation: Federation) -> None:
    for client in range(5):
        federation.add(client)
    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0), "fedavg", cohort=2, min_clients=5, identify=True
    )
    strategy.start(federation.grid, model(), num_rounds=1)
    query = next(m for m in federation.grid.sent if m.metadata.message_type == "query.profile")
    assert query.content["fedcohort"]["wants"] == []
    assert "arrays" not in query.content
    assert set(strategy.history[0].cohort) <= set("01234")


@pytest.mark.parametrize(
    ("name", "keys", "seen"), [("oort", None, 1.0), ("afl", None, 30.0), ("afl", ("mine",), 90.0)]
)
def test_the_loss_that_a_selector_hears_rides_on_replies(
    federation: Federation, name: str, keys: tuple[str, ...] | None, seen: float
) -> None:
    def train(message: Message) -> RecordDict:
        moved = message.content["arrays"]["w"].numpy() + 1
        return trained(moved, loss=1.0, received_loss=30.0, mine=90.0)

    for client in range(4):
        federation.add(client, loss=lambda arrays, _: 5.0 + arrays["w"].numpy()[0], train=train)
    selector = make_selector(name)
    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0), selector, cohort=2, min_clients=4, loss_keys=keys
    )
    strategy.start(federation.grid, model(), num_rounds=1)
    told = dict(zip(selector.clients.tolist(), selector.state()["client.loss"], strict=True))
    chosen = {int(name) for name in strategy.history[0].trained}
    assert {told[client] for client in chosen} == {seen}
    asked = name == "afl"
    assert len(federation.grid.recipients("query.loss")) == (4 if asked else 0)
    assert not asked or {told[client] for client in told.keys() - chosen} == {5.0}
    assert federation.grid.sent[0].content["fedcohort"]["wants"] == []


def test_fedsae_asks_the_last_cohort_for_the_loss_of_the_new_model(federation: Federation) -> None:
    for client in range(4):
        federation.add(client, loss=lambda arrays, _, c=client: 5.0 + c + arrays["w"].numpy()[1])
    selector = make_selector("fedsae", beta=0.5)
    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), selector, cohort=2, min_clients=4)
    strategy.start(federation.grid, model(), num_rounds=2)
    first = [int(name) for name in strategy.history[0].trained]
    told = dict(zip(selector.clients.tolist(), selector.state()["client.loss"], strict=True))
    # Training moves w[1] by 1 in each round.
    assert told == {c: 5.0 + c + (1.0 if c in first else 0.0) for c in range(4)}
    assert len(federation.grid.recipients("query.loss")) == 4 + 2


def test_a_client_that_cannot_tell_its_loss_is_not_asked_again(
    federation: Federation, lines: list[str]
) -> None:
    for client in range(4):
        federation.add(client)
    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), "fedsae", cohort=2, min_clients=4)
    strategy.start(federation.grid, model(), num_rounds=3)
    assert len(federation.grid.recipients("query.loss")) == 4
    assert sum("cannot tell its loss" in line for line in lines) == 4
    assert all(len(s.trained) == 2 for s in strategy.history)


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        (
            "oort",
            ["without the training loss, which selector 'oort' needs: add train_loss or loss"],
        ),
        ("afl", ["without the loss of the model they received", "add received_loss to"]),
        ("fedsae", []),
    ],
)
def test_a_train_reply_without_a_loss_is_used_all_the_same(
    federation: Federation, lines: list[str], selector: str, words: list[str]
) -> None:
    for client in range(3):
        federation.add(
            client,
            loss=lambda *_: 1.0,
            train=lambda m: trained(m.content["arrays"]["w"].numpy() + 1, loss=float("nan")),
        )
    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), selector, cohort=3)
    result = strategy.start(federation.grid, model(), num_rounds=1)
    assert len(strategy.history[0].trained) == 3
    assert result.arrays["w"].numpy()[0] == pytest.approx(1)
    assert [w for line in lines for w in words if w in line] == list(words)


def test_updates_reach_a_selector_that_needs_them(federation: Federation) -> None:
    for client in range(4):
        federation.add(client)
    selector = make_selector("clustered")
    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    strategy = CohortStrategy(inner, selector, cohort=3, min_clients=4)
    strategy.start(federation.grid, model(5, 5, 5), num_rounds=1)
    updates = dict(zip(selector.clients.tolist(), selector.state()["client.update"], strict=True))
    for name in strategy.history[0].trained:
        np.testing.assert_allclose(updates[int(name)], [int(name), 1, 1])


def test_whole_numbers_are_no_part_of_an_update_and_its_end_is_as_long_as_the_bias(
    federation: Federation,
) -> None:
    arrays = {"w": np.ones(3, np.float32), "batches": np.array([7]), "bias": np.ones(2, np.float32)}

    def train(message: Message) -> RecordDict:
        sent = {name: a.numpy() for name, a in message.content["arrays"].items()}
        content = RecordDict({"metrics": MetricRecord({"num-examples": 10})})
        content["arrays"] = ArrayRecord({n: Array(a + a.dtype.type(100)) for n, a in sent.items()})
        return content

    for selector, expected in (("clustered", [100.0] * 5), ("hics", [100.0] * 2)):
        for client in range(4):
            federation.add(client, train=train)
        first = ArrayRecord({name: Array(values) for name, values in arrays.items()})
        made = make_selector(selector)
        inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
        CohortStrategy(inner, made, cohort=4, min_clients=4).start(
            federation.grid, first, num_rounds=1
        )
        assert made.state()["client.update"].tolist() == [expected] * 4


def test_a_selectors_own_weights_reach_the_average(federation: Federation) -> None:
    # Client 0 holds most of the data: it is drawn several times, and every draw weighs 1/k.
    federation.add(0, size=900)
    for client in range(1, 4):
        federation.add(client, size=50)
    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    strategy = CohortStrategy(inner, "clustered", cohort=4, min_clients=4)
    result = strategy.start(federation.grid, model(), num_rounds=1)
    draws = [int(name) for name in strategy.history[0].cohort]
    assert draws.count(0) >= 2
    assert result.arrays["w"].numpy()[0] == pytest.approx(np.mean(draws))


class OneCounts(KCenter):
    """Chooses the first clients, of whom the very first alone has a weight."""

    name = "one-counts"

    def _choose(self, k: int, rows: Any, rng: np.random.Generator) -> Cohort:  # noqa: ARG002
        return self._cohort(rows[:k], np.eye(k)[0])


def test_a_round_in_which_only_weights_of_0_arrive_is_dropped(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Message) -> RecordDict:
        raise RuntimeError

    for client in range(4):
        federation.add(client, train=fail if client == 0 else None)
    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    strategy = CohortStrategy(inner, OneCounts(), cohort=3, min_clients=4)
    with caplog.at_level(logging.WARNING):
        strategy.start(federation.grid, model(), num_rounds=2)
    first, second = strategy.history
    assert first.left_out.keys() == second.left_out.keys() == {"0"}
    assert "Round 1 is dropped: its usable updates (2) all weigh 0." in caplog.text


@pytest.mark.parametrize("selector", list_selectors())
def test_every_selector_works(federation: Federation, selector: str) -> None:
    for client in range(8):
        federation.add(client, loss=lambda *_, c=client: 1.0 + c)
    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    strategy = CohortStrategy(inner, selector, cohort=3, min_clients=8)
    strategy.start(federation.grid, model(), num_rounds=6)
    assert all(len(s.cohort) == 3 and s.trained for s in strategy.history)
    assert all(not s.left_out for s in strategy.history)


def test_updates_that_a_selector_asks_for_are_not_aggregated(federation: Federation) -> None:
    for client in range(6):
        federation.add(client, delay=lambda _, c=client: float(c))
    selector = make_selector("divfl")
    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), selector, cohort=2, min_clients=6)
    result = strategy.start(federation.grid, model(), num_rounds=2)
    assert np.isfinite(selector.state()["client.update"]).all()
    # Everyone trains once for the selector, then the cohorts of two rounds.
    assert len(federation.grid.recipients(MessageType.TRAIN)) == 6 + 2 + 2
    assert result.arrays["w"].numpy()[1] == pytest.approx(2)
    assert len(strategy.history) == 2


def test_too_few_newcomers_are_not_asked_for_updates(federation: Federation) -> None:
    for client in range(4):
        federation.add(client)

    def join(round_: int, _: ArrayRecord) -> None:
        if round_ == 1:
            federation.add(9)

    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), "divfl", cohort=3, min_clients=4)
    strategy.start(federation.grid, model(), num_rounds=4, evaluate_fn=join)
    assert len(federation.grid.recipients(MessageType.TRAIN)) == 4 + 4 * 3
    assert len(strategy._selector.clients) == 5


def test_a_strategy_may_address_a_part_of_the_cohort(federation: Federation) -> None:
    class OneOnly(FedAvg):
        def configure_train(self, *given: Any) -> list[Any]:
            return list(super().configure_train(*given))[:1]

    for client in range(5):
        federation.add(client)
    strategy = CohortStrategy(OneOnly(fraction_evaluate=0.0), cohort=3)
    began = federation.clock.now
    result = strategy.start(federation.grid, model(), num_rounds=2)
    assert [len(s.trained) for s in strategy.history] == [1, 1]
    assert not strategy.history[0].left_out
    assert federation.clock.now - began < 1
    assert result.arrays["w"].numpy()[1] == pytest.approx(2)


def test_large_federations_are_addressed_in_parts(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedcohort.flower.mailbox._MOST_AT_ONCE", 2)
    for client in range(7):
        federation.add(client)
    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), cohort=5, min_clients=7)
    strategy.start(federation.grid, model(), num_rounds=1)
    assert len(strategy._selector.clients) == 7
    assert len(strategy.history[0].trained) == 5


def test_a_client_that_does_not_answer_a_query_is_not_chosen_in_that_round(
    federation: Federation,
) -> None:
    for client in range(4):
        federation.add(client, loss=lambda *_: 1.0)
    silent = federation.add(
        4,
        loss=lambda *_: 100.0,
        delay=lambda m: 1e9 if m.metadata.message_type == "query.loss" else 0.0,
    )
    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0), "fedsae", cohort=4, min_clients=5, query_deadline=30.0
    )
    began = federation.clock.now
    strategy.start(federation.grid, model(), num_rounds=5)
    assert silent not in federation.grid.recipients(MessageType.TRAIN)
    assert federation.clock.now - began == pytest.approx(30, abs=1)


def test_a_selector_that_repeats_needs_a_strategy_that_takes_one_node() -> None:
    with pytest.raises(InvalidParameterError, match="min_train_nodes"):
        CohortStrategy(FedAvg(), "clustered", cohort=4)


@pytest.mark.parametrize(
    ("inner", "settings", "words"),
    [
        (FedAvg(fraction_train=0.5), {}, "fraction_train of FedAvg must be 1"),
        (FedAvg(min_train_nodes=11), {}, "waits for 11 nodes"),
        (FedAvg(min_available_nodes=7), {"min_cohort": 3}, "waits for 7 nodes"),
        (FedAvg(), {"cohort": 0}, "cohort of CohortStrategy must be"),
        (FedAvg(), {"deadline": -1.0}, "deadline of CohortStrategy must be"),
        (FedAvg(), {"selector": "dp4s"}, "did you mean 'dp3s'"),
    ],
)
def test_settings_that_cannot_work_are_named_at_once(
    inner: Strategy, settings: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidInputError, match=words):
        CohortStrategy(inner, **settings)


def test_a_spec_gives_the_selector_its_parameters(federation: Federation) -> None:
    for client in range(8):
        federation.add(client)
    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    strategy = CohortStrategy(inner, "match:guard=profiles", cohort=3, min_clients=8)
    strategy.start(federation.grid, model(), num_rounds=1)
    assert strategy._selector.guard == "profiles"
    assert len(strategy.history[0].trained) == 3


def test_a_selector_with_clients_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="has clients already"):
        CohortStrategy(FedAvg(), make_selector("fedavg").fit(clients=3))


def test_a_strategy_that_wants_more_than_the_cohort_does_not_wait_for_ever(
    federation: Federation,
) -> None:
    class Greedy(FedAvg):
        def configure_train(self, *given: Any) -> list[Any]:
            while len(list(given[-1].get_node_ids())) < 5:
                pass
            return []

    for client in range(6):
        federation.add(client)
    strategy = CohortStrategy(Greedy(), cohort=3)
    with pytest.raises(InvalidParameterError, match="waits for more than the 3 clients"):
        strategy.start(federation.grid, model(), num_rounds=1)


def test_evaluation_uses_all_connected_nodes(federation: Federation) -> None:
    for client in range(5):
        federation.add(client)
    strategy = CohortStrategy(FedAvg(), cohort=2, min_clients=5)
    result = strategy.start(federation.grid, model(), num_rounds=2)
    assert len(federation.grid.recipients(MessageType.EVALUATE)) == 10
    assert result.evaluate_metrics_clientapp[2]["accuracy"] == pytest.approx(0.5)


def test_it_works_in_a_loop_of_ones_own(federation: Federation) -> None:
    for client in range(5):
        federation.add(client)
    grid = federation.grid
    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), cohort=2, spare=1, min_clients=5)
    arrays: ArrayRecord | None = model()
    for round_ in (1, 2):
        messages = list(strategy.configure_train(round_, arrays, ConfigRecord(), grid))
        assert len(messages) == 3
        replies = grid.pull_messages(grid.push_messages(messages))
        arrays, metrics = strategy.aggregate_train(round_, replies)
        assert isinstance(metrics, MetricRecord)
        assert len(strategy.history[-1].trained) == 2
    with pytest.raises(InvalidInputError, match="before it was configured"):
        strategy.aggregate_train(3, [])


def test_the_first_profiles_are_advised_on_once(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    for client in range(8):
        federation.add(client)
    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), cohort=3, min_clients=8)
    with caplog.at_level(logging.INFO, logger="flwr.fedcohort"):
        strategy.start(federation.grid, model(), num_rounds=2)
        federation.add(8)
        strategy.start(federation.grid, model(), num_rounds=2)
    (line,) = [r.getMessage() for r in caplog.records if "by match" in r.getMessage()]
    assert line.startswith("8 clients")
    assert "cohorts of 3 are" in line


def test_clients_that_all_train_are_not_advised_on(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    for client in range(3):
        federation.add(client)
    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), cohort=3, min_clients=3)
    with caplog.at_level(logging.INFO, logger="flwr.fedcohort"):
        strategy.start(federation.grid, model(), num_rounds=1)
    assert "3 clients joined" in caplog.text
    assert "by match" not in caplog.text
