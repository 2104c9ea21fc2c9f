import csv
import dataclasses
import json
import sys

import numpy as np
import pytest
from matplotlib import pyplot

import fedcohort
from fedcohort import FedAvg, make_selector
from fedcohort.cli.arena import run_arena
from fedcohort.errors import (
    InvalidInputError,
    InvalidParameterError,
    MissingPackageError,
    UnknownNameError,
)
from fedcohort.leaderboard.arena import ArenaResults
from fedcohort.leaderboard.challenge import challenge
from fedcohort.leaderboard.published import Published, write_published
from fedcohort.leaderboard.tables import rules_table
from fedcohort.simulation import Store
from fedcohort.simulation.scores import Target


class Uniform(FedAvg):
    """fedavg under another name: it must draw the published cohorts."""

    name = "uniform"


@pytest.fixture(scope="module")
def found(published, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedcohort.leaderboard.challenge.Published", lambda: published)
        out = tmp_path_factory.mktemp("arena")
        return fedcohort.arena(Uniform, device="cpu", out=out, progress=False), out


def test_the_published_seeds_give_the_published_curves(found):
    results, _ = found
    for entries in results.entries.values():
        np.testing.assert_allclose(entries["uniform"].train, entries["fedavg"].train, atol=1e-12)
        assert entries["uniform"].rounds_to_target == entries["fedavg"].rounds_to_target
    (duel,) = [v for v in results.duels if v.rule == "fedavg"]
    assert (duel.speed, duel.low, duel.high) == (1, 1, 1)
    assert (duel.won, duel.lost, duel.seeds_won, duel.seeds_lost, duel.seeds_tied) == (
        0,
        0,
        0,
        0,
        6,
    )


def test_only_the_own_rule_and_one_run_of_a_check_are_done(found):
    results, out = found
    with Store.existing(out) as store:
        runs = [(c.selector, c.seed, c.skew) for c in store.configs()]
    assert runs.count(("fedavg", 0, "1")) == 1
    own = {("uniform", seed, skew) for seed in (0, 1, 2) for skew in ("1", "0.5")}
    assert set(runs) == own | {("fedavg", 0, "1")}
    (check,) = results.checks
    assert check.agrees
    assert check.largest < 1e-9


@pytest.fixture
def uneven(board, conditions, tmp_path):
    """A rule is missing in the first condition, and nobody reaches the target of the second."""
    first, second = conditions
    fewer = tuple(name for name in first.selectors if name != "ward")
    some = [
        dataclasses.replace(first, selectors=fewer, target=Target(0.15)),
        dataclasses.replace(second, target=Target(0.9999, "test")),
    ]
    with open(tmp_path / "uneven.npz", "wb") as file:
        write_published(file, some, board)
    return ArenaResults.of(challenge("match", published=Published(tmp_path / "uneven.npz")))


def test_who_did_not_run_everywhere_is_named_and_has_no_standing(uneven, found):
    standings = uneven.tables()["standings"]
    assert "ward" not in {row[0] for row in standings.rows}
    assert standings.note.endswith(" Without ward, not run in all of them.")
    assert "Without" not in found[0].tables()["standings"].note


def test_where_nobody_arrives_nobody_is_the_fastest(uneven):
    reached, never = uneven.tables()["conditions"].rows
    assert reached[4] != "nobody"
    assert reached[5].endswith("/5")
    assert never[1:] == (">6", ">6", "–", "nobody", "–")
    assert {row[2] for row in uneven.tables()["rounds"].rows} == {">6"}
    assert uneven.figure().axes


def test_the_check_goes_red_when_a_published_number_is_changed(found, published, tmp_path):
    results, out = found
    with np.load(published.path) as arrays:
        changed = dict(arrays)
    name = results.challenge.conditions[0].name
    place = published.conditions[0].selectors.index("fedavg")
    changed[f"{name}/train"] = changed[f"{name}/train"].astype(np.int64)
    changed[f"{name}/train"][place, 0, 2] += changed[f"{name}/train/samples"] // 50
    np.savez(tmp_path / "changed.npz", **changed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "fedcohort.leaderboard.challenge.Published", lambda: Published(tmp_path / "changed.npz")
        )
        again = fedcohort.arena(Uniform, device="cpu", out=out, progress=False)
    (check,) = again.checks
    assert not check.agrees
    assert check.early == pytest.approx(0.02, abs=0.001)


@pytest.mark.usefixtures("as_package")
def test_runs_that_are_there_are_not_done_again(found, monkeypatch):
    results, out = found
    monkeypatch.setattr(
        "fedcohort.simulation.lockstep.Lockstep.advance", lambda *_: pytest.fail("it ran")
    )
    again = fedcohort.arena(Uniform, device="cpu", out=out, progress=False)
    assert again.to_json() == results.to_json()


def test_a_published_rule_is_shown_and_not_run(as_package, monkeypatch):
    monkeypatch.setattr(
        "fedcohort.simulation.execution.runner.run_study", lambda *_: pytest.fail("it ran")
    )
    results = fedcohort.arena("match", ["digits-1"], seeds=[0, 2])
    assert results.checks == ()
    assert set(results.standings.selector) == {*as_package.conditions[0].selectors}
    assert {len(e.seeds) for e in results.entries["Digits, ξ = 1"].values()} == {2}


def test_without_torch_published_rules_are_shown_and_others_want_it(as_package, monkeypatch):
    monkeypatch.setitem(sys.modules, "fedcohort.simulation.devices", None)
    for name in ("match", "match:"):
        assert len(fedcohort.arena(name, ["digits-1"]).ranked) == len(
            as_package.conditions[0].selectors
        )
    with pytest.raises(MissingPackageError, match=r"fedcohort\.arena needs .*fedcohort\[sim\]'"):
        fedcohort.arena(Uniform)


def test_a_variant_of_a_published_rule_has_a_row_of_its_own(as_package):
    asked = challenge("match:evenness=free", ["digits"], None, as_package)
    assert (asked.label, len(asked.new)) == ("match:evenness=free", 2)
    named_alike = dataclasses.make_dataclass("Other", [], bases=(FedAvg,), eq=False)
    named_alike.name = "match"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedcohort.leaderboard.challenge.spec_of", lambda _: "somewhere:Other")
        patch.setattr("fedcohort.leaderboard.challenge.make_selector", lambda _: named_alike())
        patch.setattr("fedcohort.leaderboard.challenge.check_selector", lambda _: None)
        assert challenge(named_alike, ["digits"], None, as_package).label == "match (yours)"


@pytest.mark.usefixtures("as_package")
def test_a_variant_of_a_rule_that_was_revised_is_run_and_ranked(tmp_path):
    assert make_selector("match").revision > 1
    results = fedcohort.arena(
        "match:weights=size", ["digits-1"], device="cpu", out=tmp_path / "out", progress=False
    )
    own = results.entries["Digits, ξ = 1"]["match:weights=size"]
    assert own.seeds == (0, 1, 2)
    assert "match:weights=size" in set(results.standings.selector)


def test_a_gpu_keeps_the_published_precision_and_a_cpu_takes_float32(published):
    half = dataclasses.replace(published.conditions[0].config, precision="bfloat16")
    asked = challenge("fedsae", ["digits-1"], [1], published)
    asked = dataclasses.replace(
        asked, conditions=(dataclasses.replace(asked.conditions[0], config=half),)
    )
    assert {c.precision for c in asked.study("cuda").configs} == {"bfloat16"}
    assert {c.precision for c in asked.study("cpu").configs} == {"float32"}
    assert [(c.selector, c.seed) for c in asked.check("cpu").configs] == [("fedavg", 1)]


class Greedy(Uniform):
    """Takes more clients than it may."""

    name = "greedy"

    def _choose(self, k, rows, rng):
        return super()._choose(min(k + 1, len(rows)), rows, rng)


class Broken(Uniform):
    name = "broken"

    def _choose(self, k, rows, rng):
        return super()._choose(k, rows[: k // 0], rng)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (Greedy, r"its ids have shape \[8\], not \[7\]"),
        (Broken, r"ZeroDivisionError in line \d+ of .*test_arena.py: "),
    ],
)
@pytest.mark.usefixtures("as_package")
def test_a_rule_that_is_no_selector_is_refused_before_anything_runs(rule, said, tmp_path):
    with pytest.raises(InvalidInputError, match=rf"'{rule.name}' does not do .*{said}"):
        fedcohort.arena(rule, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("as_package")
def test_an_error_of_fedcohorts_own_rules_is_shown_as_it_is(monkeypatch):
    monkeypatch.setattr(FedAvg, "_choose", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        challenge("always(fedavg; 3)")


@pytest.mark.usefixtures("as_package")
def test_wrong_words_get_one_sentence():
    with pytest.raises(UnknownNameError, match="no condition 'digits-2'"):
        fedcohort.arena("match", ["digits-2"])
    with pytest.raises(UnknownNameError, match="no selector 'matsch'"):
        fedcohort.arena("matsch")
    with pytest.raises(InvalidParameterError, match="no published runs with seed 7 in digits"):
        fedcohort.arena("match", ["digits"], seeds=[0, 7])
    for wrong, said in {
        ("conditions", "digits-1"): "conditions must be a list, such as",
        ("seeds", ()): "seeds is empty",
        ("seeds", ("0",)): "with seed '0' in digits-1",
    }.items():
        with pytest.raises(InvalidInputError, match=said):
            fedcohort.arena("match", **{"conditions": ["digits-1"]} | dict([wrong]))


def test_the_tables_are_written_for_papers_and_for_programs(found, tmp_path):
    results, _ = found
    paths = {path.name: path for path in results.write(tmp_path / "to")}
    names = ("standings", "conditions", "rules", "rounds", "accuracy")
    texts = {f"{name}.{ending}" for name in names for ending in ("md", "tex")}
    assert set(paths) == texts | {
        "standings.csv",
        "rounds.csv",
        "pairs.csv",
        "arena.png",
        "arena.pdf",
    }
    rounds = paths["rounds.tex"].read_text()
    assert r"selector & $\xi$ = 1 & $\xi$ = 0.5, 30 \% drop out & speed \\" in rounds
    assert r"\textbf{uniform} & " in rounds
    assert rounds.count(r"\\") == 1 + len(results.ranked)
    lines = paths["standings.md"].read_text().splitlines()
    (own,) = [line for line in lines if "uniform" in line]
    assert own.startswith("| **uniform** | **1.00** |")
    accuracy = paths["accuracy.md"].read_text()
    (mine,) = [s for s in results.ranked if s.selector == "uniform"]
    told = [mine.mean(name) for name in ("final", "peak", "drop", "worst_decile")]
    shown = " | ".join(f"**{100 * value:.1f} %**" for value in told)
    assert f"| **uniform** | {shown} |" in accuracy
    rows = list(csv.DictReader(paths["pairs.csv"].open()))
    assert len(rows) == 2 * 6
    assert {row["selector"] for row in rows} == {"uniform"}
    assert json.loads(json.dumps(results.to_json()))["rules"][0]["rule"] != "uniform"


def test_a_picture_of_few_conditions_is_whole(found, tmp_path):
    results, _ = found
    results.write(tmp_path)
    image = pyplot.imread(tmp_path / "arena.png")
    assert min(edge.min() for edge in (image[0], image[-1], image[:, 0], image[:, -1])) == 1
    assert results.figure().axes[0].get_title().count("\n") == 1


def test_few_seeds_are_said_to_show_nothing(found):
    results, _ = found
    said = (
        " With 3 shared seeds the smallest p-value that a single comparison can have is 0.25: it"
        " takes 6 seeds or more to show a difference at the 5 % level."
    )
    tables = results.tables()
    assert tables["standings"].note.endswith(said)
    assert tables["rules"].note.endswith(said)
    assert "1 shared seed " in rules_table(results.duels, 2, 1, "uniform").note
    assert "shared" not in rules_table(results.duels, 2, 6, "uniform").note


@pytest.mark.parametrize("width", [60, 40])
def test_names_stay_in_narrow_terminals(width, as_package, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    run_arena(challenge("match"), tmp_path, json=False, device="cpu")
    printed = capsys.readouterr().out
    starts = [line.partition(" ")[0] for line in printed.splitlines()]
    for name in as_package.conditions[0].selectors:
        # Among the standings and among the rules; match itself heads tables.
        assert starts.count(name) >= 2, name
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= width
