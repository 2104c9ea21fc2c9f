"""`fedcohort report` and `fedcohort study export`, as they are typed."""

import sys

import pytest
from running import run
from typer.testing import CliRunner

from fedcohort.cli import main
from fedcohort.cli.app import app
from fedcohort.simulation import RunConfig, Store


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs of which a study counted rounds to a test score for the first alone."""
    made = tmp_path_factory.mktemp("runs")
    with Store(made) as store:
        run([RunConfig(clients=10, cohort=3, rounds=1, seed=seed) for seed in (0, 1)], store)
        store.db.execute("DELETE FROM parts")
        store.db.execute(
            "INSERT INTO parts SELECT 's', 'p', 0, run, 0.5, 'test' FROM runs"
            " WHERE json_extract(config, '$.seed') = 0"
        )
    return made


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], {0: (0.5, "test")}),
        (["--target", "0.3"], {0: (0.3, "test"), 1: (0.3, "train")}),
        (["--target", "0.3", "--target-on", "train"], {0: (0.3, "train"), 1: (0.3, "train")}),
    ],
)
def test_a_target_is_on_the_data_that_the_study_named(folder, monkeypatch, options, found):
    written = []
    monkeypatch.setattr("fedcohort.report.html.write_report", lambda *given: written.append(given))
    done = CliRunner().invoke(app, ["report", str(folder), *options])
    assert done.exit_code == 0, done.output
    ((_, _, targets),) = written
    with Store.existing(folder) as store:
        seeds = {config.key: config.seed for config in store.configs()}
    assert {seeds[key]: (target.score, target.on) for key, target in targets.items()} == found


def test_an_ending_that_cannot_be_written_is_refused(folder, tmp_path, monkeypatch, capsys):
    to = tmp_path / "rounds.xlsx"
    monkeypatch.setattr(sys, "argv", ["fedcohort", "study", "export", str(folder), "--to", str(to)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "ends in '.xlsx': write to FILE.csv, FILE.parquet" in capsys.readouterr().err
    assert not to.exists()
