import os
import time

import numpy as np
import pytest

from fedcohort.simulation import RoundRecord, RunConfig
from fedcohort.simulation.claims import ClaimLostError, Claims
from fedcohort.simulation.groups import group_states, groups_of
from fedcohort.simulation.packing import Pack
from fedcohort.simulation.planning import enter_study
from fedcohort.simulation.study import study_of_runs

RUNS = [RunConfig(seed=seed, rounds=3) for seed in range(4)]
FEDERATION = {"label_counts": np.ones((2, 2)), "profiles": np.ones((2, 5))}


def in_pairs(configs):
    return [Pack(tuple(configs[i : i + 2]), 1.0) for i in range(0, len(configs), 2)]


def state(round_):
    return [(round_, {"model.w": np.full(3, round_ + place)}) for place in range(2)]


def records(claim, *rounds):
    return {c.key: [RoundRecord(round=r) for r in rounds] for c in claim.configs}


@pytest.fixture
def claims(store):
    enter_study(store, study_of_runs(RUNS), in_pairs)
    return Claims(store)


def everything(store):
    return groups_of(store, RUNS)


def test_a_claimed_group_is_not_given_again_until_it_is_released(store, claims):
    other = Claims(store)
    first, second = claims.claim(everything(store)), other.claim(everything(store))
    assert first.configs == tuple(RUNS[:2])
    assert second.configs == tuple(RUNS[2:])
    assert claims.claim(everything(store)) is None
    assert [g.holder for g in group_states(store)] == [f"{os.uname().nodename}:{os.getpid()}"] * 2
    claims.release(first)
    assert other.claim(everything(store)).group == first.group


def test_a_group_resumes_from_what_was_saved(store, claims):
    claim = claims.claim(everything(store))
    assert claim.states == []
    claims.begin(claim, [(config, {}, FEDERATION) for config in claim.configs])
    claims.save(claim, records(claim, 0, 1), state(1), 0.5)
    claims.save(claim, records(claim, 2), state(2), 0.5)
    claims.release(claim)
    again = Claims(store).claim(everything(store))
    assert [(r, s["model.w"].tolist()) for r, s in again.states] == [(2, [2] * 3), (2, [3] * 3)]
    assert len(list((store.folder / "checkpoints").iterdir())) == 1
    group = group_states(store)[0]
    assert (group.round, group.seconds) == (2, 1.0)


def test_a_finished_group_keeps_no_checkpoint_and_no_claim(store, claims):
    claim = claims.claim(everything(store))
    claims.begin(claim, [(config, {}, FEDERATION) for config in claim.configs])
    claims.save(claim, records(claim, 0, 1), state(1), 0.5)
    claims.save(claim, records(claim, 2, 3), [], 0.5)
    assert list((store.folder / "checkpoints").iterdir()) == []
    assert group_states(store)[0].done
    assert not group_states(store)[0].holder
    assert all(store.is_done(config.key) for config in claim.configs)
    assert claims.claim({claim.group}) is None


def test_without_its_checkpoint_a_group_begins_again(store, claims):
    claim = claims.claim(everything(store))
    claims.begin(claim, [(config, {}, FEDERATION) for config in claim.configs])
    claims.save(claim, records(claim, 0, 1), state(1), 0.5)
    claims.release(claim)
    (path,) = (store.folder / "checkpoints").iterdir()
    path.write_bytes(path.read_bytes()[:100])
    again = claims.claim(everything(store))
    assert again.states == []
    assert store.records(RUNS[0].key) == []


def test_finished_runs_from_elsewhere_stay_whatever_becomes_of_their_group(store, claims):
    store.begin(RUNS[0], {}, FEDERATION)
    store.save({RUNS[0].key: [RoundRecord(round=r) for r in range(4)]}, done=True)
    claim = claims.claim(everything(store))
    assert [record.round for record in store.records(RUNS[0].key)] == [0, 1, 2, 3]
    claims.begin(claim, [(config, {}, FEDERATION) for config in claim.configs])
    claims.save(claim, records(claim, 0, 1), state(1), 0.5)
    claims.release(claim)
    (path,) = (store.folder / "checkpoints").iterdir()
    path.unlink()
    claims.claim(everything(store))
    assert [record.round for record in store.records(RUNS[0].key)] == [0, 1, 2, 3]
    assert store.records(RUNS[1].key) == []


def test_who_is_slow_to_read_a_checkpoint_beats_and_leaves_the_group_to_who_took_it_over(
    store, claims, monkeypatch
):
    claim = claims.claim(everything(store))
    claims.begin(claim, [(config, {}, FEDERATION) for config in claim.configs])
    claims.save(claim, records(claim, 0, 1), state(1), 0.5)
    claims.release(claim)
    seen = []

    def slow(*_):
        seen.append(claims._live.copy())
        store.db.execute("UPDATE claims SET holder = 'another'")

    monkeypatch.setattr("fedcohort.simulation.claims.read_checkpoint", slow)
    assert claims.claim({claim.group}) is None
    assert seen == [{claim.group: 1}]
    assert store.db.execute("SELECT holder FROM claims").fetchall() == [("another",)]
    assert len(store.records(RUNS[0].key)) == 2


def test_a_claim_of_a_dead_process_is_taken_over(store, claims):
    claim = claims.claim(everything(store))
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    store.db.execute("UPDATE claims SET pid = ?", (child,))
    assert not group_states(store)[0].holder
    assert Claims(store).claim({claim.group}).group == claim.group


def test_a_number_that_another_process_got_is_not_the_holder(store, claims):
    claim = claims.claim(everything(store))
    store.db.execute("UPDATE claims SET started = started - 1")
    assert Claims(store).claim({claim.group}).group == claim.group


@pytest.mark.parametrize("silent_for", [-3600, 0, 3600])
def test_a_claim_of_another_machine_is_taken_over_when_it_is_silent(store, claims, silent_for):
    claim = claims.claim(everything(store))
    store.db.execute("UPDATE claims SET host = 'far', beat = ?", (time.time() - silent_for,))
    taken = Claims(store).claim({claim.group})
    assert (taken is None) == (silent_for == 0)


def test_one_who_lost_its_claim_cannot_write(store, claims):
    claim = claims.claim(everything(store))
    claims.begin(claim, [(config, {}, FEDERATION) for config in claim.configs])
    store.db.execute("UPDATE claims SET started = started - 1")
    other = Claims(store)
    taken = other.claim({claim.group})
    with pytest.raises(ClaimLostError):
        claims.save(claim, records(claim, 0, 1), state(1), 0.5)
    assert store.records(RUNS[0].key) == []
    claims.release(claim)
    other.save(taken, records(taken, 0, 1), state(1), 0.5)
    assert store.records(RUNS[0].key)[-1].round == 1


def test_profiles_are_kept_of_the_first_seed(store, claims):
    claim = claims.claim(everything(store))
    claims.begin(claim, [(config, {}, FEDERATION) for config in claim.configs])
    assert "profiles" in store.federation(RUNS[0])
    assert "profiles" not in store.federation(RUNS[1])


def test_the_heart_says_how_far_a_group_is(store, claims, monkeypatch):
    monkeypatch.setattr("fedcohort.simulation.claims._SECONDS_BETWEEN_BEATS", 0.001)
    claim = claims.claim(everything(store))
    before = store.db.execute("SELECT beat FROM claims").fetchone()[0]
    claims.reached(claim, 2)
    with claims.heartbeat():
        while group_states(store)[0].live != 2:
            os.sched_yield()
    assert store.db.execute("SELECT beat FROM claims").fetchone()[0] > before
    assert group_states(store)[0].round == 0
