import csv

import pytest
from cifar import main, table_rows
from drawing import NotInStoreError, run_script

from fedcohort.simulation import RoundRecord, RunConfig, Store

# Test accuracies by round, of two seeds; bytes are 1 MB down and 2 MB up a round.
CURVES = {
    "fedavg": ([0.1, 0.2, 0.3, 0.4, 0.4], [0.1, 0.2, 0.3, 0.4, 0.5]),
    "match": ([0.1, 0.5, 0.6, 0.6, 0.6], [0.1, 0.3, 0.6, 0.6, 0.6]),
}


def curves_store(folder, curves, **changes):
    with Store(folder) as store:
        for selector, seeds in curves.items():
            for seed, scores in enumerate(seeds):
                config = RunConfig(
                    clients=4, cohort=2, rounds=len(scores) - 1, selector=selector, seed=seed
                )
                facts = {"clients": 4, "device": "CPU", "train_evaluated_on": 10}
                store.begin(config, facts, {})
                records = [
                    RoundRecord(
                        **{"round": r, "train_score": 0.5, "test_score": score, "cohort": (0, 1)}
                        | {"gemd": 0.25, "bytes_down": 10**6 * (r > 0)}
                        | {"bytes_up": 2 * 10**6 * (r > 0)}
                        | changes
                    )
                    for r, score in enumerate(scores)
                ]
                store.save({config.key: records}, done=True)
    return folder


@pytest.fixture
def curves(tmp_path):
    return curves_store(tmp_path / "curves", CURVES)


def test_rounds_and_megabytes_are_counted_to_each_target_on_the_test_curve(curves):
    with Store.existing(curves) as store:
        fedavg, match = table_rows(store, [0.4, 0.55], last=2)
    assert fedavg == {
        "skew": "1",
        "cohort": 2,
        "selector": "fedavg",
        "seeds": 2,
        "rounds": 4,
        "to_40": "3",
        "mb_to_40": 9.0,
        "to_55": ">4",
        "mb_to_55": None,
        "final": "0.425 ± 0.049",
        "gemd": 0.25,
    }
    # One seed alone is at 40 % after one round, the other after two.
    assert (match["to_40"], match["mb_to_40"]) == ("1 (1–2)", 3.0)
    assert (match["to_55"], match["mb_to_55"]) == ("2", 6.0)


def test_the_end_is_a_mean_of_as_many_evaluations_as_asked(curves):
    with Store.existing(curves) as store:
        ends = [table_rows(store, [0.4], last)[0]["final"] for last in (1, 3)]
    assert ends == ["0.450 ± 0.098", "0.383 ± 0.033"]


def test_one_seed_has_no_interval(tmp_path):
    curves_store(tmp_path, {"match": CURVES["match"][:1]})
    with Store.existing(tmp_path) as store:
        (row,) = table_rows(store, [0.55, 0.7], last=2)
    assert (row["to_55"], row["to_70"]) == ("2", ">4")


def test_the_table_is_printed_and_written(curves, tmp_path, capsys):
    main([str(curves), "--targets", "0.4", "--last", "2", "--csv", str(tmp_path / "made.csv")])
    head, rule, *lines = capsys.readouterr().out.splitlines()
    assert head.endswith("| to_40 | mb_to_40 | final | gemd |")
    assert rule == "|" + "---|" * 9
    with (tmp_path / "made.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["selector"] for row in rows] == ["fedavg", "match"]
    assert [" | ".join(row.values()) for row in rows] == [line.strip("| ") for line in lines]


def test_without_test_accuracies_there_is_no_table(tmp_path):
    curves_store(tmp_path, CURVES, test_score=None)
    with (
        Store.existing(tmp_path) as store,
        pytest.raises(NotInStoreError, match="no run with a test accuracy"),
    ):
        table_rows(store, [0.4], last=2)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [(("--targets", "40"), "write 0.4 for 40 %"), (("--last", "0"), "must be at least 1")],
)
def test_what_makes_no_sense_is_refused(curves, wrong, said, capsys):
    with pytest.raises(SystemExit) as end:
        run_script(lambda: main([str(curves), *wrong]))
    assert end.value.code == 2
    assert said in capsys.readouterr().err
