"""Selectors are told what they declare, what is a number, and what their model has."""

import dataclasses
import math

import numpy as np
import pytest
from running import lockstep_of, run
from torch import nn

from fedcohort.errors import BrokenSelectorError, InvalidModelError, InvalidParameterError
from fedcohort.selection import Need, Outcome
from fedcohort.selection.fedavg import FedAvg
from fedcohort.selection.registry import selector_class
from fedcohort.simulation import RunConfig, Store
from fedcohort.simulation.execution.runner import prepare_study
from fedcohort.simulation.study import study_of_runs

SMALL = RunConfig(clients=20, cohort=5, rounds=3, lr=0.1, epochs=1.0, selector="fedavg")
STRAINED = dataclasses.replace(SMALL, dropout=0.4, speed_spread=1.0)


class Listening(FedAvg):
    """Draws at random, and keeps what it hears."""

    def __post_init__(self):
        super().__post_init__()
        self.heard: list[Outcome] = []

    def observe(self, outcome):
        self.heard.append(outcome)


class ListeningForLosses(Listening):
    needs = frozenset({Need.LOSS})


class ListeningForDurations(Listening):
    needs = frozenset({Need.DURATION})


def heard_by(rule, rounds=3):
    lockstep = lockstep_of(dataclasses.replace(STRAINED, selector=f"{__file__}:{rule.__name__}"))
    for _ in range(rounds):
        lockstep.advance()
    return lockstep._members[0].selector.heard


def test_what_was_not_declared_is_not_told():
    for outcome in heard_by(Listening):
        assert (outcome.losses, outcome.updates, outcome.durations) == (None, None, None)


def test_of_those_who_do_not_answer_nothing_is_told():
    for rule, name in ((ListeningForLosses, "losses"), (ListeningForDurations, "durations")):
        outcomes = heard_by(rule)
        assert not all(outcome.trained.all() for outcome in outcomes)
        for outcome in outcomes:
            assert np.array_equal(np.isfinite(getattr(outcome, name)), outcome.trained)


def test_a_round_with_nobody_there_is_observed_too(tmp_path):
    there = np.ones((3, 20), np.int8)
    there[1] = 0
    np.save(tmp_path / "there.npy", there)
    lockstep = lockstep_of(
        dataclasses.replace(
            SMALL,
            selector=f"{__file__}:Listening",
            availability=str(tmp_path / "there.npy"),
        )
    )
    for _ in range(3):
        lockstep.advance()
    heard = lockstep._members[0].selector.heard
    assert [len(outcome.ids) for outcome in heard] == [SMALL.cohort, 0, SMALL.cohort]


@pytest.mark.filterwarnings("error::RuntimeWarning:fedcohort")
@pytest.mark.parametrize(
    ("selector", "lr"),
    [("pow-d", 10.0), ("fedsae", 1e6), ("fedcor:warmup=2", 1e6), ("divfl", 1e12)],
)
def test_a_model_that_diverges_ends_no_run(tmp_path, selector, lr):
    config = dataclasses.replace(SMALL, rounds=60, epochs=3.0, lr=lr, selector=selector)
    with Store(tmp_path) as store:
        assert run([config], store)
        records = store.records(store.configs()[0].key)
    # It has diverged, and is at guessing.
    assert records[-1].round == 60
    assert records[-1].train_score < 0.2


def test_clients_that_fail_their_task_take_no_place_of_those_who_answer():
    config = dataclasses.replace(
        SMALL, selector="fedsae:workload=ira", rounds=30, over_selection=2.0
    )
    lockstep = lockstep_of(config)
    used = []
    for _ in range(30):
        (record,) = lockstep.advance()
        used.append(len(set(record.cohort) - set(record.left_out)))
        assert record.elapsed >= 1
    # Of ten that are asked, six to eight can do what they are asked to.
    assert np.mean(np.array(used) == 5) > 0.7


class Breaks(FedAvg):
    """Goes wrong in one method, in round 2 if that is one of a round's."""

    broken = ""
    rounds = 0

    def _break(self, method):
        if self.broken == method and (self.rounds == 1 or method == "_joined"):
            raise KeyError(method)

    def _joined(self, rows):  # noqa: ARG002
        self._break("_joined")

    def ask(self, k, available=None, *, rng):
        self._break("ask")
        there = self.clients if available is None else available
        return {Need.LOSS: there} if Need.LOSS in self.needs else super().ask(k, available, rng=rng)

    def tell(self, need, ids, values):
        self._break("tell")
        super().tell(need, ids, values)

    def _choose(self, k, rows, rng):
        self._break("_choose")
        return super()._choose(k, rows, rng)

    def observe(self, outcome):  # noqa: ARG002
        self._break("observe")
        self.rounds += 1

    def describe(self):
        self._break("describe")
        return super().describe()

    def state(self):
        self._break("state")
        return super().state()

    def restore(self, state):
        self._break("restore")
        super().restore(state)


@pytest.mark.parametrize(
    ("method", "needs", "when"),
    [
        ("_joined", (), "as clients join"),
        ("ask", (), "in round 2"),
        ("tell", (Need.LOSS,), "in round 2"),
        ("_choose", (), "in round 2"),
        ("observe", (), "in round 2"),
        ("observe", (Need.UPDATE,), "in round 2"),
        ("describe", (), "as it is described"),
        ("state", (), "as it is saved"),
        ("restore", (), "as it resumes"),
    ],
)
@pytest.mark.parametrize("wrapped", ["{}", "only({}; 1; 2; 3; 4; 5; 6)"])
def test_a_rule_of_ones_own_that_breaks_is_named_with_its_line(
    monkeypatch, method, needs, when, wrapped
):
    spec = wrapped.format(f"{__file__}:Breaks")
    rule = selector_class(spec)
    monkeypatch.setattr(rule, "broken", method)
    monkeypatch.setattr(rule, "needs", frozenset(needs))

    def play():
        lockstep = lockstep_of(dataclasses.replace(SMALL, selector=spec, seed=3))
        lockstep.advance()
        if method == "describe":
            lockstep.facts()
        if method in ("state", "restore"):
            lockstep.resume(lockstep.states())
        lockstep.advance()

    with pytest.raises(BrokenSelectorError) as caught:
        play()
    line = Breaks._break.__code__.co_firstlineno
    said = str(caught.value)
    assert said.startswith(f"Selector {spec!r} fails {when} with seed 3 (KeyError in line ")
    assert f" of {__file__}: {method!r}): mend it" in said
    assert f"line {line + 2} of" in said
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_error_of_fedcohorts_own_rules_is_shown_as_it_is(monkeypatch):
    monkeypatch.setattr(FedAvg, "_choose", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        lockstep_of(SMALL).advance()


class TwoLayers(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.fc = nn.Linear(math.prod(shape), 16)
        self.out = nn.Linear(16, classes)

    def forward(self, x):
        return self.out(self.fc(x.flatten(1)))


class HiddenLast(TwoLayers):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.fc = self._modules.pop("fc")


class Frozen(TwoLayers):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.fc.requires_grad_(False)


def test_updates_that_are_asked_for_are_of_what_is_trained():
    lockstep = lockstep_of(dataclasses.replace(SMALL, selector="divfl", model=f"{__file__}:Frozen"))
    (record,) = lockstep.advance()
    # Of the output layer, 16 × 10 and 10: from all 20 at first, and from 5 that train.
    assert record.bytes_up == 4 * 170 * (20 + 5)


def with_labels_of(classes, tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(240, 6)).astype(np.float32), np.arange(240) % classes
    file = tmp_path / "labels.npz"
    np.savez(file, x=x, y=y, x_test=x[:30], y_test=y[:30])
    return str(file)


@pytest.mark.parametrize("selector", ["hics", "match:guard=updates", "only(hics; 1; 2; 3; 4; 5)"])
@pytest.mark.parametrize("classes", [3, 12])
def test_rules_that_read_the_output_bias_keep_as_many_numbers_as_the_model_has(
    tmp_path, selector, classes
):
    config = dataclasses.replace(
        SMALL, dataset=with_labels_of(classes, tmp_path), skew="iid", clients=8, selector=selector
    )
    lockstep = lockstep_of(config)
    lockstep.advance()
    assert lockstep._members[0].selector.state()["client.update"].shape[1] == classes


def test_outputs_that_the_model_does_not_have_are_refused():
    for selector, model, error, said in (
        (
            "hics:outputs=5",
            "auto",
            InvalidParameterError,
            "outputs of selector 'hics:outputs=5' is 5",
        ),
        ("hics", f"{__file__}:HiddenLast", InvalidModelError, r"is 'fc.bias' of shape \[16\]"),
    ):
        config = dataclasses.replace(SMALL, selector=selector, model=model)
        with pytest.raises(error, match=said):
            prepare_study(study_of_runs([config]), device="cpu")
