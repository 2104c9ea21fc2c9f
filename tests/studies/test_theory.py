import numpy as np
import pytest
from theory import explained_share, main


@pytest.fixture
def cohorts():
    rng = np.random.default_rng(0)
    share = np.full(60, 1 / 60)
    away = np.zeros((200, 60))
    for row in away:
        row[rng.choice(60, 6, replace=False)] = 1 / 6
    return rng, share, away - share


def test_errors_that_residuals_decide_are_explained(cohorts):
    rng, share, away = cohorts
    points = rng.normal(size=(60, 4))
    gradients = points @ rng.normal(size=(4, 100))
    assert explained_share(points, share, away, gradients @ gradients.T) > 0.95


def test_errors_that_have_nothing_to_do_with_residuals_are_not(cohorts):
    rng, share, away = cohorts
    points = rng.normal(size=(60, 20))
    gradients = rng.normal(size=(60, 100))
    # Twenty directions would explain a third of sixty clients that they were fitted to.
    assert explained_share(points, share, away, gradients @ gradients.T) < 0.1


def test_the_script_follows_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr("theory.ROUNDS", (0, 1, 2))
    folders = ["--csv", str(tmp_path), "-o", str(tmp_path)]
    main(["--dataset", "digits", "--model", "mlp", "--clients", "50", "--skew", "1", *folders])
    lines = (tmp_path / "theory-digits-mlp.csv").read_text().splitlines()
    head, first = (line.split(",") for line in lines[:2])
    row = dict(zip(head, first, strict=True))
    assert len(lines) == 4
    assert float(row["r2"]) > 0.5
    assert float(row["error_match"]) < 0.5 * float(row["error_fedavg"])
    assert (tmp_path / "theory-digits-mlp.png").exists()
