import csv
import dataclasses

import numpy as np
import pytest
from drawing import NotInStoreError
from leaderboard import board_of, main

from fedcohort.leaderboard.conditions import conditions_of
from fedcohort.leaderboard.published import write_published
from fedcohort.leaderboard.standings import needs_of, standing_rows, standings
from fedcohort.simulation import RoundRecord, RunConfig, Store
from fedcohort.simulation.planning import enter_study
from fedcohort.simulation.scores import Target
from fedcohort.simulation.study import Part, Study

# Rounds to the target in three conditions; 99 is never.
REACHED = {
    "fedavg": (8, 4, 6),
    "match": (2, 4, 6),
    "dp3s": (4, 4, 6),
    "pow-d": (99, 8, 6),
    "clustered": (8, 4, 3),
    "gemd-oracle": (8, 4, 6),
}
CONDITIONS = ({"skew": "1"}, {"skew": "1", "dropout": 0.3}, {"skew": "0.8", "size_spread": 1.0})
LAST = 9


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """A store whose curves are steps: at 20 % until a round, at 95 % from it on."""
    configs = []
    with Store(tmp_path_factory.mktemp("board")) as store:
        for selector, reached in REACHED.items():
            for condition, first in zip(CONDITIONS, reached, strict=True):
                for seed in (0, 1):
                    named = RunConfig(
                        clients=4, cohort=2, rounds=LAST, selector=selector, seed=seed, **condition
                    )
                    config = named.of_today()
                    configs.append(config)
                    facts = {"clients": 4, "device": "CPU", "train_evaluated_on": 10}
                    store.begin(config, facts, {})
                    records = [
                        RoundRecord(
                            round=r,
                            train_score=0.95 if r >= first else 0.2,
                            gemd=0.5,
                            cohort=(0, 1) if r else (),
                            bytes_up=10**8 if r else 0,
                            elapsed=1.0 if r else 0.0,
                        )
                        for r in range(LAST + 1)
                    ]
                    store.save({config.key: records}, done=True)
        study = Study("board", (Part("all", tuple(configs), Target(0.9)),), "source")
        enter_study(store, study, lambda _: [])
        yield store


def standings_in(board):
    found = {c.title: entries for c, entries in board_of(board.folder).items()}
    return standings(found, needs_of(REACHED))


def test_a_standing_is_the_geometric_mean_of_speeds(board):
    found = {s.selector: s for s in standings_in(board)}
    first, *_, last = found
    assert (first, last) == ("match", "pow-d")
    assert found["fedavg"].speed == 1
    assert found["match"].speed == pytest.approx((4 * 1 * 1) ** (1 / 3))
    # Never is the round after the last.
    assert found["pow-d"].speed == pytest.approx((8 / 10 * 4 / 8) ** (1 / 3))
    assert found["pow-d"].least_speed == 0.5
    assert (found["match"].faster, found["match"].slower) == (1, 0)
    assert (found["pow-d"].faster, found["pow-d"].slower) == (0, 2)


def test_bytes_and_time_are_compared_where_both_arrived(board):
    found = standings_in(board)
    rows = {row["selector"]: row for row in standing_rows(found)}
    assert rows["match"]["bytes"] == round((1 / 4) ** (1 / 3), 3) == rows["match"]["time"]
    assert rows["pow-d"]["bytes"] == round(2 ** (1 / 2), 4)
    assert rows["gemd-oracle"]["needs"] == "label_counts"
    assert rows["dp3s"]["gemd"] == 0.5
    assert [row["place"] for row in rows.values()] == [1, 2, 3, 4, 5, 6]


def test_the_figure_shows_rounds_and_conditions(board, tmp_path):
    main([str(board.folder), "-o", str(tmp_path)])
    text = (tmp_path / "leaderboard.svg").read_text()
    for word in ("&gt;9", "30 % drop out", "unequal sizes", f"{np.cbrt(4):.2f} ×", "gemd-oracle"):
        assert word in text


def test_the_table_is_written_beside_the_figure(board, tmp_path, capsys):
    main([str(board.folder), "-o", str(tmp_path)])
    endings = ("pdf", "svg", "png")
    tables = (tmp_path / "rounds.csv", tmp_path / "standings.csv")
    paths = [*tables, *(tmp_path / f"leaderboard.{e}" for e in endings)]
    assert capsys.readouterr().out.splitlines() == [str(path) for path in paths]
    first, *rows = tables[1].read_text().splitlines()
    assert first.startswith("place,selector,needs,conditions,speed,")
    assert rows[0].startswith("1,match,profile,3,1.5874,")
    assert len(rows) == 6
    rounds = list(csv.DictReader(tables[0].open()))
    assert len(rounds) == 3 * 6
    (slow,) = [r for r in rounds if r["condition"] == "digits-1" and r["selector"] == "pow-d"]
    (fast,) = [r for r in rounds if r["condition"] == "digits-1" and r["selector"] == "match"]
    assert rounds[0] == fast
    assert (slow["rounds"], slow["rounds_to_target"], slow["megabytes_to_target"]) == ("9", "", "")
    assert (fast["rounds_to_target"], fast["megabytes_to_target"]) == ("2", "200.0")
    assert fast["final"] == "0.95"
    assert (fast["target"], fast["target_on"], fast["worst_decile"]) == ("0.9", "train", "")


def test_one_condition_is_enough_if_it_is_named(board, tmp_path):
    main([str(board.folder), "-o", str(tmp_path), "--condition", "digits-1-dropout"])
    rows = list(csv.DictReader((tmp_path / "standings.csv").open()))
    assert {row["conditions"] for row in rows} == {"1"}
    assert (rows[-1]["selector"], rows[-1]["speed"]) == ("pow-d", "0.5")


def test_a_rule_that_one_condition_lacks_has_no_standing_over_all(board, tmp_path, capsys):
    first, second, third = conditions_of(board.configs(), board.targets())
    fewer = tuple(name for name in second.selectors if name != "dp3s")
    some = [first, dataclasses.replace(second, selectors=fewer), third]
    with open(tmp_path / "some.npz", "wb") as file:
        write_published(file, some, board)
    main([str(tmp_path / "some.npz"), "-o", str(tmp_path), "--condition", "digits"])
    assert capsys.readouterr().err == "Not in all conditions, and left out: dp3s.\n"
    rows = list(csv.DictReader((tmp_path / "standings.csv").open()))
    assert {row["selector"] for row in rows} == REACHED.keys() - {"dp3s"}
    assert {row["conditions"] for row in rows} == {"3"}
    rounds = [r["selector"] for r in csv.DictReader((tmp_path / "rounds.csv").open())]
    assert rounds.count("dp3s") == 2


def test_other_stores_have_no_standings(store, tmp_path):
    with pytest.raises(NotInStoreError, match=r"no standings in .*: it has no 3 conditions"):
        main([str(store.folder), "-o", str(tmp_path / "drawn")])
    assert not (tmp_path / "drawn").exists()
