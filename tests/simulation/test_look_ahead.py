"""Choosing ahead of time changes nothing."""

import dataclasses

import pytest
import torch

from fedcohort import list_selectors, make_selector
from fedcohort.federation import load_dataset
from fedcohort.simulation import Lockstep, RunConfig

CONFIG = RunConfig(clients=30, cohort=6, rounds=5, dropout=0.2, speed_spread=0.5)


def test_selectors_without_feedback_only_look_at_what_clients_sent_once():
    found = {name for name in list_selectors() if not make_selector(name).needs_feedback}
    assert found == {"dp3s", "fedavg", "gemd-oracle", "kcenter", "ward"}


@pytest.mark.parametrize("selector", ["dp3s", "fedavg", "match"])
def test_records_are_the_same_with_and_without_looking_ahead(selector):
    digits = load_dataset("digits")
    config = dataclasses.replace(CONFIG, selector=selector)
    plain, ahead = (Lockstep([config], digits, torch.device("cpu")) for _ in range(2))
    for _ in range(config.rounds):
        (ours,) = ahead.advance()
        (theirs,) = plain.advance()
        assert (ours.cohort, ours.left_out, ours.elapsed, ours.bytes_up) == (
            theirs.cohort,
            theirs.left_out,
            theirs.elapsed,
            theirs.bytes_up,
        )
        if not ahead._runs[0].selector.needs_feedback and ahead.round < config.rounds:
            ahead._ahead[0] = ahead._assign(0, ahead=1)
    for name, values in plain.parameters.items():
        assert torch.equal(values, ahead.parameters[name])
