"""Long work says how far it is, also where nothing can move on the screen."""

import io

import pytest
from rich.console import Console

from fedcohort.cli import data
from fedcohort.cli.run import do_study
from fedcohort.federation import load_dataset
from fedcohort.report import live
from fedcohort.simulation import RunConfig, materials
from fedcohort.simulation.progress import Progress
from fedcohort.simulation.study import study_of_runs


@pytest.fixture
def log():
    return Console(file=io.StringIO(), width=200)


def test_a_log_gets_lines(log, monkeypatch):
    monkeypatch.setattr(live, "SECONDS_BETWEEN_LINES", 0.0)
    with live.live_progress(log) as show:
        show(Progress(done=1200, total=4800, note="match", seconds_left=90.0))
    assert log.file.getvalue().startswith("match: 1,200 of 4,800 rounds, ")


def test_lines_are_far_apart(log, monkeypatch):
    clock = iter([0.0, 29.0, 31.0, 31.0, 60.0, 62.0, 62.0])
    monkeypatch.setattr(live.time, "monotonic", lambda: next(clock))
    say = live.now_and_then(log)
    for line in ("early", "first", "soon", "second"):
        say(line)
    assert log.file.getvalue().split() == ["first", "second"]


def test_a_screen_gets_a_bar_and_no_lines(monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(live, "SECONDS_BETWEEN_LINES", 0.0)
    with live.live_progress(screen) as show:
        show(Progress(done=1200, total=4800, note="match", seconds_left=90.0))
    assert "of 4,800 rounds" not in screen.file.getvalue()


@pytest.mark.parametrize(("width", "shown"), [(50, " 25%"), (100, "1200/4800")])
def test_a_bar_says_how_far_it_is_on_screens_of_any_width(width, shown):
    screen = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    with live.live_progress(screen) as show:
        show(Progress(done=1200, total=4800, note="digits", seconds_left=7200.0))
    assert shown in screen.file.getvalue()


@pytest.fixture
def arriving(monkeypatch, tmp_path):
    """A data set of which a part arrives, then another."""

    def arrive(name, progress, **_):
        progress("train.gz", 5_000_000, 10_000_000)
        progress("test.gz", 2_000_000, None)
        return tmp_path / name

    monkeypatch.setattr(live, "SECONDS_BETWEEN_LINES", 0.0)
    return arrive


def test_a_download_says_how_much_is_there(log, monkeypatch, arriving):
    monkeypatch.setattr(data, "fetch", arriving)
    monkeypatch.setattr(data, "Console", lambda **_: log)
    data.fetch_with_progress("mnist")
    assert log.file.getvalue().splitlines() == ["train.gz: 5 of 10 MB", "test.gz: 2 MB"]


def test_so_does_a_run_whose_data_are_downloaded(log, monkeypatch, tmp_path, arriving):
    digits = load_dataset("digits")

    def load(name, *, task, progress):
        arriving(name, progress, task=task)
        return digits

    monkeypatch.setattr(materials, "load_dataset", load)
    study = study_of_runs([RunConfig(rounds=1)])
    with do_study(study, tmp_path / "out", log, device="cpu"):
        pass
    assert log.file.getvalue().splitlines()[:2] == ["train.gz: 5 of 10 MB", "test.gz: 2 MB"]
