"""Models, strategies and clients that differ from the plain case, as users have them."""

import pathlib
from typing import Any

import numpy as np
import pytest
from fake_federation import NEVER, Federation, model, trained
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedXgbCyclic,
    Krum,
)

from fedcohort import Cohort, KCenter
from fedcohort.errors import InvalidInputError, InvalidParameterError
from fedcohort.flower import CohortStrategy, SecureAggregation, answer_queries, secure_mods
from fedcohort.selection import only

PLAIN = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1}
# A layer with BatchNorm, which counts batches, and one behind it.
NORMED = {"w": np.ones(3, np.float32), "batches": np.array(0), "bias": np.ones(2, np.float32)}


def record(arrays: dict[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


def one_more(message: Message, kinds: dict[str, Any] | None = None) -> RecordDict:
    """Train as a client whose arrays are of certain types, or of those that it is sent."""
    sent = {name: array.numpy() for name, array in message.content["arrays"].items()}
    moved = {n: np.asarray(a + 1, (kinds or sent)[n].dtype) for n, a in sent.items()}
    return RecordDict(
        {"arrays": record(moved), "metrics": MetricRecord({"num-examples": 10, "train_loss": 1.0})}
    )


@pytest.mark.parametrize("selector", ["dp3s", "clustered", "hics"])
@pytest.mark.parametrize("kinds", [NORMED, None], ids=["types of PyTorch", "types as received"])
def test_models_that_count_batches_train_in_every_round(
    federation: Federation, selector: str, kinds: dict[str, Any] | None
) -> None:
    # Flower's average makes floats of the counts, and PyTorch sends whole numbers again.
    for client in range(6):
        federation.add(client, train=lambda message: one_more(message, kinds))
    strategy = CohortStrategy(FedAvg(**PLAIN), selector, cohort=3, min_clients=6)
    result = strategy.start(federation.grid, record(NORMED), num_rounds=4)
    assert all(not summary.left_out for summary in strategy.history)
    assert result.arrays["w"].numpy().tolist() == [5.0, 5.0, 5.0]


def test_running_statistics_are_no_part_of_an_update(federation: Federation) -> None:
    for client in range(4):
        federation.add(client, train=one_more)
    first = {"norm.running_mean": np.zeros(3, np.float32), "norm.running_var": np.ones(3)}
    strategy = CohortStrategy(FedAvg(**PLAIN), "clustered", cohort=4, min_clients=4)
    strategy.start(federation.grid, record(NORMED | first), num_rounds=1)
    assert strategy._selector.state()["client.update"].shape == (4, 5)


@pytest.mark.parametrize("selector", ["clustered", "divfl"])
def test_updates_of_a_model_of_whole_numbers_are_refused(
    federation: Federation, selector: str
) -> None:
    for client in range(4):
        federation.add(client, train=one_more)
    strategy = CohortStrategy(FedAvg(**PLAIN), selector, cohort=2, min_clients=4)
    with pytest.raises(InvalidInputError, match="has no array of floats to learn"):
        strategy.start(federation.grid, record({"w": np.arange(3)}), num_rounds=1)


def test_no_timeout_is_no_limit(federation: Federation) -> None:
    for client in range(4):
        federation.add(client, delay=lambda _: 5000.0)
    strategy = CohortStrategy(FedAvg(**PLAIN), "fedavg", cohort=4, min_clients=4)
    strategy.start(federation.grid, model(), num_rounds=1, timeout=None)
    assert len(strategy.history[0].trained) == 4


def test_evaluations_are_averaged_in_one_order_whoever_answers_first(
    federation: Federation,
) -> None:
    heard: list[int] = []

    class Heard(FedAvg):
        def aggregate_evaluate(self, server_round: int, replies: Any) -> MetricRecord | None:
            heard.extend(reply.metadata.src_node_id for reply in replies)
            return super().aggregate_evaluate(server_round, replies)

    nodes = [federation.add(c, delay=lambda _, c=c: 9.0 - c % 4) for c in range(8)]
    strategy = CohortStrategy(Heard(), "fedavg", cohort=8, min_clients=8, identify=True)
    strategy.start(federation.grid, model(), num_rounds=1)
    assert heard == nodes


@pytest.mark.parametrize("selector", ["match", "dp3s"])
def test_models_that_are_bytes_and_grow_are_resumed(
    federation: Federation, tmp_path: pathlib.Path, selector: str
) -> None:
    def grow(message: Message) -> RecordDict:
        tree = message.content["arrays"]["w"].numpy()
        return trained(np.append(tree, np.uint8(7)))

    for client in range(4):
        federation.add(client, train=grow)
    for rounds in (2, 4):
        inner, path = FedXgbCyclic(fraction_evaluate=0.0), tmp_path / "server.npz"
        strategy = CohortStrategy(
            inner, selector, cohort=2, min_clients=4, check_arrays=False, checkpoint=path
        )
        first = record({"w": np.zeros(1, np.uint8)})
        result = strategy.start(federation.grid, first, num_rounds=rounds)
        assert len(result.arrays["w"].numpy()) == 1 + rounds


def test_a_model_without_an_output_bias_is_refused_where_that_is_read(
    federation: Federation,
) -> None:
    for client in range(4):
        federation.add(client)
    first = record({"w": np.ones((3, 4), np.float32)})
    strategy = CohortStrategy(FedAvg(**PLAIN), "match:guard=updates", cohort=2, min_clients=4)
    with pytest.raises(InvalidInputError, match=r"last array of this one has shape \[3, 4\]"):
        strategy.start(federation.grid, first, num_rounds=1)


@pytest.mark.parametrize("selector", ["hics", "pow-d"])
def test_own_weights_reach_the_average_where_all_are_thought_equal(
    federation: Federation, selector: str
) -> None:
    # All say that they hold 10 samples, and client 0 trains on 20: every model weighs the same.
    for client in range(5):
        federation.add(
            client,
            size=10,
            loss=lambda *_, c=client: 9.0 - c,
            train=federation.trainer(client, 10 if client else 20),
        )
    strategy = CohortStrategy(FedAvg(**PLAIN), selector, cohort=4, min_clients=5, identify=True)
    result = strategy.start(federation.grid, model(), num_rounds=1)
    clients = [int(name) for name in strategy.history[0].trained]
    assert 0 in clients
    assert result.arrays["w"].numpy()[0] == pytest.approx(np.mean(clients))


class FirstCounts(KCenter):
    """Chooses the first clients, of whom the very first alone has a weight."""

    name = "first-counts"

    def _choose(self, k: int, rows: Any, rng: np.random.Generator) -> Cohort:  # noqa: ARG002
        return self._cohort(rows[:k], np.eye(k)[0])


def test_a_strategy_may_pick_an_update_of_no_weight(federation: Federation) -> None:
    # Krum takes the update in the middle, and Flower divides by what it weighs.
    for client in range(5):
        federation.add(client)
    strategy = CohortStrategy(Krum(**PLAIN), FirstCounts(), cohort=5, min_clients=5)
    result = strategy.start(federation.grid, model(), num_rounds=1)
    assert result.arrays["w"].numpy()[0] in (1.0, 2.0, 3.0)


def test_secure_averages_of_scalars_and_half_floats_are_right(federation: Federation) -> None:
    first = {"scale": np.float32(0.5), "w": np.full(2, 0.5, np.float32)}
    first |= {"half": np.full(2, 0.5, np.float16), "batches": np.array(3)}
    for client in range(4):
        node = federation.add(client)
        app = ClientApp()
        answer_queries(
            app, size=lambda _: 10, profile=lambda *_, c=client: federation.profile_of(c)
        )
        app.train(mods=secure_mods())(lambda m, _: Message(one_more(m, first), reply_to=m))
        federation.grid.nodes[node].app = app
    strategy = CohortStrategy(
        FedAvg(**PLAIN),
        "match",
        cohort=3,
        min_clients=4,
        secure=SecureAggregation(largest_size=1000),
    )
    result = strategy.start(federation.grid, record(first), num_rounds=1)
    for name, values in first.items():
        found = result.arrays[name].numpy()
        assert found.shape == values.shape
        assert found == pytest.approx(np.asarray(values) + 1, abs=0.02)
    assert result.arrays["batches"].numpy() == 4


@pytest.mark.parametrize(
    ("inner", "settings", "said"),
    [
        (FedAvg(weighted_by_key="hours"), {"secure": SecureAggregation()}, "weighs by 'hours'"),
        (FedAvg(min_train_nodes=1, min_available_nodes=1), {"evaluate_on": "cohort", "cohort": 1},
         "waits for 2 nodes to evaluate"),
    ],
)  # fmt: skip
def test_what_could_never_work_is_refused_at_once(
    inner: FedAvg, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidParameterError, match=said):
        CohortStrategy(inner, "fedavg", **settings)


def test_evaluation_begins_when_the_last_is_free(federation: Federation) -> None:
    # Client 0 is too late for the round, and answers a second later.
    for client in range(6):
        late = 11.0 if client == 0 else 1.0
        federation.add(
            client, delay=lambda m, late=late: late if m.metadata.message_type == "train" else 1.0
        )
    strategy = CohortStrategy(
        FedAvg(min_evaluate_nodes=6), "fedavg", cohort=6, min_clients=6, deadline=10, identify=True
    )
    before = federation.clock.now
    result = strategy.start(federation.grid, model(), num_rounds=1)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx(0.5)
    assert federation.clock.now - before < 60


def test_moments_of_a_strategy_inside_another_are_saved(
    federation: Federation, tmp_path: pathlib.Path
) -> None:
    for client in range(5):
        federation.add(client)

    def after(*rounds: int) -> Any:
        for number in rounds:
            inner = DifferentialPrivacyServerSideFixedClipping(
                FedAdam(**PLAIN), noise_multiplier=0.0, clipping_norm=5.0, num_sampled_clients=3
            )
            path = tmp_path / f"{rounds}.npz"
            strategy = CohortStrategy(inner, "dp3s", cohort=3, min_clients=5, checkpoint=path)
            result = strategy.start(federation.grid, model(), num_rounds=number)
        return result.arrays["w"].numpy()

    np.testing.assert_array_equal(after(3, 6), after(6))


@pytest.mark.parametrize(
    ("selector", "deadline", "start", "seconds"),
    [("fedavg", 7200.0, {}, 5000), ("divfl", None, {"timeout": 30.0}, 60)],
)
def test_rounds_wait_as_long_as_they_were_told(
    federation: Federation,
    selector: str,
    deadline: float | None,
    start: dict[str, Any],
    seconds: float,
) -> None:
    # For `divfl` one of them never answers; of the others all take 5000 s, or none.
    takes = 5000.0 if deadline else 0.0
    for client in range(4):
        delay = NEVER if client == 0 and not deadline else takes
        federation.add(
            client, delay=lambda m, d=delay: d if m.metadata.message_type == "train" else 0.0
        )
    strategy = CohortStrategy(
        FedAvg(**PLAIN), selector, cohort=3, min_clients=4, deadline=deadline, identify=True
    )
    before = federation.clock.now
    strategy.start(federation.grid, model(), num_rounds=1, **start)
    assert strategy.history[0].trained
    assert federation.clock.now - before < seconds + 60


def test_evaluations_weighed_by_another_metric_weigh_as_they_like(federation: Federation) -> None:
    def score(client: int) -> RecordDict:
        weight = 100.0 if client == 0 else 1.0
        return RecordDict({"m": MetricRecord({"hours": weight, "accuracy": float(client == 0)})})

    for client in range(5):
        federation.add(
            client,
            train=lambda m: trained(m.content["arrays"]["w"].numpy(), hours=1.0),
            evaluate=lambda _, c=client: score(c),
        )
    inner = FedAvg(weighted_by_key="hours", min_evaluate_nodes=5)
    strategy = CohortStrategy(inner, "fedavg", cohort=5, min_clients=5, identify=True)
    result = strategy.start(federation.grid, model(), num_rounds=1)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx(100 / 104)


def test_a_client_that_restarts_with_other_tags_is_known_by_them(federation: Federation) -> None:
    def connect(client: int, tag: str) -> int:
        named = {"fedcohort-id": f"ward-{client}", "fedcohort-tags": tag}
        return federation.add(client, config=named)

    nodes = [connect(client, "gpu" if client < 3 else "cpu") for client in range(5)]

    def swap(round_: int, _: ArrayRecord) -> None:
        if round_ == 2:
            for client, tag in ((0, "cpu"), (4, "gpu")):
                del federation.grid.nodes[nodes[client]]
                connect(client, tag)

    strategy = CohortStrategy(FedAvg(**PLAIN), only("fedavg", ["tag:gpu"]), cohort=2, min_clients=3)
    strategy.start(federation.grid, model(), num_rounds=10, evaluate_fn=swap)
    later = {name for summary in strategy.history[4:] for name in summary.cohort}
    assert later == {"ward-1", "ward-2", "ward-4"}


def test_a_client_that_failed_to_tell_its_loss_is_asked_again_as_another_node(
    federation: Federation,
) -> None:
    for client in range(5):
        federation.add(client, loss=lambda *_, c=client: 1.0 + c)
    grid = federation.grid
    old = next(iter(grid.nodes))
    answers = grid._reply

    def reply(message: Message) -> Message:
        if (message.metadata.message_type, message.metadata.dst_node_id) == ("query.loss", old):
            return Message(Error(code=3, reason="Node unavailable"), reply_to=message)
        return answers(message)

    grid._reply = reply  # type: ignore[method-assign]

    def restart(round_: int, _: ArrayRecord) -> None:
        if round_ == 2:
            grid.nodes[old + 1] = grid.nodes.pop(old)

    strategy = CohortStrategy(FedAvg(**PLAIN), "pow-d", cohort=4, min_clients=5, identify=True)
    strategy.start(grid, model(), num_rounds=8, evaluate_fn=restart)
    asked = grid.recipients("query.loss")
    assert asked.count(old) == 1
    assert asked.count(old + 1) > 1


def test_an_answer_that_is_not_like_the_others_costs_no_place(federation: Federation) -> None:
    def odd(message: Message) -> RecordDict:
        return trained(message.content["arrays"]["w"].numpy(), extra=1.0)

    for client in range(5):
        takes = float(client)
        federation.add(
            client,
            train=odd if client == 0 else None,
            delay=lambda m, t=takes: t if m.metadata.message_type == "train" else 0.0,
        )
    strategy = CohortStrategy(
        FedAvg(**PLAIN), "fedavg", cohort=3, spare=2, min_clients=5, identify=True
    )
    strategy.start(federation.grid, model(), num_rounds=1)
    assert len(strategy.history[0].trained) == 3


def test_settings_of_a_strategys_own_start_and_names_that_are_numbers_are_taken(
    federation: Federation,
) -> None:
    class Saving(FedAvg):
        def start(self, *given: Any, folder: str = "", **named: Any) -> Any:
            self.folder = folder
            return super().start(*given, **named)

    for client in range(4):
        node = federation.add(client)
        app = ClientApp()
        answer_queries(
            app,
            size=lambda _: 10,
            profile=lambda *_, c=client: federation.profile_of(c),
            client_id=lambda context: context.node_config["partition-id"],  # type: ignore[arg-type,return-value]
        )
        train = federation.trainer(client, 10)
        app.train()(lambda m, _, train=train: Message(train(m), reply_to=m))
        federation.grid.nodes[node].app = app
    inner = Saving(**PLAIN)
    strategy = CohortStrategy(inner, "dp3s", cohort=2, min_clients=4)
    strategy.start(federation.grid, model(), num_rounds=1, folder="models")
    assert inner.folder == "models"
    assert set(strategy.history[0].trained) < {"0", "1", "2", "3"}
