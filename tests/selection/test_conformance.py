"""Every registered selector, in every mode, passes the conformance suite."""

import dataclasses
import re

import numpy as np
import pytest

from fedcohort import list_selectors, make_selector
from fedcohort.errors import InvalidCohortError
from fedcohort.selection import Cohort, Need, Selector
from fedcohort.selection.asking import questions_of
from fedcohort.selection.fedavg import FedAvg
from fedcohort.testing import check_selector

MODES = [
    ("dp3s", {"kernel": "low-rank"}),
    ("dp3s", {"kernel": "low-rank", "rank": 8, "weights": "unbiased"}),
    ("dp3s", {"weights": "unbiased"}),
    ("fedsae", {"workload": "ira"}),
    ("fedsae", {"workload": "fassa"}),
    ("fedsae", {"beta": 0.0}),
    ("clustered", {"distance": "l1"}),
    ("clustered", {"distance": "l2"}),
    ("dp3s", {"guard": "updates"}),
    ("dp3s", {"guard": "profiles", "kernel": "low-rank"}),
    ("match", {"guard": "updates"}),
    ("kcenter", {"guard": "profiles"}),
    ("ward", {"guard": "updates"}),
]


@pytest.mark.parametrize("name", list_selectors())
def test_every_registered_selector_conforms(name):
    check_selector(name)


@pytest.mark.parametrize(("name", "parameters"), MODES)
def test_every_mode_conforms(name, parameters):
    check_selector(lambda: make_selector(name, **parameters))


class _Twice(FedAvg):
    def _choose(self, k, rows, rng):  # noqa: ARG002
        return self._cohort(np.full(k, rows[0]))


class _GlobalChance(FedAvg):
    def _choose(self, k, rows, rng):  # noqa: ARG002
        return self._cohort(np.random.permutation(rows)[:k])  # noqa: NPY002


class _Outsider(FedAvg):
    def _choose(self, k, rows, rng):  # noqa: ARG002
        return self._cohort(rng.choice(len(self._roster), k, replace=False))


class _Forgetful(Selector):
    def __post_init__(self):
        super().__post_init__()
        self.rounds = 0

    def _choose(self, k, rows, rng):
        self.rounds += 1
        return self._cohort(np.roll(rows, self.rounds + rng.integers(2))[:k])


class _WrongTypes(FedAvg):
    def _choose(self, k, rows, rng):
        cohort = super()._choose(k, rows, rng)
        return Cohort(cohort.ids, cohort.weights.astype(np.float32))


class _Nosy(FedAvg):
    needs = frozenset({Need.LOSS})

    def ask(self, *_, **__):
        return {Need.LOSS: self.clients}


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (_Nosy, "it asks client 0, who is not there"),
        (_Twice, "twice"),
        (_GlobalChance, "the same seed gave two cohorts"),
        (_Outsider, "not there to be chosen"),
        (_Forgetful, "restored selector"),
        (_WrongTypes, "float32"),
    ],
)
def test_the_suite_catches_broken_selectors(broken, complaint):
    made = dataclasses.dataclass(kw_only=True, eq=False)(broken)
    made.name = "broken"
    with pytest.raises(AssertionError, match=complaint):
        check_selector(made)


WRONG = {
    "it returned list, not a Cohort": lambda cohort: cohort.ids.tolist(),
    "Client 99 is not in this federation": lambda cohort: changed(cohort, ids=np.array([99, 0, 1])),
    "Client -1 is not in this": lambda cohort: changed(cohort, ids=np.array([-1, 0, 1])),
    "a client stands there twice": lambda cohort: changed(cohort, ids=np.array([1, 0, 1])),
    "its ids have shape [2], not [3]": lambda cohort: Cohort(cohort.ids[:2], cohort.weights[:2]),
    "its weights have shape [1]": lambda cohort: changed(cohort, weights=np.ones(1)),
    "its weights are list": lambda cohort: changed(cohort, weights=[1.0, 1.0, 1.0]),
    "its weights are [nan": lambda cohort: changed(cohort, weights=np.full(3, np.nan)),
    "its weights are [-1": lambda cohort: changed(cohort, weights=np.full(3, -1.0)),
    "its weights are [0": lambda cohort: changed(cohort, weights=np.zeros(3)),
    "its work is not two numbers": lambda cohort: changed(cohort, work=np.zeros((3, 2))),
}


def changed(cohort, **fields):
    return dataclasses.replace(cohort, **fields)


@pytest.mark.parametrize("problem", WRONG)
def test_what_cannot_be_trained_is_refused_wherever_a_selector_is_used(problem):
    class Mistaken(FedAvg):
        name = "mistaken"

        def _choose(self, k, rows, rng):
            return WRONG[problem](super()._choose(k, rows, rng))

    with pytest.raises(InvalidCohortError, match=re.escape(f"selector must ({problem}")):
        Mistaken().fit(clients=5).select(3, rng=np.random.default_rng(0))


WRONG_QUESTIONS = {
    "it asks client 9, who is not there": {Need.LOSS: np.array([0, 9])},
    "it asks client 4, who is not there": {Need.LOSS: np.array([0, 4])},
    "it asks a client twice": {Need.LOSS: np.array([1, 1])},
    "the ids that it asks are list": {Need.LOSS: [0, 1]},
    "the ids that it asks are int32": {Need.LOSS: np.array([0, 1], np.int32)},
    "it asks for 'duration', which it does not declare": {Need.DURATION: np.array([0, 1])},
}


@pytest.mark.parametrize("problem", WRONG_QUESTIONS)
def test_what_nobody_can_answer_is_refused_before_it_is_asked(problem):
    class Mistaken(FedAvg):
        name = "mistaken"
        needs = frozenset({Need.LOSS})

        def ask(self, *_, **__):
            return WRONG_QUESTIONS[problem]

    rng = np.random.default_rng(0)
    with pytest.raises(InvalidCohortError, match=re.escape(f"selector must ({problem}")):
        questions_of(Mistaken().fit(clients=9), 3, np.arange(4), rng=rng)
