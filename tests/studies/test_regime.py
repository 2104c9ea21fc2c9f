import pytest
from drawing import NotInStoreError, run_script
from regime import gain_rows, gains, main, regime_figure

from fedcohort.report.summary import summarise
from fedcohort.simulation import RoundRecord, RunConfig, Store

# Rounds to the target under dp3s and fedavg, by learning rate; 99 is never.
REACHED = {0.1: (4, 8), 0.2: (5, 5), 0.3: (4, 99), 0.4: (99, 99), 0.5: (99, 5)}
LAST = 9


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    """A store whose curves are steps: at 20 % until a round, at 95 % from it on."""
    with Store(tmp_path_factory.mktemp("mapped")) as store:
        for lr, reached in REACHED.items():
            for selector, first in zip(("dp3s", "fedavg"), reached, strict=True):
                for seed in (0, 1):
                    config = RunConfig(
                        clients=4, cohort=2, rounds=LAST, lr=lr, selector=selector, seed=seed
                    )
                    facts = {"clients": 4, "device": "CPU", "train_evaluated_on": 10}
                    store.begin(config, facts, {})
                    accuracies = [0.95 if r >= first else 0.2 for r in range(LAST + 1)]
                    records = [
                        RoundRecord(round=r, train_score=a, cohort=(0, 1))
                        for r, a in enumerate(accuracies)
                    ]
                    store.save({config.key: records}, done=True)
        yield store


def test_the_gain_is_the_ratio_of_rounds_or_a_bound(mapped):
    found = {g.config.lr: (g.bound, g.gain) for g in gains(summarise(mapped, 0.9))}
    assert found == {
        0.1: ("", 2.0),
        0.2: ("", 1.0),
        0.3: (">", 2.5),
        0.4: ("", None),
        0.5: ("<", 0.5),
    }


def test_the_table_begins_with_the_largest_gain(mapped):
    rows = gain_rows(gains(summarise(mapped, 0.9)))
    assert [row["lr"] for row in rows] == [0.3, 0.1, 0.2, 0.5, 0.4]
    assert rows[1] | {"gain_low": 2.0, "gain_high": 2.0, "rounds_dp3s": 4, "seeds": 2} == rows[1]


def test_the_map_shows_what_varies(mapped, tmp_path):
    main([str(mapped.folder), "-o", str(tmp_path)])
    text = (tmp_path / "regime.svg").read_text()
    for word in ("learning rate", "rounds fedavg / rounds dp3s", "a bound", "0.3"):
        assert word in text
    assert "momentum" not in text
    assert ">0.4<" not in text, "nobody got there"


def test_one_setting_is_no_map(store):
    with pytest.raises(NotInStoreError, match="three training settings"):
        regime_figure(gains(summarise(store, 0.9)))


def test_one_setting_has_a_table_all_the_same(store, tmp_path, capsys):
    main([str(store.folder), "-o", str(tmp_path / "drawn"), "--csv", str(tmp_path / "one.csv")])
    printed = capsys.readouterr()
    assert printed.out == f"{tmp_path / 'one.csv'}\n"
    assert printed.err.startswith("regime is left out: no three training settings")
    header, *rows = (tmp_path / "one.csv").read_text().splitlines()
    assert header.startswith("dataset,skew,epochs,")
    assert [row.split(",")[:2] for row in rows] == [["digits", "1"]]
    assert not (tmp_path / "drawn").exists()


def test_without_both_selectors_nothing_is_written(store, copy_runs, tmp_path, capsys):
    alone = copy_runs(store, lambda config: config if config.selector == "dp3s" else None)
    with pytest.raises(SystemExit) as end:
        run_script(lambda: main([str(alone.folder), "-o", str(tmp_path / "drawn")]))
    assert end.value.code == 2
    assert "no setting with both dp3s and fedavg" in capsys.readouterr().err
    assert not (tmp_path / "drawn").exists()
