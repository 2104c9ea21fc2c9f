import os
import sqlite3

import numpy as np
import pytest

from fedcohort.errors import StoreError, UnwritableFileError
from fedcohort.simulation import RoundRecord, RunConfig, Store

RECORD = RoundRecord(
    round=1,
    train_score=0.5,
    train_loss=1.25,
    gemd=0.1,
    cohort=(3, 1),
    left_out=(1,),
    bytes_down=7,
    bytes_up=8,
    seconds=0.5,
    selection_seconds=0.25,
)
FEDERATION = {"label_counts": np.arange(6).reshape(2, 3)}


@pytest.fixture
def config():
    return RunConfig(seed=4)


def test_what_is_saved_is_read_back(tmp_path, config):
    with Store(tmp_path) as store:
        store.begin(config, {"device": "CPU"}, FEDERATION)
        store.save({config.key: [RECORD]})
    with Store.existing(tmp_path) as store:
        assert store.configs() == [config]
        assert store.records(config.key) == [RECORD]
        assert store.facts(config.key) == {"device": "CPU"}
        assert store.federation(config)["label_counts"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert not store.is_done(config.key)
        store.save({config.key: []}, done=True)
        assert store.is_done(config.key)


def test_a_round_written_again_replaces_itself(tmp_path, config):
    with Store(tmp_path) as store:
        store.begin(config, {}, FEDERATION)
        for _ in range(2):
            store.save({config.key: [RECORD]})
        assert store.records(config.key) == [RECORD]


def test_a_save_that_fails_leaves_nothing_half_written(tmp_path, config):
    with Store(tmp_path) as store:
        store.begin(config, {}, FEDERATION)
        broken = RoundRecord(round=2, cohort=None)
        with pytest.raises(sqlite3.IntegrityError):
            store.save({config.key: [RECORD, broken]})
        assert store.records(config.key) == []


def test_what_comes_later_completes_a_federation(tmp_path, config):
    profiles = np.ones((2, 4), np.float32)
    with Store(tmp_path) as store:
        store.begin(config, {}, FEDERATION)
        store.begin(config, {}, FEDERATION | {"profiles": profiles})
        store.begin(config, {}, FEDERATION)
        store.begin(config, {}, FEDERATION | {"client_names": np.array(["a", "b"])})
        known = store.federation(config)
        assert known["profiles"].shape == (2, 4)
        assert known["client_names"].tolist() == ["a", "b"]


def test_folders_that_cannot_be_used_are_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="file"):
        Store(tmp_path / "file")
    with pytest.raises(StoreError, match="no results in"):
        Store.existing(tmp_path / "nothing")


def test_a_store_that_cannot_be_written_to_is_read(tmp_path, config, monkeypatch):
    with Store(tmp_path) as store:
        store.begin(config, {}, FEDERATION)
    there = sorted(tmp_path.iterdir())
    # Root may write everywhere.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with Store.existing(tmp_path) as store:
        assert store.configs() == [config]
        assert sorted(tmp_path.iterdir()) == there
        with pytest.raises(UnwritableFileError, match="cannot be written"):
            store.begin(config, {}, FEDERATION)
    store.path.with_name(f"{store.path.name}-wal").touch()
    with pytest.raises(
        StoreError, match="must be brought up to date and cannot be written to: copy"
    ):
        Store.existing(tmp_path)


def test_other_files_and_formats_are_refused(tmp_path):
    (tmp_path / "results.sqlite").write_bytes(b"this is not a database at all" * 40)
    with pytest.raises(StoreError, match="cannot be used"):
        Store(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    db = sqlite3.connect(other / "results.sqlite")
    db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(StoreError, match="another version"):
        Store(other)
