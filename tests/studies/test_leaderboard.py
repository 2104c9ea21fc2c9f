import numpy as np
import pytest
from drawing import NotInStoreError
from leaderboard import main, standings_in

from fedcohort.leaderboard.standings import standing_rows
from fedcohort.selection import make_selector
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
                    config = RunConfig(
                        clients=4,
                        cohort=2,
                        rounds=LAST,
                        selector=selector,
                        selector_revision=make_selector(selector).revision,
                        seed=seed,
                        **condition,
                    )
                    configs.append(config)
                    facts = {"clients": 4, "device": "CPU", "train_evaluated_on": 10}
                    store.begin(config, facts, {})
                    records = [
                        RoundRecord(
                            round=r,
                            train_score=0.95 if r >= first else 0.2,
                            gemd=0.5,
                            cohort=(0, 1) if r else (),
                            bytes_up=100 if r else 0,
                            elapsed=1.0 if r else 0.0,
                        )
                        for r in range(LAST + 1)
                    ]
                    store.save({config.key: records}, done=True)
        study = Study("board", (Part("all", tuple(configs), Target(0.9)),), "source")
        enter_study(store, study, lambda _: [])
        yield store


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
    assert rows["pow-d"]["bytes"] == round(2 ** (1 / 2), 3)
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
    paths = [tmp_path / "standings.csv", *(tmp_path / f"leaderboard.{e}" for e in endings)]
    assert capsys.readouterr().out.splitlines() == [str(path) for path in paths]
    first, *rows = paths[0].read_text().splitlines()
    assert first.startswith("place,selector,needs,conditions,speed,")
    assert rows[0].startswith("1,match,profile,3,1.587,")
    assert len(rows) == 6


def test_other_stores_have_no_standings(store, tmp_path):
    with pytest.raises(NotInStoreError, match=r"no standings in .*: it has no 3 conditions"):
        main([str(store.folder), "-o", str(tmp_path / "drawn")])
    assert not (tmp_path / "drawn").exists()
