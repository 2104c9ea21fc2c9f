"""A worker that is stopped (SIGSTOP) loses its group after a while, and gives up when it wakes."""

import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from store_contents import contents

from fedcohort.simulation import RunConfig, Store, groups
from fedcohort.simulation.claims import ClaimLostError, Claims, ResumeWarning
from fedcohort.simulation.devices import find_device
from fedcohort.simulation.execution import processes
from fedcohort.simulation.execution.runner import prepare_study, run_study
from fedcohort.simulation.group_training import GroupTraining
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.packing import packer
from fedcohort.simulation.planning import enter_study
from fedcohort.simulation.study import study_of_runs

RUN = RunConfig(clients=8, cohort=2, samples_per_client=20, rounds=30)
STUDY = study_of_runs([RUN])
CPU = find_device("cpu")

# Trains one round at a time, saves each, and says so; stops itself after the third.
WORKER = """
import os, signal, sys
from fedcohort.simulation import Store, group_training
group_training.SECONDS_BETWEEN_SAVES = group_training._SAVING_SHARE = 0
from fedcohort.simulation.execution import here as place
place.SECONDS_BETWEEN_SAVES = 0
from fedcohort.simulation.execution.work import Work
from fedcohort.simulation.groups import group_states
from fedcohort.simulation.materials import Materials

rounds = 0
def stop():
    global rounds
    rounds += 1
    if rounds == 5:
        os.kill(os.getpid(), signal.SIGSTOP)
    return False

with Store(sys.argv[1]) as store:
    names = frozenset(group.name for group in group_states(store))
    assert place.here(Work(store, names, Materials(), "cpu", stop=stop))
"""


def enter(folder):
    with Store(folder) as store:
        enter_study(store, STUDY, packer(Materials(), CPU))


@pytest.fixture
def impatient(monkeypatch):
    """A claim is given up after two seconds here, instead of a minute."""
    monkeypatch.setattr(groups, "SECONDS_TO_LIVE", 2.0)


def test_a_silent_claim_of_a_living_process_is_given_up():
    mine = groups.liveness.host(), os.getpid(), groups.liveness.started(os.getpid())
    now = time.time()
    assert not groups.is_abandoned(*mine, now)
    assert not groups.is_abandoned(*mine, now - 0.8 * groups.SECONDS_TO_LIVE)
    assert groups.is_abandoned(*mine, now - 1.2 * groups.SECONDS_TO_LIVE)


@pytest.mark.usefixtures("impatient")
def test_another_takes_over_and_the_stopped_one_gives_up_when_it_wakes(tmp_path):
    enter(tmp_path / "shared")
    stopped = subprocess.Popen(
        [sys.executable, "-c", WORKER, tmp_path / "shared"], stderr=subprocess.PIPE, text=True
    )
    try:
        os.waitpid(stopped.pid, os.WUNTRACED)
        with Store(tmp_path / "shared") as store:
            (before,) = groups.group_states(store)
            assert 0 < before.round < RUN.rounds
            assert run_study(prepare_study(STUDY, device="cpu"), store)
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
        _, said = stopped.communicate(timeout=60)
    assert stopped.returncode == 0, said
    assert "took it over" in said
    with Store(tmp_path / "alone") as store:
        assert run_study(prepare_study(STUDY, device="cpu"), store)
    assert contents(tmp_path / "shared") == contents(tmp_path / "alone")
    assert not [p for p in (tmp_path / "shared" / "checkpoints").iterdir() if p.suffix == ".tmp"]


def test_a_study_ends_though_a_worker_is_stopped_that_holds_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_SECONDS_TO_END", 0.1)
    stopped = []

    # Long enough that the second worker has begun to wait before the first has finished.
    long = study_of_runs([dataclasses.replace(RUN, rounds=3000, eval_every=3000)])

    def stop_the_idle_one(_):
        (group,) = groups.group_states(store)
        pids = [process.pid for process in multiprocessing.active_children()]
        idle = [pid for pid in pids if not group.holder.endswith(f":{pid}")]
        if group.holder and not stopped:
            stopped.extend(idle)
            os.kill(idle[0], signal.SIGSTOP)

    with Store(tmp_path) as store:
        prepared = prepare_study(long, device="cpu")
        assert run_study(prepared, store, processes.Processes(2), report=stop_the_idle_one)
    assert len(stopped) == 1
    multiprocessing.active_children()  # reaps those that have ended
    assert groups.liveness.started(stopped[0]) == 0, "it was left behind"


def test_one_that_lost_its_claim_writes_no_checkpoint(tmp_path):
    enter(tmp_path)
    with Store(tmp_path) as store, Store(tmp_path) as another:
        mine, theirs = Claims(store), Claims(another)
        names = {group.name for group in groups.group_states(store)}
        claim = mine.claim(names)
        training = GroupTraining(claim, Materials(), CPU)
        mine.begin(claim, training.entries())
        chunk = training.advance(0.0)
        store.db.execute("UPDATE claims SET beat = 0")
        assert theirs.claim(names) is not None
        with pytest.raises(ClaimLostError), pytest.warns(ResumeWarning, match="took it over"):
            mine.save(claim, chunk.records, chunk.states, 1.0)
        assert not list(Path(tmp_path, "checkpoints").glob("*"))
        assert store.records(RUN.key) == []


def advance_one_round(store, materials=None):
    claims = Claims(store)
    claim = claims.claim({group.name for group in groups.group_states(store)})
    training = GroupTraining(claim, materials or Materials(), CPU)
    claims.begin(claim, training.entries())
    chunk = training.advance(0.0)
    claims.save(claim, chunk.records, chunk.states, 1.0)
    claims.release(claim)


def test_a_group_that_resumes_with_another_trainer_says_so_and_keeps_its_rows(
    tmp_path, monkeypatch
):
    enter(tmp_path)
    with Store(tmp_path) as store:
        advance_one_round(store)
        rows, facts = store.records(RUN.key), store.facts(RUN.key)
        entries = GroupTraining.entries
        monkeypatch.setattr(
            GroupTraining,
            "entries",
            lambda self: [(c, f | {"trainer": "abacus"}, a) for c, f, a in entries(self)],
        )
        with pytest.warns(ResumeWarning, match="trainer: .*, then abacus"):
            advance_one_round(store)
        advance_one_round(store)
        assert store.records(RUN.key)[: len(rows)] == rows
        assert store.facts(RUN.key) == facts | {"trainer": f"{facts['trainer']}, then abacus"}


def test_a_group_without_its_checkpoint_begins_again_and_says_so(tmp_path):
    enter(tmp_path)
    with Store(tmp_path) as store:
        advance_one_round(store)
        (kept,) = (tmp_path / "checkpoints").iterdir()
        kept.write_bytes(kept.read_bytes()[:100])
        with pytest.warns(ResumeWarning, match="begins again"):
            advance_one_round(store)
        assert [record.round for record in store.records(RUN.key)] == [0, 1]
