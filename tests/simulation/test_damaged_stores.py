"""Stores that something happened to: one sentence, and nothing in them is changed."""

import shutil
import sqlite3
import subprocess
import sys
import threading

import pytest

from fedcohort.errors import DamagedStoreError, StoreError
from fedcohort.report.export import export
from fedcohort.report.summary import summarise
from fedcohort.simulation import RunConfig, Store, store_file
from fedcohort.simulation.execution.runner import prepare_study, run_study
from fedcohort.simulation.groups import part_states
from fedcohort.simulation.scores import Target
from fedcohort.simulation.study import study_of_runs

RUNS = [
    RunConfig(clients=10, cohort=2, samples_per_client=20, rounds=rounds, selector=selector)
    for selector in ("dp3s", "fedavg")
    for rounds in (3, 40)
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished study of several pages."""
    folder = tmp_path_factory.mktemp("whole")
    with Store(folder) as store:
        assert run_study(prepare_study(study_of_runs(RUNS, Target(0.9)), device="cpu"), store)
    return folder


def sql(*statements):
    def change(path):
        db = sqlite3.connect(path)
        for statement in statements:
            db.execute(statement)
        db.commit()
        db.close()

    return change


def cut(share):
    return lambda path: path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def overwrite(start, count, value):
    def change(path):
        content = bytearray(path.read_bytes())
        content[start : start + count] = bytes([value]) * count
        path.write_bytes(content)

    return change


def flip_every_page(path):
    content = bytearray(path.read_bytes())
    for place in range(4096 + 3, len(content), 4096):
        content[place] ^= 0xFF
    path.write_bytes(content)


def spoil_text(path):
    content = path.read_bytes()
    assert content.count(b'"clients": 10') > 0
    path.write_bytes(content.replace(b'"clients": 10', b'"clients": \xff\xfe'))


def spoil_schema(path):
    content = path.read_bytes()
    assert content.count(b"tableroundsrounds") == content.count(b"CREATE TABLE rounds") == 1
    content = content.replace(b"tableroundsrounds", b"table\x80oundsrounds")
    path.write_bytes(content.replace(b"CREATE TABLE rounds", b"CREATE TABLE (ounds"))


DAMAGE = {
    "a schema that is no text": spoil_schema,
    "nothing left": cut(0),
    "half left": cut(0.5),
    "a torn page": cut(0.9),
    "no header": overwrite(0, 100, 0),
    "zeros in the middle": overwrite(8192, 8192, 0),
    "flipped bytes": flip_every_page,
    "no SQLite at all": lambda path: path.write_bytes(b"round,accuracy\n" * 500),
    "another database": lambda path: (path.unlink(), sql("CREATE TABLE a (b)")(path)),
    "a table is missing": sql("DROP TABLE members"),
    "a column is missing": sql("ALTER TABLE rounds DROP COLUMN gemd"),
    "a later format": sql("PRAGMA user_version=99"),
}
DAMAGE_INSIDE = {
    "facts are no JSON": sql("UPDATE runs SET facts = '{not'"),
    "facts are a list": sql("UPDATE runs SET facts = '[1, 2]'"),
    "facts lack what they should say": sql("UPDATE runs SET facts = '{}'"),
    "a configuration is no JSON": sql("UPDATE runs SET config = 'x'"),
    "a configuration says nonsense": sql("UPDATE runs SET config = json_set(config, '$.lr', -1)"),
    "a cohort is no JSON": sql("UPDATE rounds SET cohort = '[1, 2'"),
    "a cohort of texts": sql("UPDATE rounds SET cohort = '[\"a\"]'"),
    "a client that is not there": sql("UPDATE rounds SET cohort = '[1, 999999999]'"),
    "a blob that is no archive": sql("UPDATE federations SET arrays = x'00'"),
    "an empty blob": sql("UPDATE federations SET arrays = x''"),
    "a text that is no text": spoil_text,
}


@pytest.fixture
def damaged(whole, tmp_path, request):
    folder = tmp_path / "damaged"
    shutil.copytree(whole, folder)
    request.param(folder / "results.sqlite")
    return folder


def named(table):
    return pytest.mark.parametrize("damaged", table.values(), ids=table, indirect=True)


@named(DAMAGE)
def test_a_damaged_file_is_refused_on_opening_and_left_alone(damaged):
    path = damaged / "results.sqlite"
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(StoreError) as refused:
            Store(damaged)
    assert path.read_bytes() == before
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def read_all(store, folder):
    summarise(store, store.targets())
    for config in store.configs():
        store.federation(config)
    part_states(store)
    export(store, folder / "tables")


def open_and_read_all(damaged, folder):
    with Store(damaged) as store:
        read_all(store, folder)


@named(DAMAGE_INSIDE)
def test_damage_inside_is_one_sentence_where_it_is_read(damaged, tmp_path):
    path = damaged / "results.sqlite"
    before = path.read_bytes()
    with Store(damaged) as store, pytest.raises(StoreError) as refused:
        read_all(store, tmp_path)
    assert path.read_bytes() == before
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


@named({name: DAMAGE[name] for name in ("nothing left", "flipped bytes", "a table is missing")})
@pytest.mark.parametrize("command", ["study status", "report", "run --rounds=1 --out"])
def test_commands_end_with_one_sentence(damaged, command):
    before = (damaged / "results.sqlite").read_bytes()
    done = subprocess.run(
        [sys.executable, "-m", "fedcohort", *command.split(), damaged],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: The results in")
    assert (damaged / "results.sqlite").read_bytes() == before


@named({name: DAMAGE[name] for name in ("zeros in the middle", "flipped bytes")})
def test_a_file_too_large_to_be_looked_through_is_noticed_while_it_is_read(
    damaged, tmp_path, monkeypatch
):
    monkeypatch.setattr(store_file, "_CHECKED_BYTES", 0)
    with pytest.raises(DamagedStoreError):
        open_and_read_all(damaged, tmp_path)


def test_a_file_that_is_gone_while_its_log_is_there_is_not_new(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "gone")
    (tmp_path / "gone" / "results.sqlite").rename(tmp_path / "gone" / "results.sqlite-wal")
    with pytest.raises(DamagedStoreError, match="is gone"):
        Store(tmp_path / "gone")


def test_a_store_that_many_make_at_once_is_one_store(tmp_path):
    failures = []

    def open_it(number):
        try:
            with Store(tmp_path / "new") as store:
                store.db.execute("INSERT INTO studies VALUES (?, '')", (str(number),))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=open_it, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with Store(tmp_path / "new") as store:
        assert store.db.execute("SELECT count(*) FROM studies").fetchone() == (8,)


def test_a_run_says_what_made_it(whole):
    with Store(whole) as store:
        facts = store.facts(RUNS[0].key)
    assert {"trainer", "device", "torch", "numpy", "fedcohort"} <= facts.keys()
