import dataclasses
import os
import sqlite3
import time

import numpy as np
import pytest

from fedcohort.simulation import RoundRecord, RunConfig, Store
from fedcohort.simulation.ledger import ClaimLostError, Ledger, Pack
from fedcohort.simulation.study import Part, Study, study_of_runs

RUNS = [RunConfig(seed=seed, rounds=3) for seed in range(4)]
FEDERATION = {"label_counts": np.ones((2, 2)), "profiles": np.ones((2, 5))}


def in_pairs(configs):
    return [Pack(tuple(configs[i : i + 2]), 1.0) for i in range(0, len(configs), 2)]


def state(round_):
    return [(round_, {"model.w": np.full(3, round_ + place)}) for place in range(2)]


def records(claim, *rounds):
    return {c.key: [RoundRecord(round=r) for r in rounds] for c in claim.configs}


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path) as made:
        yield made


@pytest.fixture
def ledger(store):
    made = Ledger(store)
    made.enter(study_of_runs(RUNS), in_pairs)
    return made


def everything(ledger):
    return {group.name for group in ledger.groups()}


def test_runs_keep_the_group_they_were_packed_into(store, ledger):
    before = ledger.groups()
    again = Ledger(store).enter(study_of_runs(RUNS[::-1]), in_pairs)
    assert (again.added, again.known) == (0, 4)
    assert ledger.groups() == before
    more = [*RUNS, RunConfig(seed=9, rounds=3)]
    assert Ledger(store).enter(study_of_runs(more), in_pairs).added == 1
    assert [group.runs for group in ledger.groups()] == [2, 2, 1]
    assert ledger.groups()[:2] == before


def test_a_study_that_changed_adds_runs_and_keeps_those_it_does_not_name(store):
    ledger = Ledger(store)
    first = Study("s", (Part("a", tuple(RUNS[:3]), 0.9),), "first")
    second = Study("s", (Part("a", tuple(RUNS[2:]), 0.8),), "second")
    assert not ledger.enter(first, in_pairs).changed
    entered = ledger.enter(second, in_pairs)
    assert dataclasses.astuple(entered) == (1, 1, 2, True)
    named, unnamed = ledger.parts()
    assert (named.part, named.runs, named.target) == ("a", 2, 0.8)
    assert (unnamed.part, unnamed.runs) == ("", 2)
    assert store.targets() == {config.key: 0.8 for config in RUNS[2:]}


def test_a_claimed_group_is_not_given_again_until_it_is_released(store, ledger):
    other = Ledger(store)
    first, second = ledger.claim(everything(ledger)), other.claim(everything(ledger))
    assert first.configs == tuple(RUNS[:2])
    assert second.configs == tuple(RUNS[2:])
    assert ledger.claim(everything(ledger)) is None
    assert [g.holder for g in ledger.groups()] == [f"{os.uname().nodename}:{os.getpid()}"] * 2
    ledger.release(first)
    assert other.claim(everything(ledger)).group == first.group


def test_a_group_goes_on_from_what_was_saved(store, ledger):
    claim = ledger.claim(everything(ledger))
    assert claim.states == []
    ledger.begin(claim, [(config, {}, FEDERATION) for config in claim.configs])
    ledger.save(claim, records(claim, 0, 1), state(1), 0.5)
    ledger.save(claim, records(claim, 2), state(2), 0.5)
    ledger.release(claim)
    again = Ledger(store).claim(everything(ledger))
    assert [(r, s["model.w"].tolist()) for r, s in again.states] == [(2, [2] * 3), (2, [3] * 3)]
    assert len(list((store.folder / "checkpoints").iterdir())) == 1
    group = ledger.groups()[0]
    assert (group.round, group.seconds) == (2, 1.0)


def test_a_finished_group_keeps_no_checkpoint_and_no_claim(store, ledger):
    claim = ledger.claim(everything(ledger))
    ledger.begin(claim, [(config, {}, FEDERATION) for config in claim.configs])
    ledger.save(claim, records(claim, 0, 1), state(1), 0.5)
    ledger.save(claim, records(claim, 2, 3), [], 0.5)
    assert list((store.folder / "checkpoints").iterdir()) == []
    assert ledger.groups()[0].done
    assert not ledger.groups()[0].holder
    assert all(store.is_done(config.key) for config in claim.configs)
    assert ledger.claim({claim.group}) is None


def test_without_its_checkpoint_a_group_begins_again(store, ledger):
    claim = ledger.claim(everything(ledger))
    ledger.begin(claim, [(config, {}, FEDERATION) for config in claim.configs])
    ledger.save(claim, records(claim, 0, 1), state(1), 0.5)
    ledger.release(claim)
    (path,) = (store.folder / "checkpoints").iterdir()
    path.write_bytes(path.read_bytes()[:100])
    again = ledger.claim(everything(ledger))
    assert again.states == []
    assert store.records(RUNS[0].key) == []


def test_a_claim_of_a_dead_process_is_taken_over(store, ledger):
    claim = ledger.claim(everything(ledger))
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    store.db.execute("UPDATE claims SET pid = ?", (child,))
    assert not Ledger(store).groups()[0].holder
    assert Ledger(store).claim({claim.group}).group == claim.group


def test_a_number_that_another_process_got_is_not_the_holder(store, ledger):
    claim = ledger.claim(everything(ledger))
    store.db.execute("UPDATE claims SET started = started - 1")
    assert Ledger(store).claim({claim.group}).group == claim.group


@pytest.mark.parametrize("silent_for", [-3600, 0, 3600])
def test_a_claim_of_another_machine_is_taken_over_when_it_is_silent(store, ledger, silent_for):
    claim = ledger.claim(everything(ledger))
    store.db.execute("UPDATE claims SET host = 'far', beat = ?", (time.time() - silent_for,))
    taken = Ledger(store).claim({claim.group})
    assert (taken is None) == (silent_for == 0)


def test_one_who_lost_its_claim_cannot_write(store, ledger):
    claim = ledger.claim(everything(ledger))
    ledger.begin(claim, [(config, {}, FEDERATION) for config in claim.configs])
    store.db.execute("UPDATE claims SET started = started - 1")
    other = Ledger(store)
    taken = other.claim({claim.group})
    with pytest.raises(ClaimLostError):
        ledger.save(claim, records(claim, 0, 1), state(1), 0.5)
    assert store.records(RUNS[0].key) == []
    ledger.release(claim)
    other.save(taken, records(taken, 0, 1), state(1), 0.5)
    assert store.records(RUNS[0].key)[-1].round == 1


def test_profiles_are_kept_of_the_first_seed(store, ledger):
    claim = ledger.claim(everything(ledger))
    ledger.begin(claim, [(config, {}, FEDERATION) for config in claim.configs])
    assert "profiles" in store.federation(RUNS[0])
    assert "profiles" not in store.federation(RUNS[1])


def test_the_heart_says_how_far_a_group_is(store, ledger, monkeypatch):
    monkeypatch.setattr("fedcohort.simulation.ledger._SECONDS_BETWEEN_BEATS", 0.001)
    claim = ledger.claim(everything(ledger))
    before = store.db.execute("SELECT beat FROM claims").fetchone()[0]
    ledger.reached(claim, 2)
    with ledger.heartbeat():
        while Ledger(store).groups()[0].live != 2:
            os.sched_yield()
    assert store.db.execute("SELECT beat FROM claims").fetchone()[0] > before
    assert Ledger(store).groups()[0].round == 0


def test_unfinished_runs_of_the_first_format_begin_again(tmp_path):
    with Store(tmp_path) as store:
        store.begin(RUNS[0], {}, FEDERATION)
        store.save({RUNS[0].key: [RoundRecord(round=0), RoundRecord(round=1)]})
        store.begin(RUNS[1], {}, FEDERATION)
        store.save({RUNS[1].key: [RoundRecord(round=3)]}, done=True)
    with sqlite3.connect(tmp_path / "results.sqlite") as db:
        for table in ("studies", "parts", "groups", "members", "claims"):
            db.execute(f"DROP TABLE {table}")
        db.execute("ALTER TABLE rounds DROP COLUMN elapsed")
        db.execute("PRAGMA user_version=1")
    db.close()
    with Store(tmp_path) as store:
        ledger = Ledger(store)
        assert ledger.enter(study_of_runs(RUNS[:2]), in_pairs).added == 1
        claim = ledger.claim(everything(ledger))
        assert claim.configs == (RUNS[0],)
        assert store.records(RUNS[0].key) == []
        assert store.records(RUNS[1].key) == [RoundRecord(round=3)]
