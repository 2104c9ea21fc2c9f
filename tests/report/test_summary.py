import dataclasses
import itertools
import json
import re
import subprocess
import sys

import numpy as np
import pytest

from fedcohort.metrics import bootstrap_interval
from fedcohort.randomness import generator
from fedcohort.report import summarise, to_json
from fedcohort.report.export import summary_row
from fedcohort.report.html import write_report
from fedcohort.report.wording import PARTS
from fedcohort.simulation.scores import Target


def by_hand(store, selector, field):
    """Return a field of all rounds, [seeds, rounds + 1], straight from the records."""
    runs = sorted((c for c in store.configs() if c.selector == selector), key=lambda c: c.seed)
    return [[getattr(r, field) for r in store.records(c.key)] for c in runs]


def reachable_target(store, selector="dp3s"):
    """Return an accuracy that the mean curve passes in the middle of the run."""
    mean = np.mean(by_hand(store, selector, "train_score"), axis=0)
    return float((mean[0] + mean.max()) / 2)


def summary_of(store, selector, target=None):
    (found,) = [s for s in summarise(store, target) if s.selector == selector]
    return found


@pytest.mark.parametrize("selector", ["dp3s", "fedavg"])
def test_mean_curves_are_those_of_the_records(store, selector):
    summary = summary_of(store, selector)
    assert summary.seeds == (0, 1, 2)
    assert summary.rounds == 4
    assert summary.evaluated_rounds.tolist() == [0, 1, 2, 3, 4]
    for part in ("train", "test"):
        expected = np.array(by_hand(store, selector, f"{part}_score"))
        np.testing.assert_allclose(getattr(summary, part).seeds, expected)
        np.testing.assert_allclose(getattr(summary, part).mean, expected.mean(axis=0))


def test_rounds_to_a_test_score_are_those_of_the_test_curve(store):
    """A target between the two means' last points, which one curve reaches and the other not."""
    train, test = (
        np.array(by_hand(store, "dp3s", f"{part}_score")).mean(axis=0) for part in ("train", "test")
    )
    target = float((train.max() + test.max()) / 2)
    assert abs(train.max() - test.max()) > 1e-3
    trained = summary_of(store, "dp3s", target)
    tested = summary_of(store, "dp3s", Target(target, "test"))
    for summary, mean in ((trained, train), (tested, test)):
        reached = next((t for t, accuracy in enumerate(mean) if accuracy >= target), None)
        assert summary.rounds_to_target == reached
        assert (summary.bytes_to_target is None) == (reached is None)
        np.testing.assert_allclose(summary.curve.mean, mean)
    assert {trained.rounds_to_target is None, tested.rounds_to_target is None} == {True, False}
    rng = generator(0, "report bootstrap")
    assert tested.interval == bootstrap_interval(range(5), tested.test.seeds, target, rng=rng)
    document = to_json([tested], target)["results"][0]
    assert (document["target"], document["target_on"]) == (target, "test")


def test_a_target_on_test_samples_that_are_not_there_is_none(store, copy_runs):
    untested = copy_runs(store)
    untested.db.execute("UPDATE rounds SET test_score = NULL, test_loss = NULL")
    summary = summary_of(untested, "dp3s", Target(0.1, "test"))
    assert (summary.target, summary.rounds_to_target, summary.comparison) == (None, None, None)


def test_test_scores_do_not_need_training_scores(store, copy_runs):
    """R² in training that is no number from round 2 on, or AUROC that is never defined there."""
    target = Target(reachable_target(store), "test")
    whole = summary_of(store, "dp3s", target)
    for since in (2, 0):
        cut = copy_runs(store)
        cut.db.execute("UPDATE rounds SET train_score = NULL WHERE round >= ?", (since,))
        summary = summary_of(cut, "dp3s", target)
        assert summary.rounds_to_target == whole.rounds_to_target is not None
        assert summary.interval == whole.interval
        assert summary.rounds_to_target_by_seed == whole.rounds_to_target_by_seed
        np.testing.assert_array_equal(summary.test.mean, whole.test.mean)
        assert (summary.train.last, summary.test.last) == (None, whole.test.last)
        assert summary_of(cut, "dp3s", 0.01).rounds_to_target == (0 if since else None)


@pytest.fixture
def diverged(store, copy_runs):
    """Seed 2 of dp3s has no scores and losses after round 1."""
    cut = copy_runs(store)
    nothing = ", ".join(f"{part}_{what} = NULL" for part in PARTS for what in ("score", "loss"))
    cut.db.execute(
        f"UPDATE rounds SET {nothing} WHERE round > 1 AND run IN (SELECT run FROM runs WHERE"
        " json_extract(config, '$.selector') = 'dp3s' AND json_extract(config, '$.seed') = 2)"
    )
    return cut


@pytest.mark.filterwarnings("error")
def test_a_seed_that_diverged_never_arrives_and_takes_nothing_from_the_others(store, diverged):
    target = reachable_target(store)
    whole, summary = (summary_of(s, "dp3s", target) for s in (store, diverged))
    *others, dead = summary.rounds_to_target_by_seed
    assert others == list(whole.rounds_to_target_by_seed[:2])
    assert None not in others
    assert dead is None
    np.testing.assert_array_equal(summary.train.seeds[:2], whole.train.seeds[:2])
    np.testing.assert_array_equal(summary.train.mean[:2], whole.train.mean[:2])
    assert np.isnan(summary.train.mean[2:]).all()
    assert (summary.rounds_to_target, summary.arrival) == (None, 5)
    assert (summary.interval.low is None, summary.interval.high) == (False, None)
    assert (summary.train.last, summary.test.last) == (None, None)
    assert summary.comparison.censored
    # What was reached before stays reached.
    soon = float(whole.train.mean[1])
    assert whole.rounds_to_target_by_seed != (1, 1, 1)
    assert summary_of(diverged, "dp3s", soon).rounds_to_target <= 1


def test_what_a_seed_that_diverged_has_not_is_null_and_is_not_drawn(diverged, tmp_path):
    summary = summary_of(diverged, "dp3s", 0.3)
    (found, _) = json.loads(json.dumps(to_json(summarise(diverged, 0.3), 0.3), allow_nan=False))[
        "results"
    ]
    assert [value is None for value in found["test_accuracy"]] == [False] * 2 + [True] * 3
    assert [value is None for value in found["train_accuracy_band"][0]] == [False] * 2 + [True] * 3
    row = summary_row(summary, ["accuracy"])
    assert (row["final_train_accuracy"], row["final_test_accuracy"]) == (None, None)
    page = write_report(diverged, tmp_path / "r.html", 0.3).read_text("utf-8")
    drawn = json.loads(re.search(r'id="data">(.*)</script>\n<script>', page)[1])["groups"]
    assert [g["test"]["rounds"] for g in drawn] == [[0, 1], [0, 1, 2, 3, 4]]
    assert "NaN" not in page


def test_the_perplexity_of_a_seed_that_diverged_is_not_known(diverged, monkeypatch):
    facts = diverged.facts
    monkeypatch.setattr(diverged, "facts", lambda k: facts(k) | {"task": "next-token"})
    assert summary_of(diverged, "dp3s").test_perplexity is None
    assert summary_of(diverged, "fedavg").test_perplexity > 1


def at_the_end(store, config, **values):
    """Put scores and losses of a run's last two rounds, 3 and 4, in place of its own."""
    names = ", ".join(f"{name} = ?" for name in values)
    store.db.execute(
        f"UPDATE rounds SET {names} WHERE round > 2 AND run = ?", (*values.values(), config.key)
    )


@pytest.mark.parametrize(
    ("loss", "score", "found"),
    [
        (None, None, 3),
        (None, 0.6, 3),
        (99.0, 0.1, 3),
        (99.0, None, 3),
        (99.0, 0.6, None),  # sure of its mistakes, and yet it has learned
        (2.5, 0.05, None),
    ],
)
def test_a_run_has_diverged_if_its_model_is_useless_until_the_end(
    store, copy_runs, loss, score, found
):
    changed = copy_runs(store)
    assert {start for s in summarise(changed, 0.3) for start in s.diverged_from} == {None}
    (config,) = [c for c in changed.configs() if (c.selector, c.seed) == ("dp3s", 1)]
    at_the_end(changed, config, train_loss=loss, train_score=score)
    summary = summary_of(changed, "dp3s", 0.3)
    assert summary.diverged_from == (None, found, None)
    assert summary_row(summary, ["accuracy"])["seeds_diverged"] == (found is not None)
    document = to_json([summary], 0.3)["results"][0]
    assert document["diverged_from_by_seed"] == [None, found, None]


def test_a_model_that_got_well_again_has_not_diverged(store, copy_runs):
    changed = copy_runs(store)
    changed.db.execute("UPDATE rounds SET train_loss = 1e9, train_score = 0.1 WHERE round = 3")
    assert summary_of(changed, "dp3s").diverged_from == (None, None, None)


@pytest.mark.parametrize(("cohort", "wanted_missed"), [(5, 1), (4, 0), (2, 0), (9, 1)])
def test_clients_asked_in_reserve_are_not_missed(store, copy_runs, tmp_path, cohort, wanted_missed):
    """One of the five that were asked is left out in every round."""
    changed = copy_runs(store, change=lambda c: dataclasses.replace(c, cohort=cohort))
    changed.db.execute("UPDATE rounds SET left_out = json_array(cohort ->> 0) WHERE round > 0")
    for summary in summarise(changed, None):
        assert summary.left_out == 3 * 4
        assert summary.missed == wanted_missed * summary.left_out
    page = write_report(changed, tmp_path / "r.html", None).read_text("utf-8")
    assert ("24 client updates were left out" in page) == bool(wanted_missed)


def test_the_comparison_is_of_the_curves_that_the_target_is_of(store, copy_runs):
    """fedavg's test scores are put at 1 from the first round on, and its training scores stay."""
    changed = copy_runs(store)
    changed.db.execute(
        "UPDATE rounds SET test_score = 1 WHERE round > 0 AND run IN"
        " (SELECT run FROM runs WHERE json_extract(config, '$.selector') = 'fedavg')"
    )
    comparison = summary_of(changed, "dp3s", Target(0.99, "test")).comparison
    assert (comparison.difference, comparison.censored) == (4, True)
    assert summary_of(changed, "dp3s", Target(0.99)).comparison is None


def test_rounds_and_bytes_to_target_count_up_to_the_mean_curves_round(store):
    target = reachable_target(store)
    mean = np.mean(by_hand(store, "dp3s", "train_score"), axis=0)
    reached = int(np.argmax(mean >= target))
    down, up = by_hand(store, "dp3s", "bytes_down"), by_hand(store, "dp3s", "bytes_up")
    sent = [sum(d[: reached + 1]) + sum(u[: reached + 1]) for d, u in zip(down, up, strict=True)]

    summary = summary_of(store, "dp3s", target)

    assert summary.rounds_to_target == reached > 0
    assert summary.bytes_to_target == round(np.mean(sent))
    assert summary.total_bytes == round(np.mean(np.sum(down, axis=1) + np.sum(up, axis=1)))
    assert summary.bytes_to_target <= summary.total_bytes
    elapsed = np.sum(np.array(by_hand(store, "dp3s", "elapsed"))[:, : reached + 1], axis=1)
    assert summary.time_to_target == pytest.approx(elapsed.mean())
    assert summary.time_to_target > 0
    for seed, curve in enumerate(by_hand(store, "dp3s", "train_score")):
        first = next((t for t, accuracy in enumerate(curve) if accuracy >= target), None)
        assert summary.rounds_to_target_by_seed[seed] == first


def test_gemd_participation_and_times_are_means_over_rounds_and_seeds(store):
    summary = summary_of(store, "fedavg")
    gemds = [g for run in by_hand(store, "fedavg", "gemd") for g in run[1:]]
    assert summary.gemd == pytest.approx(np.mean(gemds))
    assert summary.gemd_sd == pytest.approx(np.std(gemds))
    variations = []
    for seed, cohorts in enumerate(by_hand(store, "fedavg", "cohort")):
        counts = np.zeros(20)
        for cohort in cohorts[1:]:
            counts[list(set(cohort))] += 1
        np.testing.assert_array_equal(summary.participation[seed], counts)
        variations.append(counts.std() / counts.mean())
    assert summary.participation_variation == pytest.approx(np.mean(variations))
    seconds = [s for run in by_hand(store, "fedavg", "seconds") for s in run[1:]]
    assert summary.seconds_per_round == pytest.approx(np.mean(seconds))


@pytest.fixture
def deserted(store, copy_runs, monkeypatch):
    """Nobody was ever there."""
    empty, records = copy_runs(store), store.records
    monkeypatch.setattr(
        empty,
        "records",
        lambda key: [dataclasses.replace(r, cohort=(), gemd=None) for r in records(key)],
    )
    return empty


def test_of_runs_in_which_nobody_was_there_participation_is_not_known(deserted, tmp_path):
    summary = summary_of(deserted, "fedavg", 0.3)
    assert (summary.participation_variation, summary.gemd) == (None, None)
    assert not summary.participation.any()
    assert "fedavg" in write_report(deserted, tmp_path / "r.html", 0.3).read_text("utf-8")


def test_bands_are_the_percentiles_of_all_resamples(store):
    curves = summary_of(store, "dp3s").train
    seeds = range(len(curves.seeds))
    means = [curves.seeds[list(draw)].mean(axis=0) for draw in itertools.product(seeds, repeat=3)]
    low, high = np.percentile(means, [2.5, 97.5], axis=0, method="inverted_cdf")
    spread = curves.seeds.max(axis=0) - curves.seeds.min(axis=0)
    assert np.all(np.abs(curves.low - low) <= 0.1 * spread + 1e-12)
    assert np.all(np.abs(curves.high - high) <= 0.1 * spread + 1e-12)
    assert np.all(curves.low <= curves.mean)
    assert np.all(curves.mean <= curves.high)


def test_summaries_are_repeatable(store):
    first, second = (json.dumps(to_json(summarise(store, 0.3), 0.3)) for _ in range(2))
    assert first == second


def test_an_unfinished_run_counts_the_rounds_that_all_seeds_have(store, copy_runs):
    cut = copy_runs(store, keep=lambda c, r: c.seed != 1 or r.round <= 2)
    whole, part = summary_of(store, "dp3s"), summary_of(cut, "dp3s")
    assert (part.rounds, part.unfinished, whole.unfinished) == (2, 1, 0)
    np.testing.assert_allclose(part.train.mean, whole.train.mean[:3])
    assert part.total_bytes < whole.total_bytes


def test_runs_without_a_round_are_passed_over(store, copy_runs):
    begun = copy_runs(store, keep=lambda c, _: c.seed != 2)
    assert summary_of(begun, "dp3s").seeds == (0, 1)
    assert summarise(copy_runs(store, keep=lambda *_: False), 0.9) == []


def test_one_seed_has_no_interval_and_no_comparison(store, copy_runs):
    single = copy_runs(store, change=lambda c: c if c.seed == 0 else None)
    summary = summary_of(single, "dp3s", reachable_target(store))
    assert summary.rounds_to_target is not None
    assert summary.interval is None
    assert summary.comparison is None
    np.testing.assert_array_equal(summary.train.low, summary.train.mean)


def test_only_the_asked_configs_are_summarised(store):
    asked = [c for c in store.configs() if c.selector == "fedavg" and c.seed < 2]
    (summary,) = summarise(store, None, asked)
    assert (summary.selector, summary.seeds) == ("fedavg", (0, 1))


def test_the_comparison_is_with_fedavg_over_shared_seeds(store, copy_runs):
    target = reachable_target(store)
    fewer = copy_runs(store, change=lambda c: None if (c.selector, c.seed) == ("fedavg", 0) else c)
    comparison = summary_of(fewer, "dp3s", target).comparison
    assert comparison.baseline == "fedavg"
    assert comparison.seeds == 2
    assert summary_of(fewer, "fedavg", target).comparison is None


@pytest.mark.parametrize(
    ("asked", "evaluated_on", "subset"), [(None, 1438, False), (5000, 1438, False), (50, 50, True)]
)
def test_a_subset_is_recognised(store, copy_runs, monkeypatch, asked, evaluated_on, subset):
    changed = copy_runs(store, change=lambda c: dataclasses.replace(c, eval_samples=asked))
    facts = changed.facts
    monkeypatch.setattr(changed, "facts", lambda k: facts(k) | {"train_evaluated_on": evaluated_on})
    summary = summary_of(changed, "dp3s")
    assert (summary.train_evaluated_on, summary.train_on_subset) == (evaluated_on, subset)


def test_json_holds_plain_values_and_null_for_what_is_unknown(store):
    document = json.loads(json.dumps(to_json(summarise(store, 0.999), 0.999), allow_nan=False))
    assert document["target"] == 0.999
    assert [r["selector"] for r in document["results"]] == ["dp3s", "fedavg"]
    for result in document["results"]:
        assert result["seeds"] == [0, 1, 2]
        assert result["rounds"] == 4
        assert result["rounds_to_target"] is None
        assert result["bytes_to_target"] is None
        assert len(result["train_accuracy"]) == len(result["evaluated_rounds"]) == 5
        assert len(result["test_accuracy"]) == 5
        assert 0 <= result["gemd"] <= 2
        assert result["seconds_per_round"] > 0


def test_without_test_data_there_is_no_test_accuracy(store, monkeypatch):
    records = store.records
    monkeypatch.setattr(
        store, "records", lambda k: [dataclasses.replace(r, test_score=None) for r in records(k)]
    )
    summaries = summarise(store, None)
    assert [s.test for s in summaries] == [None, None]
    assert to_json(summaries, None)["results"][0]["test_accuracy"] is None


def test_importing_summaries_needs_numpy_alone():
    code = (
        "import sys; heavy = ['torch', 'plotly', 'jinja2', 'matplotlib', 'rich', 'sklearn'];"
        "sys.modules.update(dict.fromkeys(heavy)); import fedcohort.report.summary"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
