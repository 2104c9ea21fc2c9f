"""Clients join late, leave, restart, answer late, fail or send nonsense; training continues."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_federation import NEVER, Federation, model, trained
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp.strategy import FedAvg

from fedcohort.errors import TooFewClientsError
from fedcohort.flower import CohortStrategy


def cohorts(**settings: Any) -> CohortStrategy:
    return CohortStrategy(FedAvg(fraction_evaluate=0.0), **{"cohort": 3} | settings)


def each_round(
    strategy: CohortStrategy,
    federation: Federation,
    rounds: int,
    after: dict[int, Callable[[], Any]] | None = None,
    **settings: Any,
) -> Any:
    """Run rounds; `after` happens when a round is over."""

    def evaluate(round_: int, _: ArrayRecord) -> None:
        (after or {}).get(round_, lambda: None)()

    return strategy.start(
        federation.grid, model(), num_rounds=rounds, evaluate_fn=evaluate, **settings
    )


def only_train(seconds: float) -> Callable[[Message], float]:
    return lambda m: seconds if m.metadata.message_type == MessageType.TRAIN else 0.0


# -- joining, leaving, restarting ---------------------------------------------------------------


def test_a_late_client_is_profiled_on_arrival_and_chosen(federation: Federation) -> None:
    for client in range(4):
        federation.add(client)
    strategy = cohorts()
    each_round(strategy, federation, 12, {2: lambda: federation.add(9)})
    assert all("9" not in s.cohort for s in strategy.history[:2])
    assert any("9" in s.trained for s in strategy.history)
    queries = [m for m in federation.grid.sent if m.metadata.message_type == "query.profile"]
    assert len(queries) == 5
    # Its profile is measured with the model that the others were measured with.
    np.testing.assert_array_equal(queries[-1].content["arrays"]["w"].numpy(), [0, 0, 0])


def test_a_late_client_does_not_hold_up_a_round(federation: Federation) -> None:
    for client in range(4):
        federation.add(client)
    strategy = cohorts(query_deadline=100.0)
    began = federation.clock.now
    slow = lambda m: 30.0 if m.metadata.message_type == "query.profile" else 10.0  # noqa: E731
    each_round(strategy, federation, 40, {1: lambda: federation.add(9, delay=slow)})
    # Its profile takes 30 s, but only the rounds it trains in wait for it.
    waits = 10 * sum("9" in s.cohort for s in strategy.history)
    assert federation.clock.now - began < waits + 25


def test_a_client_that_left_is_not_chosen_and_keeps_its_place(federation: Federation) -> None:
    nodes = [federation.add(client) for client in range(5)]
    kept = federation.grid.nodes[nodes[0]]
    strategy = cohorts()

    def back() -> None:
        federation.grid.nodes[nodes[0]] = kept

    each_round(strategy, federation, 20, {3: lambda: federation.grid.nodes.pop(nodes[0]), 10: back})
    assert all("0" not in s.cohort for s in strategy.history[3:10])
    assert any("0" in s.cohort for s in strategy.history[10:])
    assert len(federation.grid.recipients("query.profile")) == 5


def test_a_restarted_client_keeps_its_profile_under_a_new_node_id(
    federation: Federation, lines: list[str]
) -> None:
    nodes = [federation.add(client) for client in range(5)]
    strategy = cohorts()

    def restart() -> None:
        del federation.grid.nodes[nodes[0]]
        federation.add(0, profile=np.full(4, 7.0, np.float32))

    each_round(strategy, federation, 12, {2: restart})
    selector = strategy._selector
    assert selector.clients.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(selector.state()["client.profile"][0], federation.profile_of(0))
    assert any("0" in s.trained for s in strategy.history[2:])
    assert any("Client '0' is back as node" in line for line in lines)


def test_a_name_cannot_be_taken_from_a_connected_client(
    federation: Federation, lines: list[str]
) -> None:
    owner, impostor = federation.add(0, node=2**63), federation.add(0, node=2**63 + 1)
    for client in range(1, 5):
        federation.add(client)
    strategy = cohorts()
    each_round(strategy, federation, 9, {4: lambda: federation.grid.nodes.pop(owner)})
    asked = federation.grid.recipients(MessageType.TRAIN)
    assert owner in asked[:12]
    assert impostor not in asked[:12]
    assert impostor in asked[12:]
    assert sum("waits to be client '0'" in line for line in lines) == 1


def test_a_node_that_died_in_training_is_free_when_it_comes_back(federation: Federation) -> None:
    for client in range(3):
        federation.add(client)
    node = federation.add(3, delay=only_train(NEVER))
    strategy = cohorts(cohort=4, deadline=10.0)

    def back() -> None:
        federation.add(3, node=node)

    each_round(strategy, federation, 6, {2: lambda: federation.grid.nodes.pop(node), 4: back})
    assert ["3" in s.cohort for s in strategy.history] == [True, False, False, False, True, True]
    assert ["3" in s.trained for s in strategy.history] == [False] * 4 + [True, True]


def test_an_old_node_does_not_speak_for_a_client_that_moved(federation: Federation) -> None:
    old = federation.add(0)
    for client in range(1, 5):
        federation.add(client)
    kept = federation.grid.nodes[old]
    strategy = cohorts(cohort=6, min_clients=5)

    def move() -> None:
        del federation.grid.nodes[old]
        federation.add(0)

    def haunt() -> None:
        federation.grid.nodes[old] = kept

    each_round(strategy, federation, 5, {1: move, 3: haunt})
    asked = federation.grid.recipients(MessageType.TRAIN)
    assert asked.count(old) == 1
    assert all(len(s.trained) == 5 for s in strategy.history)


def test_the_first_clients_are_numbered_by_name_not_by_arrival(federation: Federation) -> None:
    for client in range(12):
        federation.add(client, delay=lambda _, c=client: 20.0 - c)
    strategy = cohorts(min_clients=12)
    each_round(strategy, federation, 1)
    members = strategy._enrolment.members
    assert [members.name(i) for i in range(12)] == [str(i) for i in range(12)]


def test_a_round_that_is_short_of_clients_waits_for_those_who_are_joining(
    federation: Federation,
) -> None:
    nodes = [federation.add(client) for client in range(5)]
    strategy = cohorts(cohort=5, min_cohort=2)

    def change() -> None:
        for node in nodes[:2]:
            del federation.grid.nodes[node]
        for client in (5, 6):
            federation.add(client, delay=lambda _: 5.0)

    each_round(strategy, federation, 2, {1: change})
    assert set(strategy.history[1].trained) == set("23456")


def test_clients_that_are_long_gone_are_forgotten(federation: Federation) -> None:
    nodes = [federation.add(client) for client in range(5)]
    strategy = cohorts(forget_after=2)
    each_round(strategy, federation, 5, {1: lambda: federation.grid.nodes.pop(nodes[4])})
    assert strategy._selector.clients.tolist() == [0, 1, 2, 3]


def test_clients_without_names_are_known_by_their_nodes(federation: Federation) -> None:
    nodes = [federation.add(client, config={}) for client in range(4)]
    strategy = cohorts()
    each_round(strategy, federation, 2)
    assert set(strategy.history[0].cohort) <= {f"node:{node}" for node in nodes}


def test_an_unchanged_client_app_serves_a_selector_that_needs_no_profile(
    federation: Federation, lines: list[str]
) -> None:
    def no_handler(_: Message) -> RecordDict:
        raise ValueError("No query function registered with name 'profile'")

    for client in range(4):
        federation.add(client, answer=no_handler)
    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    strategy = CohortStrategy(inner, "clustered", cohort=3)
    each_round(strategy, federation, 2)
    assert len(strategy.history[1].trained) >= 1
    assert sum("known by its node id alone" in line for line in lines) == 4


# -- late answers, failures, deadlines ----------------------------------------------------------


def test_a_killed_node_costs_one_deadline(federation: Federation, lines: list[str]) -> None:
    for client in range(4):
        federation.add(client)
    victim = federation.add(4, delay=only_train(NEVER))
    strategy = cohorts(cohort=5, min_cohort=2, deadline=20.0)
    began = federation.clock.now
    each_round(strategy, federation, 3, {1: lambda: federation.grid.kill(victim)})
    assert strategy.history[0].left_out == {"4": "it did not answer in time"}
    assert [len(s.trained) for s in strategy.history] == [4, 4, 4]
    assert federation.clock.now - began == pytest.approx(20, abs=1)
    assert sum("'4'" in line for line in lines) == 1


def test_the_superlinks_error_for_a_dead_node_is_put_down_to_that_node(
    federation: Federation,
) -> None:
    for client in range(4):
        federation.add(client)
    grid = federation.grid
    doomed = federation.add(4, delay=only_train(30.0))
    strategy = cohorts(cohort=5)
    push = grid.push_messages

    def push_then_die(messages: list[Message]) -> Any:
        ids = push(messages)
        if doomed in grid.nodes and messages[0].metadata.message_type == MessageType.TRAIN:
            grid.kill(doomed)
        return ids

    grid.push_messages = push_then_die  # type: ignore[method-assign]
    each_round(strategy, federation, 1)
    assert strategy.history[0].left_out == {"4": "Node unavailable"}
    assert len(strategy.history[0].trained) == 4


def test_a_late_answer_is_dropped_and_its_client_is_free_again(
    federation: Federation, lines: list[str]
) -> None:
    for client in range(4):
        federation.add(client, delay=only_train(8.0))
    slow = federation.add(4, delay=only_train(25.0))
    strategy = cohorts(cohort=5, min_cohort=2, deadline=10.0)
    each_round(strategy, federation, 5)
    assert federation.grid.recipients(MessageType.TRAIN).count(slow) == 2
    cohort_has_slow = ["4" in s.cohort for s in strategy.history]
    # Busy for 25 s: asked in round 1 (10 s), left alone in rounds 2 and 3 (8 s each), asked again.
    assert cohort_has_slow == [True, False, False, True, False]
    assert all("4" not in s.trained for s in strategy.history)
    assert sum("answered 'train' too late" in line for line in lines) == 1


def test_a_client_that_fails_in_training_is_left_out(
    federation: Federation, lines: list[str]
) -> None:
    def broken(_: Message) -> RecordDict:
        raise RuntimeError("CUDA out of memory")

    for client in range(3):
        federation.add(client)
    federation.add(3, train=broken)
    strategy = cohorts(cohort=4)
    result = each_round(strategy, federation, 2)
    assert strategy.history[1].left_out == {"3": "RuntimeError('CUDA out of memory')"}
    assert result.arrays["w"].numpy()[1] == pytest.approx(2)
    assert sum("CUDA out of memory" in line for line in lines) == 2


def test_spare_clients_cover_for_slow_ones(federation: Federation, lines: list[str]) -> None:
    for client in range(4):
        federation.add(client)
    for client in range(4, 6):
        federation.add(client, delay=only_train(1000.0))
    strategy = cohorts(cohort=4, spare=2)
    began = federation.clock.now
    each_round(strategy, federation, 1)
    assert set(strategy.history[0].cohort) == set("012345")
    assert set(strategy.history[0].trained) == set("0123")
    assert not any("left out" in line for line in lines)
    assert federation.clock.now - began < 1


def test_of_all_answers_the_first_are_used(federation: Federation) -> None:
    for client in range(6):
        federation.add(client, delay=only_train(0.5))
    strategy = cohorts(cohort=4, spare=2)
    each_round(strategy, federation, 1)
    summary = strategy.history[0]
    assert len(summary.trained) == 4
    assert set(summary.left_out.values()) == {"enough others were faster"}


def test_a_round_with_too_few_updates_leaves_the_model_as_it_is(
    federation: Federation, lines: list[str]
) -> None:
    def broken(_: Message) -> RecordDict:
        raise RuntimeError("no")

    federation.add(0)
    for client in range(1, 4):
        federation.add(client, train=broken)
    strategy = cohorts(cohort=4, min_cohort=2)
    result = each_round(strategy, federation, 2)
    assert len(result.arrays) == 0
    assert not result.train_metrics_clientapp
    assert sum("is dropped: 1 usable updates, and it needs 2" in line for line in lines) == 2


def test_too_few_clients_end_in_one_clear_error(federation: Federation) -> None:
    federation.add(0)
    strategy = cohorts(patience=120.0)
    began = federation.clock.now
    with pytest.raises(TooFewClientsError, match="Only 1 of the 1 connected nodes"):
        each_round(strategy, federation, 1)
    assert federation.clock.now - began == pytest.approx(120, abs=1)


def test_a_round_begins_with_fewer_clients_when_patience_ends(
    federation: Federation, lines: list[str]
) -> None:
    for client in range(3):
        federation.add(client)
    strategy = cohorts(cohort=5, patience=60.0)
    each_round(strategy, federation, 2)
    assert [len(s.trained) for s in strategy.history] == [3, 3]
    assert any("Begins with 3 clients instead of 5" in line for line in lines)


def test_a_silent_stranger_is_waited_for_once(federation: Federation) -> None:
    for client in range(4):
        federation.add(client)
    federation.add(4, delay=lambda _: NEVER)
    strategy = cohorts(query_deadline=30.0)
    began = federation.clock.now
    each_round(strategy, federation, 5)
    assert federation.clock.now - began == pytest.approx(30, abs=2)
    assert all("4" not in s.cohort for s in strategy.history)


def test_a_late_profile_lets_its_client_in(federation: Federation) -> None:
    for client in range(3):
        federation.add(client, delay=only_train(20.0))
    federation.add(3, delay=lambda m: 50.0 if m.metadata.message_type == "query.profile" else 0.0)
    strategy = cohorts(cohort=2, query_deadline=30.0)
    each_round(strategy, federation, 20)
    assert all("3" not in s.cohort for s in strategy.history[:1])
    assert any("3" in s.trained for s in strategy.history)


def test_a_message_that_flower_does_not_take_is_not_waited_for(federation: Federation) -> None:
    nodes = [federation.add(client) for client in range(4)]
    strategy = cohorts(cohort=4)
    began = federation.clock.now

    def close() -> None:
        federation.grid.closed.add(nodes[0])

    each_round(strategy, federation, 2, {1: close})
    assert strategy.history[1].left_out == {"0": "Flower did not take its message"}
    assert federation.clock.now - began < 1


def test_a_query_that_flower_did_not_take_is_sent_again(federation: Federation) -> None:
    nodes = [federation.add(client) for client in range(4)]
    federation.grid.closed.add(nodes[0])
    strategy = cohorts()
    each_round(strategy, federation, 3, {1: federation.grid.closed.clear})
    assert len(strategy._selector.clients) == 4


def test_evaluation_does_not_wait_for_nodes_for_ever(
    federation: Federation, lines: list[str]
) -> None:
    for client in range(3):
        federation.add(client)
    strategy = CohortStrategy(FedAvg(min_evaluate_nodes=10), cohort=3, patience=40.0)
    result = each_round(strategy, federation, 2)
    assert not result.evaluate_metrics_clientapp
    assert sum("Evaluation of round" in line for line in lines) == 2


def test_a_silent_evaluation_costs_one_deadline(federation: Federation) -> None:
    for client in range(3):
        federation.add(client)
    federation.add(
        3, delay=lambda m: NEVER if m.metadata.message_type == MessageType.EVALUATE else 0.0
    )
    strategy = CohortStrategy(FedAvg(), cohort=3, min_clients=4, deadline=15.0)
    began = federation.clock.now
    result = each_round(strategy, federation, 3)
    assert set(result.evaluate_metrics_clientapp) == {1, 2, 3}
    assert federation.clock.now - began == pytest.approx(15, abs=1)


# -- nonsense -----------------------------------------------------------------------------------


def introduction(
    profile: Array | None, size: Any = 10, name: Any = "evil", **metrics: float
) -> RecordDict:
    content = RecordDict({"metrics": MetricRecord({"num-examples": size, **metrics})})
    content["fedcohort"] = ConfigRecord({"client-id": name})
    if profile is not None:
        content["vectors"] = ArrayRecord({"profile": profile})
    return content


def vector(*values: float, dtype: Any = np.float32) -> Array:
    return Array(np.array(values, dtype))


def lying(count: int) -> Array:
    """Return an array whose header claims `count` numbers and whose body holds four."""
    stream = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(stream, header)
    return Array("float32", (4,), "numpy.ndarray", stream.getvalue() + b"\0" * 16)


def pickled() -> Array:
    stream = io.BytesIO()
    np.save(stream, np.array([{}], object), allow_pickle=True)
    return Array("float32", (1,), "numpy.ndarray", stream.getvalue())


NONSENSE = {
    "missing": (introduction(None), "its profile is missing"),
    "short": (introduction(vector(1, 2)), "has 2 numbers where the others have 4"),
    "matrix": (introduction(Array(np.ones((2, 2), np.float32))), "has shape"),
    "nan": (introduction(vector(1, 2, np.nan, 4)), "is not finite"),
    "infinite": (introduction(vector(1, 2, np.inf, 4)), "is not finite"),
    "huge": (introduction(vector(1, 2, 1e12, 4)), "beyond 1e+06"),
    "long": (introduction(Array(np.zeros(1_000_001, np.float32))), "1000000 are allowed"),
    "integers": (introduction(vector(1, 2, 3, 4, dtype=np.int64)), "is of type int64"),
    "text": (introduction(Array(np.array(["a", "b"]))), "is of type"),
    "lying": (introduction(lying(10**12)), "1000000 are allowed"),
    "truncated": (introduction(lying(8)), "not as many bytes"),
    "pickled": (introduction(pickled()), "is of type object"),
    "garbage": (
        introduction(Array("float32", (4,), "numpy.ndarray", b"not an array")),
        "damaged header",
    ),
    "torch": (introduction(Array("float32", (4,), "torch.tensor", b"x")), "is stored as"),
    "no size": (introduction(vector(1, 2, 3, 4), size=0), "its num-examples is 0"),
    "nan size": (introduction(vector(1, 2, 3, 4), size=float("nan")), "its num-examples is nan"),
    "huge size": (introduction(vector(1, 2, 3, 4), size=10**18), "its num-examples is"),
    "large agreement": (introduction(vector(1, 2, 3, 4), agreement=1.5), "its agreement is 1.5"),
    "nan agreement": (
        introduction(vector(1, 2, 3, 4), agreement=float("nan")),
        "its agreement is nan",
    ),
    "long name": (introduction(vector(1, 2, 3, 4), name="x" * 1000), "short printable text"),
    "control characters": (
        introduction(vector(1, 2, 3, 4), name="a\nERROR: fake line"),
        "short printable text",
    ),
    "number as a name": (introduction(vector(1, 2, 3, 4), name=3.5), "short printable text"),
    "empty": (RecordDict(), "its profile is missing"),
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_a_nonsense_introduction_is_refused_in_one_line(
    federation: Federation, lines: list[str], kind: str
) -> None:
    content, words = NONSENSE[kind]
    for client in range(4):
        federation.add(client)
    evil = federation.add(9, answer=lambda _: content)
    strategy = cohorts()
    each_round(strategy, federation, 3)
    assert evil not in federation.grid.recipients(MessageType.TRAIN)
    assert [len(s.trained) for s in strategy.history] == [3, 3, 3]
    about = [line for line in lines if str(evil) in line]
    assert len(about) == 1
    assert words in about[0]
    assert "\n" not in about[0]
    assert len(federation.grid.recipients("query.profile")) == 5


def test_the_majority_decides_how_long_a_profile_is(federation: Federation) -> None:
    federation.add(0, profile=np.ones(2, np.float32))
    for client in range(1, 5):
        federation.add(client)
    strategy = cohorts()
    each_round(strategy, federation, 1)
    assert strategy._enrolment.members.client_named("0") is None
    assert len(strategy._selector.clients) == 4


W = np.zeros(3, np.float32)
NONSENSE_UPDATES = {
    "wrong shape": (lambda: trained(np.zeros(2, np.float32)), "has shape [2] instead of [3]"),
    "too large": (lambda: trained(np.zeros(1000, np.float32)), "3 are allowed"),
    "nan": (lambda: trained(W * np.nan), "is not finite"),
    "whole numbers": (lambda: trained(np.full(3, 2**62)), "is of type int64 instead of float32"),
    "huge": (lambda: trained(W + 1e30), "beyond 1e+06"),
    "other names": (
        lambda: RecordDict(
            {"a": ArrayRecord({"v": Array(W)}), "m": MetricRecord({"num-examples": 3})}
        ),
        "other names",
    ),
    "no arrays": (lambda: RecordDict({"m": MetricRecord({"num-examples": 3})}), "0 array records"),
    "no metrics": (lambda: RecordDict({"a": ArrayRecord({"w": Array(W)})}), "0 metric records"),
    "no weight": (lambda: trained(W, 0), "'num-examples' is 0"),
    "negative weight": (lambda: trained(W, -5), "'num-examples' is -5"),
    "list of weights": (lambda: trained(W, [1, 2]), "'num-examples' is [1, 2]"),
    "nan weight": (lambda: trained(W, float("nan")), "'num-examples' is nan"),
    "other metrics": (lambda: trained(W, 5, extra=1.0), "not those of the others"),
    "text": (lambda: trained(np.array(["a", "b", "c"])), "is of type"),
}


@pytest.mark.parametrize("kind", NONSENSE_UPDATES)
def test_a_nonsense_update_is_refused_in_one_line(
    federation: Federation, lines: list[str], kind: str
) -> None:
    content, words = NONSENSE_UPDATES[kind]
    for client in range(3):
        federation.add(client)
    federation.add(3, train=lambda _: content())
    strategy = cohorts(cohort=4)
    result = each_round(strategy, federation, 2)
    assert [s.trained for s in strategy.history] == [("0", "1", "2")] * 2
    assert words in strategy.history[0].left_out["3"]
    assert result.arrays["w"].numpy()[1] == pytest.approx(2)
    assert sum("Client '3'" in line for line in lines) == 2


def test_a_nonsense_evaluation_is_left_out(federation: Federation, lines: list[str]) -> None:
    def bad(content: RecordDict) -> Callable[[Message], RecordDict]:
        return lambda _: content

    for client in range(3):
        federation.add(client)
    federation.add(3, evaluate=bad(RecordDict({"m": MetricRecord({"num-examples": 0})})))
    federation.add(4, evaluate=bad(RecordDict()))
    federation.add(
        5, evaluate=bad(RecordDict({"m": MetricRecord({"num-examples": 3, "other": 1.0})}))
    )
    strategy = CohortStrategy(FedAvg(), cohort=3, min_clients=6)
    result = each_round(strategy, federation, 1)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx(0.5)
    assert sum("valuation" in line for line in lines) == 3


def test_models_that_grow_can_be_let_through(federation: Federation) -> None:
    for client in range(3):
        federation.add(client, train=lambda _: trained(np.ones(5, np.float32)))
    strategy = cohorts(check_arrays=False)
    result = each_round(strategy, federation, 1)
    assert result.arrays["w"].numpy().shape == (5,)
