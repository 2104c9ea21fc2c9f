"""Choosing ahead of time changes nothing."""

import dataclasses

import pytest
import torch
from running import lockstep_of, without_times

from fedcohort import list_selectors
from fedcohort.selection import make_selector, selector_class
from fedcohort.simulation import RunConfig

CONFIG = RunConfig(clients=30, cohort=6, rounds=5, dropout=0.2, speed_spread=0.5)


def test_selectors_without_feedback_only_look_at_what_clients_sent_once():
    ours = [n for n in list_selectors() if selector_class(n).__module__.startswith("fedcohort.")]
    found = {name for name in ours if not make_selector(name).needs_feedback}
    assert found == {"dp3s", "fedavg", "gemd-oracle", "kcenter", "ward"}


@pytest.mark.parametrize("selector", ["dp3s", "fedavg", "match"])
def test_records_are_the_same_with_and_without_looking_ahead(selector):
    config = dataclasses.replace(CONFIG, selector=selector)
    plain, ahead = (lockstep_of(config) for _ in range(2))
    for _ in range(config.rounds):
        (ours,) = ahead.advance()
        (theirs,) = plain.advance()
        assert without_times(ours) == without_times(theirs)
        if not ahead._members[0].selector.needs_feedback and ahead.round < config.rounds:
            ahead._ahead[0] = ahead._assign(0, ahead.round + 1)
    for name, values in plain.parameters.items():
        assert torch.equal(values, ahead.parameters[name])
