import csv
import dataclasses
import subprocess
import sys

import pytest

from fedcohort.errors import InvalidInputError, MissingPackageError, StoreError
from fedcohort.report import summarise
from fedcohort.report.export import export, median_rounds
from fedcohort.simulation.config import SETTINGS
from fedcohort.simulation.scores import Target


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_folder_gets_all_tables(store, tmp_path):
    names = [path.name for path in export(store, tmp_path / "tables")]
    assert names == ["rounds.csv", "runs.csv", "summary.csv", "clients.csv", "classes.csv"]
    configs = store.configs()
    rounds = rows(tmp_path / "tables" / "rounds.csv")
    assert len(rounds) == sum(len(store.records(config.key)) for config in configs)
    record = store.records(configs[0].key)[1]
    assert float(rounds[1]["train_accuracy"]) == record.train_score
    assert rounds[1]["cohort"] == " ".join(map(str, record.cohort))
    assert [(row["run"], row["selector"], row["seed"]) for row in rounds] == [
        (c.key, c.selector, str(c.seed)) for c in configs for _ in store.records(c.key)
    ]
    runs = rows(tmp_path / "tables" / "runs.csv")
    assert [run["run"] for run in runs] == [config.key for config in configs]
    assert {run["done"] for run in runs} == {"True"}
    first = store.final_scores(configs[0].key, "class")[0]
    classes = rows(tmp_path / "tables" / "classes.csv")
    assert float(classes[0]["score"]) == first.score
    assert (classes[0]["run"], classes[0]["class"]) == (configs[0].key, str(first.number))


def test_an_ending_that_is_not_known_is_refused_unless_it_is_of_a_folder(store, tmp_path):
    with pytest.raises(InvalidInputError, match=r"ends in '.tsv': write to FILE.csv, FILE.parquet"):
        export(store, tmp_path / "rounds.tsv")
    assert not list(tmp_path.iterdir())
    (tmp_path / "v1.0").mkdir()
    assert len(export(store, tmp_path / "v1.0")) == 5


def test_the_summary_has_the_numbers_of_the_report(store, tmp_path):
    store.db.execute("INSERT INTO parts SELECT 's', 'p', 0, run, 0.3, 'test' FROM runs")
    try:
        (path,) = export(store, tmp_path / "s.csv", "summary")
    finally:
        store.db.execute("DELETE FROM parts WHERE study = 's'")
    for row, summary in zip(rows(path), summarise(store, Target(0.3, "test")), strict=True):
        assert row["selector"] == summary.selector
        assert row["seeds"] == "3"
        assert (row["target"], row["target_on"]) == ("0.3", "test")
        reached = summary.rounds_to_target
        assert row["rounds_to_target"] == ("" if reached is None else str(reached))
        assert float(row["gemd"]) == pytest.approx(summary.gemd, abs=1e-5)
        got_there = [r for r in summary.rounds_to_target_by_seed if r is not None]
        assert int(row["seeds_at_target"]) == len(got_there)
        if len(got_there) < 2:
            assert row["median_rounds_to_target"] == "", "the middle seed never got there"


@pytest.mark.parametrize(
    ("by_seed", "median"),
    [
        ((38, None), None),
        ((38, 40), 39),
        ((30, 38, None), 38),
        ((30, None, None), None),
        ((30, 38, None, None), None),
        ((30, 38, 39, None), 38.5),
        ((40,), 40),
        ((), None),
    ],
)
def test_half_of_a_median_is_not_invented(store, by_seed, median):
    """Of 40 rounds; two seeds in the middle have a median where both got there."""
    summary = dataclasses.replace(
        summarise(store, None)[0], rounds=40, rounds_to_target_by_seed=by_seed
    )
    assert median_rounds(summary) == median


def test_parquet_has_the_same_rounds(store, tmp_path):
    from pyarrow import parquet

    (path,) = export(store, tmp_path / "rounds.parquet")
    table = parquet.read_table(path).to_pylist()
    records = store.records(store.configs()[0].key)
    assert [row["train_loss"] for row in table[: len(records)]] == [r.train_loss for r in records]
    assert table[1]["cohort"] == list(records[1].cohort)
    assert len(table) == sum(len(store.records(c.key)) for c in store.configs())


def test_without_pyarrow_it_says_what_to_install(store, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match=r"fedcohort\[parquet\]"):
        export(store, tmp_path / "rounds.parquet")
    assert list(tmp_path.iterdir()) == []


def test_csv_needs_no_plotting_package(store, tmp_path):
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['matplotlib', 'plotly', 'jinja2']));"
        "from fedcohort.cli import main; main()"
    )
    words = ["study", "export", store.folder, "--to", tmp_path / "bare"]
    subprocess.run([sys.executable, "-c", code, *words], check=True, timeout=60)
    for path in export(store, tmp_path / "here"):
        assert (tmp_path / "bare" / path.name).read_bytes() == path.read_bytes()


def test_an_empty_store_gives_empty_tables(store, copy_runs, tmp_path):
    empty = copy_runs(store, change=lambda _: None)
    tables = {path.stem: path.read_text() for path in export(empty, tmp_path)}
    assert [tables[name] for name in ("rounds", "runs", "summary")] == [""] * 3
    # Finished runs of tasks without classes have no rows of these either.
    for path in export(store, tmp_path / "filled"):
        if path.stem in ("clients", "classes"):
            assert tables[path.stem] == path.read_text().splitlines(keepends=True)[0]


def test_a_file_for_a_table_without_rows_is_not_written(store, copy_runs, tmp_path):
    empty = copy_runs(store, change=lambda _: None)
    for name in ("rounds.csv", "rounds.parquet"):
        with pytest.raises(StoreError, match="nothing for the table 'clients': finish a run"):
            export(empty, tmp_path / name, "clients")
        assert not (tmp_path / name).exists()


def test_data_with_clients_of_their_own_show_those(store, copy_runs, tmp_path):
    # Versions that ignored the skew and the clients wrote them down.
    changed = copy_runs(
        store, change=lambda c: dataclasses.replace(c, dataset="my.npz", clients=100, skew="1")
    )
    changed.db.execute("UPDATE runs SET config = json_remove(config, '$.content')")
    export(changed, tmp_path)
    for table in ("runs.csv", "summary.csv"):
        shown = {(row["clients"], row["skew"]) for row in rows(tmp_path / table)}
        assert shown == {("20", "natural")}
    assert {summary.skew for summary in summarise(changed, None)} == {"natural"}


def test_the_summary_has_a_column_for_every_setting(store, tmp_path):
    (path,) = export(store, tmp_path / "s.csv", "summary")
    assert SETTINGS.keys() - {"seed"} <= rows(path)[0].keys()
