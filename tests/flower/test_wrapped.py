"""The wrapped strategy's own `start`, strategies of the older interface, and what waiting says."""

import logging
import pathlib
import stat
from typing import Any

import numpy as np
import pytest
from fake_federation import Federation, model
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import arrays_size_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Result,
)

from fedcohort.errors import InvalidParameterError, TooFewClientsError
from fedcohort.flower import CohortStrategy, answer_queries


class BestModel(FedAvg):
    """Keeps the best model in a `start` of its own, through helpers and attributes of its own."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.best = -1.0
        self.seen: list[int] = []

    def _keep(self, round_: int, score: float) -> None:
        self.seen.append(round_)
        self.best = max(self.best, score)

    def start(self, grid: Any, initial_arrays: ArrayRecord, **named: Any) -> Result:
        def watched(round_: int, arrays: ArrayRecord) -> MetricRecord:
            score = float(arrays["w"].numpy()[1])
            self._keep(round_, score)
            return MetricRecord({"score": score})

        return super().start(grid, initial_arrays, **named | {"evaluate_fn": watched})


def test_the_wrapped_strategys_own_start_runs(federation: Federation) -> None:
    for client in range(6):
        federation.add(client)
    inner = BestModel(fraction_evaluate=0.0)
    strategy = CohortStrategy(inner, cohort=3, min_clients=6)
    result = strategy.start(federation.grid, model(), num_rounds=4)
    assert len(strategy.history) == 4
    assert all(len(s.trained) == 3 for s in strategy.history)
    assert inner.seen == [0, 1, 2, 3, 4]
    assert inner.best == pytest.approx(4.0)
    assert set(result.evaluate_metrics_serverapp) == {0, 1, 2, 3, 4}
    assert len(federation.grid.recipients("train")) == 12


class OwnLoop(FedAvg):
    """Does its rounds by itself, as some apps do."""

    def start(self, grid: Any, initial_arrays: ArrayRecord, num_rounds: int = 3, **_: Any) -> Any:
        arrays, self.rounds = initial_arrays, []
        for round_ in range(1, num_rounds + 1):
            replies = grid.send_and_receive(self.configure_train(round_, arrays, {}, grid))
            found, _ = self.aggregate_train(round_, replies)
            arrays = arrays if found is None else found
            self.rounds.append(round_)
        return arrays


def test_a_loop_of_its_own_sees_the_cohort_only(federation: Federation) -> None:
    from flwr.app import ConfigRecord

    class Loop(OwnLoop):
        def configure_train(self, number: int, arrays: Any, _: Any, grid: Any) -> Any:
            return super().configure_train(number, arrays, ConfigRecord(), grid)

    for client in range(6):
        federation.add(client)
    inner = Loop(fraction_evaluate=0.0)
    strategy = CohortStrategy(inner, cohort=2, min_clients=6)
    arrays = strategy.start(federation.grid, model(), num_rounds=3)
    assert inner.rounds == [1, 2, 3]
    assert len(federation.grid.recipients("train")) == 6
    assert arrays["w"].numpy()[1] == pytest.approx(3)


def test_resumed_rounds_are_counted_as_the_user_counts_them(
    federation: Federation, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    for client in range(6):
        federation.add(client)
    path = tmp_path / "server.npz"

    def run(rounds: int) -> CohortStrategy:
        inner = BestModel(fraction_evaluate=0.0)
        strategy = CohortStrategy(inner, cohort=3, min_clients=6, checkpoint=path)
        strategy.start(federation.grid, model(), num_rounds=rounds)
        return strategy

    run(3)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    caplog.clear()
    with caplog.at_level(logging.INFO):
        again = run(5)
    told = [r.getMessage() for r in caplog.records if r.getMessage().startswith("[ROUND")]
    assert list(dict.fromkeys(told)) == ["[ROUND 4/5]", "[ROUND 5/5]"]
    assert [s.round for s in again.history] == [4, 5]
    assert "Rounds done by an earlier server: 3" in caplog.text


def test_strategies_of_the_older_interface_get_one_sentence() -> None:
    class FedAvgOfOld:
        def configure_fit(self) -> None: ...

    with pytest.raises(InvalidParameterError, match=r"use the one of flwr\.serverapp\.strategy"):
        CohortStrategy(FedAvgOfOld())  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterError, match="not str"):
        CohortStrategy("FedAvg")  # type: ignore[arg-type]


# -- mods ----------------------------------------------------------------------------------------


def reads_config(message: Message, context: Context, call: Any) -> Message:
    """Do as many mods do: look for what only train messages have."""
    assert message.content["config"]["server-round"]
    return call(message, context)


@pytest.mark.parametrize("mod", [reads_config, fixedclipping_mod, arrays_size_mod])
def test_queries_pass_mods_of_the_whole_app(mod: Any) -> None:
    app = ClientApp(mods=[mod])
    answer_queries(app, size=lambda _: 3, profile=lambda *_: [1.0, 2.0], loss=lambda *_: 0.5)
    context = Context(run_id=1, node_id=5, node_config={}, state=RecordDict(), run_config={})
    from fedcohort.flower.protocol import query_content
    from fedcohort.selection import Need

    for kind, need in (("profile", Need.PROFILE), ("loss", Need.LOSS)):
        reply = app(Message(query_content([need], model()), 5, f"query.{kind}"), context)
        assert reply.has_content()


def test_mods_of_the_whole_app_still_see_training(federation: Federation) -> None:
    seen: list[str] = []

    def note(message: Message, context: Context, call: Any) -> Message:
        seen.append(message.metadata.message_type)
        return call(message, context)

    for client in range(4):
        node = federation.add(client)
        app = ClientApp(mods=[note])
        answer_queries(app, size=lambda _: 10, profile=lambda *_, c=client: np.eye(4)[c])
        train = federation.trainer(client, 10)
        app.train()(lambda m, _, t=train: Message(t(m), reply_to=m))
        federation.grid.nodes[node].app = app
    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), cohort=2, min_clients=4)
    strategy.start(federation.grid, model(), num_rounds=2)
    assert seen == ["train"] * 4


# -- waiting -------------------------------------------------------------------------------------


def test_all_refused_is_said_at_once_with_the_reasons(federation: Federation) -> None:
    def broken(_: Any) -> RecordDict:
        raise KeyError("config")

    for client in range(4):
        federation.add(client, answer=broken)
    began = federation.clock.now
    strategy = CohortStrategy(FedAvg(), cohort=3)
    with pytest.raises(TooFewClientsError, match=r"All 4 connected nodes were refused: .*config"):
        strategy.start(federation.grid, model(), num_rounds=1)
    assert federation.clock.now - began < 5


def test_a_cohort_larger_than_the_federation_is_said_at_once(
    federation: Federation, lines: list[str]
) -> None:
    for client in range(4):
        federation.add(client)
    began = federation.clock.now
    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), cohort=10)
    strategy.start(federation.grid, model(), num_rounds=1)
    assert "Waiting for 10 clients: 4 of the 4 connected nodes can train." in lines
    assert federation.clock.now - began < 70, "it does not wait for patience"
    assert len(strategy.history[0].trained) == 4
    # Whoever says how many to wait for gets that.
    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), cohort=10, min_clients=10)
    began = federation.clock.now
    strategy.start(federation.grid, model(), num_rounds=1)
    assert federation.clock.now - began == pytest.approx(600, abs=2)


# -- Flower's differential privacy -----------------------------------------------------------------


@pytest.mark.parametrize("selector", ["divfl", "match"])
@pytest.mark.parametrize("side", ["server", "client"])
def test_privacy_wrappers_with_spare_clients(
    federation: Federation, selector: str, side: str
) -> None:
    for client in range(7):
        federation.add(client, delay=lambda _, c=client: 0.1 * c)
    wrap = {
        "server": DifferentialPrivacyServerSideFixedClipping,
        "client": DifferentialPrivacyClientSideFixedClipping,
    }[side]
    inner = wrap(FedAvg(fraction_evaluate=0.0), 0.0, 100.0, num_sampled_clients=3)
    strategy = CohortStrategy(inner, selector, cohort=3, spare=2, min_clients=7)
    result = strategy.start(federation.grid, model(), num_rounds=3)
    assert [len(s.trained) for s in strategy.history] == [3, 3, 3]
    assert len(strategy.history[0].cohort) == 5
    assert np.isfinite(result.arrays["w"].numpy()).all()
