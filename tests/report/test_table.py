import dataclasses
import io

import pytest
from rich.console import Console
from running import run

from fedcohort.report import summarise
from fedcohort.report.table import ResultsTable
from fedcohort.simulation import RunConfig, Store
from fedcohort.simulation.scores import Target


def printed(store, width, target=0.3):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(ResultsTable(summarise(store, target)))
    return console.file.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_every_width_shows_selectors_and_rounds_whole(store, width):
    text = printed(store, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for word in ("dp3s", "fedavg", "to 30 %", "Digits, ξ = 1", "3 seeds"):
        assert word in text


def test_wider_terminals_show_more(store):
    assert "95 %" not in printed(store, 30)
    assert "variation" not in printed(store, 60)
    assert "variation" in printed(store, 80)
    assert "train accuracy" in printed(store, 120)


def test_what_headings_mean_is_said_once_and_of_those_that_are_shown(varied_store):
    wide, narrow = (" ".join(printed(varied_store, width).split()) for width in (120, 30))
    assert wide.count("GEMD: how far a cohort's label mixture is from everyone's") == 1
    assert wide.count("interval: 95 %") == 1
    assert "interval: 95 %" not in narrow


@pytest.fixture
def diverged(store, copy_runs):
    """Seed 2 of dp3s has no scores after round 1."""
    cut = copy_runs(store)
    (run,) = [c.key for c in cut.configs() if (c.selector, c.seed) == ("dp3s", 2)]
    cut.db.execute(
        "UPDATE rounds SET train_loss = NULL, train_score = NULL, test_score = NULL"
        " WHERE round > 1 AND run = ?",
        (run,),
    )
    return cut


@pytest.mark.parametrize("width", [60, 120])
def test_runs_that_diverged_are_counted_and_the_score_stays(store, diverged, copy_runs, width):
    said = "1 of 6 runs diverged, the first from round 2 on: lower the learning rate."
    text = printed(diverged, width)
    assert said in " ".join(text.split())
    assert "train" in text
    alone = printed(copy_runs(diverged, lambda c: c if c.selector == "dp3s" else None), width)
    assert "1 of 3 runs diverged" in alone
    assert "train" in alone.split("\n")[1]
    assert "diverged" not in printed(store, width)


def test_where_nobody_arrives_nobody_is_first_and_it_is_said(store):
    def styled(target):
        console = Console(width=120, file=io.StringIO(), force_terminal=True, _environ={})
        console.print(ResultsTable(summarise(store, target)))
        return console.file.getvalue()

    green = "\x1b[1;32m"
    assert green in styled(0.01)
    assert green not in styled(0.999)
    assert "no mean training curve reached the target" in printed(store, 120, 0.999)
    assert "to 99.9 %" in printed(store, 120, 0.999)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_score_that_the_target_is_of_stays_in_narrow_terminals(store, width):
    (heading,) = (line for line in printed(store, 40).splitlines() if "selector" in line)
    assert ("train" in heading, "test" in heading) == (True, False)
    text = printed(store, width, Target(0.3, "test"))
    (heading,) = (line for line in text.splitlines() if "selector" in line)
    assert " test " in heading.replace("30 % test", "") + " "


def test_the_numbers_are_those_of_the_summary(store):
    text = printed(store, 120)
    for summary in summarise(store, 0.3):
        (row,) = [line for line in text.splitlines() if line.startswith(summary.label)]
        cells = row.split()
        assert f"{summary.gemd:.3f}" in cells
        assert f"{100 * summary.train.mean[-1]:.1f}" in cells
        reached = summary.rounds_to_target
        assert (str(reached) if reached is not None else ">4") in cells


def test_an_unreached_target_says_how_long_it_was_waited_for(store):
    assert printed(store, 80, target=0.999).count(">4") >= 2


def test_without_a_target_there_is_nothing_about_one(store):
    text = printed(store, 120, target=None)
    assert "rounds to" not in text
    assert "GEMD" in text


def test_what_a_target_is_of_is_said(store):
    trained, tested = printed(store, 120), printed(store, 120, target=Target(0.3, "test"))
    assert "rounds to 30 %  " in trained
    assert "mean training curve" in trained
    assert "rounds to 30 % test" in tested
    assert "mean test curve" in tested


SLOW = {
    "availability": "0.7",
    "dropout": 0.1,
    "speed_spread": 0.5,
    "deadline": 2.0,
    "over_selection": 1.5,
}


@pytest.mark.parametrize("name", SLOW)
def test_time_is_shown_where_clients_are_slow_or_away(store, copy_runs, name):
    slow = copy_runs(store, change=lambda c: dataclasses.replace(c, **{name: SLOW[name]}))
    text = printed(slow, 140, 0.1)
    assert "time to 10 %" in text
    assert "time is in passes of a median client" in " ".join(text.split())
    for summary in summarise(slow, 0.1):
        (row,) = [line for line in text.splitlines() if line.startswith(summary.label)]
        assert f" {summary.time_to_target:.1f} " in row
    assert "time" not in printed(slow, 40, 0.1)
    assert "time" not in printed(store, 140, 0.1)
    assert "time" not in printed(slow, 140, 0.999)


def test_each_skew_is_a_section(varied_store):
    text = printed(varied_store, 120)
    assert "Digits, ξ = 1\n" in text.replace(" \n", "\n") or "Digits, ξ = 1 " in text
    assert "Digits, ξ = H" in text


@pytest.mark.parametrize(("cohort", "said"), [(4, False), (5, True)])
def test_updates_of_clients_in_reserve_are_not_left_out(store, copy_runs, cohort, said):
    changed = copy_runs(store, change=lambda c: dataclasses.replace(c, cohort=cohort))
    changed.db.execute("UPDATE rounds SET left_out = json_array(cohort ->> 0) WHERE round > 0")
    assert ("24 updates left out" in " ".join(printed(changed, 120).split())) == said


def test_no_rounds_is_said(store, copy_runs):
    assert "No round is finished" in printed(copy_runs(store, keep=lambda *_: False), 80)


def test_what_profiles_promise_is_said_below(store):
    summaries = [
        dataclasses.replace(s, config=dataclasses.replace(s.config, profile_epsilon=8.0))
        for s in summarise(store, 0.3)
    ]
    console = Console(width=160, file=io.StringIO(), color_system=None)
    console.print(ResultsTable(summaries))
    assert "profiles are (ε = 8, δ = 1e-05)-private for each sample" in console.file.getvalue()
    assert "private" not in printed(store, 160)


def test_how_accuracy_was_measured_is_said(store, tmp_path):
    assert "evaluated" not in printed(store, 120)
    sparse = RunConfig(clients=20, cohort=5, rounds=4, eval_every=2, eval_samples=100)
    with Store(tmp_path) as other:
        run([sparse], other)
        text = " ".join(printed(other, 120).split())
    assert "evaluated every 2 rounds" in text
    assert "training accuracy on 100 samples until the last round" in text
