import dataclasses
from pathlib import Path

import advise_new
import numpy as np
import pytest
from advise import Pair, advice_on, calibrate, main, pairs, with_more
from drawing import NotInStoreError
from held_out import both_ways, conditions_of, read_table
from scipy.stats import spearmanr

from fedcohort import advise
from fedcohort.advice import predicted_gain
from fedcohort.leaderboard.conditions import Condition
from fedcohort.leaderboard.published import Published, write_published
from fedcohort.simulation import RoundRecord, RunConfig, Store
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.scores import Target
from fedcohort.simulation.study import read_study

# How far clients differ, and the rounds of fedavg and match, in three conditions of two data sets.
HARD = {"1": (2.0, 8, 4), "H": (1.0, 6, 4), "0.5": (0.1, 4, 4)}
LAST = 9
# How far the gradients of their clients' samples agree.
AGREED = {"1": 0.9, "H": 0.4, "0.5": 0.01}


def profiles_of(apart, seed):
    rng = np.random.default_rng(seed)
    kinds = 8 + apart * rng.normal(size=(3, 12))
    return (kinds[np.arange(12) % 3] + 0.01 * rng.normal(size=(12, 12))).astype(np.float32)


def enter(store, config, first):
    """Enter a run that is at 20 % until the round before `first`, and at 100 % from it on."""
    arrays = {"label_counts": np.full((12, 2), 5)}
    store.begin(config, {"clients": 12, "device": "CPU", "train_evaluated_on": 10}, arrays)
    records = []
    for r in range(LAST + 1):
        score = 1.0 if r >= first else 0.2
        cohort = (0, 1) if r else ()
        records.append(RoundRecord(round=r, train_score=score, test_score=score, cohort=cohort))
    store.save({config.key: records}, done=True)


def keep_made_up(folder, run, apart):
    """Keep what clients send where the scripts look for it."""
    np.savez(
        folder / f"{run.federation_key}.npz",
        profiles=profiles_of(apart, run.seed),
        sizes=np.full(12, 10),
        agreements=np.full(12, AGREED[run.skew]),
        shared=0.0,
    )


def publish(folder, datasets):
    """Publish made-up runs, and keep made-up profiles beside them."""
    chosen = []
    with Store(folder / "store") as store:
        for dataset in datasets:
            for skew, (apart, *rounds) in HARD.items():
                config = RunConfig(
                    dataset=dataset, skew=skew, clients=12, cohort=3, rounds=LAST, selector="fedavg"
                )
                name, rules = f"{dataset}-{skew}", ("fedavg", "match")
                title = f"{dataset}, ξ = {skew}, cohorts of 3"
                condition = Condition(name, title, config, Target(0.6), (0, 1), rules)
                chosen.append(condition)
                for rule, first in zip(rules, rounds, strict=True):
                    for run in condition.runs(rule):
                        enter(store, run, first)
                        keep_made_up(folder, run, apart)
        path = folder / "published.npz"
        with path.open("wb") as file:
            write_published(file, chosen, store)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return publish(tmp_path_factory.mktemp("board"), ("digits", "mnist", "fashion-mnist"))


def test_gains_are_measured_between_evaluations(path):
    found = {pair.title: pair.doublings for pair in pairs(Published(path))}
    # Halfway from 20 % to 100 % is reached half a round before.
    assert found["ξ = 1, cohorts of 3"] == pytest.approx(np.log2([7.5 / 3.5] * 2))
    assert found["ξ = 0.5, cohorts of 3"] == pytest.approx([0, 0])


def test_targets_are_the_highest_that_the_baseline_reaches(path):
    pair = pairs(Published(path))[0].targeted("train", 0.05)
    assert pair.baseline.target == pair.selector.target == Target(1.0, "train")
    assert pair.doublings == pytest.approx(np.log2([8 / 4] * 2))
    slower = np.linspace(0, 0.574, LAST + 1)
    curves = {"train": np.stack([slower] * 2), "test": np.stack([slower, slower + 0.1])}
    for (on, step), target in {
        ("train", 0.05): 0.55,
        ("train", 0.02): 0.56,
        ("test", 0.05): 0.6,
    }.items():
        learnt = dataclasses.replace(pair.baseline, **curves)
        found = dataclasses.replace(pair, baseline=learnt).targeted(on, step)
        assert found.baseline.target == Target(pytest.approx(target), on)


def test_a_data_set_is_predicted_by_the_others(path):
    found = pairs(Published(path))
    skews = [pair.condition.config.skew for pair in found]
    said = [
        [advise(profiles_of(HARD[skew][0], 0), k=3, agreements=np.full(12, AGREED[skew]))]
        for skew in skews
    ]
    rows, gradient_constant, constant = calibrate(found, said)
    # All data sets are the same here, so what the others say is what all say.
    for row, (advice,) in zip(rows, said, strict=True):
        for name, s, u in (
            ("predicted", gradient_constant, advice.gradient_spread),
            ("alone", constant, advice.spread),
        ):
            gain = (s**2 + u**2) / (s**2 + (u * advice.left) ** 2)
            assert row[name] == pytest.approx(gain, abs=0.01)
    swapped = [
        Pair(p.condition, p.selector, p.baseline) if p.condition.config.dataset == "digits" else p
        for p in found
    ]
    changed, *_ = calibrate(swapped, said)
    predicted = [
        {(r["dataset"], r["condition"]): r["predicted"] for r in t} for t in (rows, changed)
    ]
    hardest = "ξ = 1, cohorts of 3"
    assert predicted[0]["digits", hardest] == predicted[1]["digits", hardest]
    assert predicted[0]["mnist", hardest] > predicted[1]["mnist", hardest] + 0.1


def test_seeds_that_both_rules_have_in_another_store_are_joined(path, tmp_path):
    pair, other, *_ = pairs(Published(path))
    # Here match takes as long as fedavg; seed 1 is published, and of seed 4 a run is missing.
    with Store(tmp_path / "more") as store:
        for rule, seeds in {"fedavg": (1, 2, 3, 4), "match": (1, 2, 3)}.items():
            for run in pair.condition.runs(rule, seeds):
                enter(store, run, 8)
        joined = with_more(pair, store)
        assert joined.baseline.seeds == joined.selector.seeds == (0, 1, 2, 3)
        # Of these fedavg reaches 100 %, in rounds 8 and 4 of the published seeds.
        assert joined.baseline.target == joined.selector.target == Target(1.0, "test")
        assert joined.doublings == pytest.approx([1, 1, 0, 0])
        assert with_more(other, store) is other


def test_the_script_writes_a_table_and_a_figure(path, tmp_path, capsys):
    kept = ["--published", str(path), "--profiles", str(path.parent)]
    main([*kept, "-o", str(tmp_path), "--seeds", "2"])
    rows = read_table(tmp_path / "advise.csv")
    assert [row["condition"] for row in rows[:3]] == [f"ξ = {s}, cohorts of 3" for s in HARD]
    assert float(rows[0]["measured"]) == pytest.approx(7.5 / 3.5, abs=1e-3)
    pooled, pairwise = both_ways(*conditions_of(rows))
    assert pairwise > 0.8
    said = capsys.readouterr().out
    assert f"rank correlations by pairs {pairwise:.3f}, pooled {pooled:.3f}" in said
    # All seeds say the same here.
    assert "gains as noisy as these: 1.000" in said
    assert (tmp_path / "advise.png").stat().st_size > 5000


def test_new_conditions_are_predicted_by_the_shipped_constants(tmp_path, capsys):
    parts = "".join(f'[[part]]\nname = "Digits, {skew}"\nskew = "{skew}"\n' for skew in HARD)
    base = f'[base]\nselector = ["match", "fedavg"]\nclients = 12\ncohort = 3\nrounds = {LAST}\n'
    (tmp_path / "new.toml").write_text(f'{base}seeds = "0..1"\n{parts}')
    with Store(tmp_path / "store") as store:
        for named in read_study(tmp_path / "new.toml").configs:
            config = named.of_today()
            apart, before, after = HARD[config.skew]
            enter(store, config, before if config.selector == "fedavg" else after)
            keep_made_up(tmp_path, config, apart)
    options = ["--study", tmp_path / "new.toml", "--csv", tmp_path / "new.csv"]
    options += ["--profiles", tmp_path, "--seeds", 1]
    advise_new.main(list(map(str, [tmp_path / "store", *options])))
    rows = read_table(tmp_path / "new.csv")
    assert [float(row["measured"]) for row in rows] == pytest.approx([8 / 4, 6 / 4, 1])
    for row in rows:
        said = (float(row[name]) for name in ("spread", "left", "gradients"))
        assert float(row["predicted"]) == pytest.approx(predicted_gain(*said), abs=0.005)
    assert "rank correlation 1.000" in capsys.readouterr().out


def test_what_was_kept_is_not_computed_again_and_what_is_missing_is(path, tmp_path):
    config = Published(path).conditions[0].runs("match")[0]
    name = f"{config.federation_key}.npz"
    with np.load(path.parent / name) as made_up:
        np.savez(tmp_path / name, **{n: made_up[n] for n in ("profiles", "sizes")})
    pair = pairs(Published(path))[0]
    (said,) = advice_on(pair, 1, path.parent, Materials(), "cpu")
    assert said.gradient_spread == pytest.approx(np.sqrt(AGREED["1"] * (1 / 3 - 1 / 12)), rel=0.1)
    (said,) = advice_on(pair, 1, tmp_path, Materials(), "cpu")
    # Clients of digits that hold one class each, instead of the made-up ones.
    assert said.gradient_spread > 1.03 * np.sqrt(AGREED["1"] * (1 / 3 - 1 / 12))
    with np.load(tmp_path / name) as computed:
        assert computed["profiles"].shape[1] > 12
        assert computed["agreements"].min() > 0.95
        assert computed["shared"] < 0.05


def test_too_little_is_refused(tmp_path):
    with pytest.raises(NotInStoreError, match="3 conditions"):
        pairs(Published(publish(tmp_path, ("digits",))))


def test_the_published_table_is_what_the_package_predicts():
    table = Path(__file__).parents[2] / "docs" / "results" / "advise.csv"
    rows = read_table(table)
    assert len(rows) == len(Published().conditions)
    page = (table.parents[1] / "advise.md").read_text(encoding="utf-8")
    new, later = (read_table(table.with_name(f"advise-{name}.csv")) for name in ("new", "later"))
    alike = [row for row in rows if row["dataset"] in ("digits", "mnist", "fashion-mnist")]
    for some, distance, said in (
        (rows, "gradients", "over all 31 conditions it is **{:.2f}** (pooled {:.2f})"),
        (alike, "gradients", "over the 21 of digits, MNIST and Fashion-MNIST {:.2f} ({:.2f})"),
        (rows, "spread", "From profiles alone it is {:.2f} ({:.2f})"),
        (alike, "spread", "and {:.2f} ({:.2f}) without CIFAR-10, the writers and Shakespeare"),
        (rows + new, "gradients", "over these and the 31 together {:.2f} (pooled {:.2f})"),
        (
            rows + new + later,
            "gradients",
            "Over all 63 conditions of this page it is {:.2f} by pairs (pooled {:.2f})",
        ),
    ):
        pooled, pairwise = both_ways(*conditions_of(some, distance))
        assert said.format(pairwise, pooled) in page
    for some, said in (
        (new, "The rank correlation is {:.2f},"),
        (later, "**The rank correlation is {:.2f}**"),
    ):
        both = ([float(row[name]) for row in some] for name in ("predicted", "measured"))
        assert said.format(spearmanr(*both)[0]) in page
        for row in some:
            found = (float(row[name]) for name in ("spread", "left", "gradients"))
            assert predicted_gain(*found) == pytest.approx(float(row["predicted"]), abs=0.005)
    # The constants of the folds are near those that are shipped.
    for column, given in {"predicted": ("gradients",), "alone": ()}.items():
        shipped = [
            predicted_gain(*(float(row[n]) for n in ("spread", "left", *given))) for row in rows
        ]
        assert shipped == pytest.approx([float(row[column]) for row in rows], rel=0.15)
