"""What happens around Ray; a stand-in trains its actors in this process, one call at a time."""

import types

import pytest
import torch

from fedcohort.errors import UnwritableFileError
from fedcohort.simulation import RunConfig
from fedcohort.simulation.claims import Claims
from fedcohort.simulation.execution.on_ray import _Cluster
from fedcohort.simulation.execution.runner import prepare_study
from fedcohort.simulation.execution.work import Work
from fedcohort.simulation.group_training import GroupTraining
from fedcohort.simulation.groups import group_states, groups_of
from fedcohort.simulation.packing import packer
from fedcohort.simulation.planning import enter_study
from fedcohort.simulation.study import study_of_runs

RUNS = [RunConfig(clients=10, cohort=3, rounds=2)]


class RayInHere:
    """A future is a call that has not been made; what is killed is counted."""

    exceptions = types.SimpleNamespace(
        RayTaskError=type("RayTaskError", (Exception,), {}),
        RayError=type("RayError", (Exception,), {}),
    )

    def __init__(self):
        self.killed = []

    def wait(self, futures, **_):
        return futures[:1], futures[1:]

    def get(self, future):
        return future()

    def kill(self, actor):
        self.killed.append(actor)


def remote(method):
    return types.SimpleNamespace(remote=lambda *given: lambda: method(*given))


@pytest.mark.parametrize("problem", [UnwritableFileError("the disk is full"), KeyboardInterrupt()])
def test_a_group_whose_save_fails_is_free_for_others(store, monkeypatch, problem):
    prepared, ray = prepare_study(study_of_runs(RUNS), device="cpu"), RayInHere()
    enter_study(store, prepared.study, packer(prepared.materials, prepared.device))

    def start(claim):
        training = GroupTraining(claim, prepared.materials, torch.device("cpu"))
        return types.SimpleNamespace(
            entries=remote(training.entries), advance=remote(training.advance)
        )

    def fails(*_):
        raise problem

    claims = Claims(store)
    monkeypatch.setattr(claims, "save", fails)
    work = Work(store, groups_of(store, RUNS), prepared.materials, "cpu")
    with pytest.raises(type(problem)):
        _Cluster(ray, work, claims, lambda *_: None).keep_busy(start, lambda: 1)
    assert [group.holder for group in group_states(store)] == [""]
    assert len(ray.killed) == 1
