"""Groups in this process: time limits, groups shared with others, logs."""

import contextlib
import dataclasses
import itertools

import pytest
from running import run

from fedcohort.simulation import RunConfig, Store
from fedcohort.simulation.claims import Claims
from fedcohort.simulation.execution import here as here_module
from fedcohort.simulation.execution.here import here
from fedcohort.simulation.execution.work import Work
from fedcohort.simulation.groups import group_states, groups_of
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.packing import Pack
from fedcohort.simulation.planning import enter_study
from fedcohort.simulation.study import study_of_runs

RUN = RunConfig(clients=10, cohort=3, rounds=50)


def test_it_ends_before_its_deadline_with_its_rounds_saved(tmp_path, monkeypatch):
    seconds = itertools.count(0.0, 0.2)
    monkeypatch.setattr(here_module.time, "monotonic", lambda: next(seconds))
    with Store(tmp_path) as store:
        assert not run([RUN], store, deadline=20.0)
        assert next(seconds) < 20
        (group,) = group_states(store)
        assert 0 < group.round < 50
        assert group.round == store.records(RUN.key)[-1].round
        assert not group.holder


def test_two_processes_share_the_groups(tmp_path):
    runs = [dataclasses.replace(RUN, rounds=2, seed=seed) for seed in range(2)]
    with Store(tmp_path) as store:
        enter_study(store, study_of_runs(runs), lambda configs: [Pack((c,), 1.0) for c in configs])
        names, other = groups_of(store, runs), Claims(store)
        held = other.claim(names)
        waited = []

        def report(progress):
            # The other one gives up as soon as there is nothing left here but to wait for it.
            if progress.note.startswith("waiting"):
                waited.append(progress)
                other.release(held)

        assert here(Work(store, names, Materials(), "cpu", report))
        assert [p.done for p in waited] == [2]
        assert all(store.is_done(run.key) for run in runs)


def test_rounds_are_logged_once_they_are_saved(tmp_path, monkeypatch):
    config = dataclasses.replace(RUN, rounds=3)
    logged = []
    with Store(tmp_path) as store:

        def log(config, records, _score):
            assert store.records(config.key)[-1] == records[-1]
            logged.extend(record.round for record in records)

        monkeypatch.setattr(here_module, "open_logs", _opened(log))
        assert run([config], store, logs=["tensorboard:logs"])
    assert logged == [0, 1, 2, 3]


def _opened(log):
    @contextlib.contextmanager
    def open_logs(targets):
        assert targets == ("tensorboard:logs",)
        yield log

    return open_logs


@pytest.mark.parametrize("wanted", [True, False])
def test_last_models_are_kept_if_they_are_wanted(tmp_path, wanted):
    config = dataclasses.replace(RUN, rounds=2)
    with Store(tmp_path) as store:
        assert run([config], store, keep_models=wanted)
    assert (tmp_path / "models" / f"{config.key}.npz").exists() == wanted
