import pytest
from drawing import run_script
from same_seeds import main, same_seeds

from fedcohort.simulation import RoundRecord, RunConfig, Store

LAST = 9


@pytest.fixture
def stepping(tmp_path):
    """A store whose curves are at 20 % until a round and at 95 % from it on."""
    with Store(tmp_path / "steps") as store:
        yield store


def enter(store, first, done=True, **settings):
    """Enter a run that reaches the target in its round `first`."""
    config = RunConfig(clients=4, cohort=2, rounds=LAST, **settings)
    store.begin(config, {"clients": 4, "device": "CPU", "train_evaluated_on": 10}, {})
    records = [
        RoundRecord(round=r, train_score=0.95 if r >= first else 0.2, cohort=(0, 1))
        for r in range(LAST + 1)
    ]
    store.save({config.key: records}, done=done)


def test_values_are_compared_over_the_seeds_that_all_of_them_have(stepping):
    for seed, first in enumerate((5, 5, 9, 9)):
        enter(stepping, first, selector="dp3s", seed=seed)
    for seed in (0, 1):
        enter(stepping, 3, selector="dp3s", seed=seed, profile="gradient")
    enter(stepping, 3, done=False, selector="dp3s", seed=2, profile="gradient")
    # Two values of a setting, but no seed in common; and a setting with one value.
    enter(stepping, 3, selector="dp3s", seed=8, init="kaiming-normal")
    enter(stepping, 3, selector="fedavg", seed=0)
    rows = [
        (row["setting"], row["value"], row["seeds"], row["rounds_to_target"], row["difference"])
        for row in same_seeds(stepping)
    ]
    assert rows == [("profile", "fc1", 2, 5, None), ("profile", "gradient", 2, 3, -2)]


def test_the_usual_value_comes_first(stepping, tmp_path):
    for init in ("xavier-normal", "default"):
        for seed in (0, 1):
            enter(stepping, 3 if init == "default" else 7, selector="dp3s", seed=seed, init=init)
    main([str(stepping.folder), "--csv", str(tmp_path / "table.csv")])
    head, *rows = (tmp_path / "table.csv").read_text().splitlines()
    assert head.startswith("setting,value,dataset,")
    assert [row.split(",")[:2] for row in rows] == [["init", "default"], ["init", "xavier-normal"]]
    assert ",4,4,4," in rows[1]


def test_where_nothing_varies_nothing_is_written(stepping, capsys):
    enter(stepping, 3, selector="dp3s", seed=0)
    with pytest.raises(SystemExit) as end:
        run_script(lambda: main([str(stepping.folder)]))
    assert end.value.code == 2
    assert "nothing to compare" in capsys.readouterr().err
    assert not (stepping.folder / "figures").exists()
