import dataclasses
import lzma
import shutil
from pathlib import Path

import numpy as np
import pytest
from pack import main as pack_main
from pack import pack
from publish import finished, publish

from fedcohort.errors import StoreError
from fedcohort.leaderboard.conditions import conditions_of_study
from fedcohort.leaderboard.entries import BY_SEED, read_entry
from fedcohort.leaderboard.published import FILE, Published, write_published
from fedcohort.leaderboard.standings import MEASURES
from fedcohort.simulation import RoundRecord, Store
from fedcohort.simulation.merging import merge
from fedcohort.simulation.scores import Target
from fedcohort.simulation.study import read_study

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "studies" / "leaderboard.toml"
# The first condition of the board, as a study says it.
BOARD = """
[base]
dataset = "digits"
selector = ["fedavg", "match", "dp3s", "ward", "kcenter", "gemd-oracle"]
seeds = "0..2"
clients = 20
cohort = 5
rounds = 6
epochs = 3
lr = 0.3
[[part]]
name = "there"
skew = 1
target = 0.3
"""


def same(entry, other):
    assert entry.seeds == other.seeds
    assert (entry.target, entry.score) == (other.target, other.score)
    np.testing.assert_array_equal(entry.evaluated_rounds, other.evaluated_rounds)
    for name in BY_SEED:
        np.testing.assert_allclose(
            getattr(entry, name), getattr(other, name), rtol=1e-6, atol=1e-12, err_msg=name
        )
    assert entry.rounds_to_target == other.rounds_to_target


def test_what_is_read_is_what_the_store_holds(board, conditions, published):
    assert published.conditions == tuple(conditions)
    for condition in conditions:
        entries = published.entries(condition, condition.seeds)
        assert list(entries) == list(condition.selectors)
        for name, entry in entries.items():
            same(entry, read_entry(board, condition.runs(name), name, condition.target))


def test_some_seeds_are_those_of_the_store(board, conditions, published):
    condition = conditions[1]
    entry = published.entries(condition, [2])["match"]
    same(entry, read_entry(board, condition.runs("match", [2]), "match", condition.target))


def test_where_nobody_was_ever_chosen_participation_is_not_known(board, conditions, monkeypatch):
    condition, records = conditions[0], board.records
    monkeypatch.setattr(
        board,
        "records",
        lambda key: [dataclasses.replace(r, cohort=(), gemd=None) for r in records(key)],
    )
    entry = read_entry(board, condition.runs("match"), "match", condition.target)
    assert np.isnan(entry.participation_variation).all()
    assert MEASURES["participation_variation"](entry) is None


def test_test_scores_do_not_need_training_scores(board, conditions, tmp_path):
    """The training score of the first seed alone is no number."""
    condition = conditions[0]
    configs, target = condition.runs("match"), Target(0.3, "test")
    whole = read_entry(board, configs, "match", target)
    with Store(tmp_path / "store") as store:
        merge(store, board.folder)
        store.db.execute("UPDATE rounds SET train_score = NULL WHERE run = ?", (configs[0].key,))
        entry = read_entry(store, configs, "match", target)
    np.testing.assert_array_equal(entry.evaluated_rounds, whole.evaluated_rounds)
    np.testing.assert_array_equal(entry.test, whole.test)
    assert np.isnan(entry.train[0]).all()
    np.testing.assert_array_equal(entry.train[1:], whole.train[1:])
    assert (entry.final("train"), entry.final("test")) == (None, whole.final("test"))


@pytest.mark.parametrize("scores", [[-0.123456789, np.pi / 4], [-0.5, 0.75]])
def test_scores_that_are_no_shares_of_samples_are_kept_as_they_are(tmp_path, conditions, scores):
    """R² of a regression, without a test part."""
    condition = dataclasses.replace(conditions[0], selectors=("fedavg",), seeds=(0,))
    with Store(tmp_path / "store") as store:
        (config,) = condition.runs("fedavg")
        facts = {"clients": 20, "device": "CPU", "torch": "2", "score": "R²"}
        store.begin(config, facts | {"train_evaluated_on": 10}, {})
        records = [RoundRecord(round=r, train_score=s, cohort=(r,)) for r, s in enumerate(scores)]
        store.save({config.key: records}, done=True)
        with open(tmp_path / "kept.npz", "wb") as file:
            write_published(file, [condition], store)
    entry = Published(tmp_path / "kept.npz").entries(condition, [0])["fedavg"]
    assert (entry.train[0].tolist(), entry.score) == (scores, "R²")
    assert entry.final("test") is None
    assert np.isnan(entry.gemd).all()


def test_the_file_of_the_package_is_small_and_declared_in_the_study():
    assert FILE.stat().st_size <= 1.5e6
    declared = {c.name: c for c in conditions_of_study(read_study(STUDY))}
    found = Published().conditions
    assert any(c.config.dataset == "digits" for c in found)
    for condition in found:
        said = declared[condition.name]
        assert (condition.title, condition.config) == (said.title, said.config)
        assert condition.target == said.target
        assert set(condition.seeds) <= set(said.seeds)
        assert set(condition.selectors) <= set(said.selectors)


@pytest.mark.slow
def test_the_file_of_the_package_agrees_with_the_committed_stores(tmp_path):
    published = Published()
    stores = list((ROOT / "docs" / "results").glob("leaderboard*.sqlite.xz"))
    if not stores:
        pytest.skip("a source distribution has no stores of results")
    with Store(tmp_path / "all") as store:
        for packed in stores:
            folder = tmp_path / packed.stem
            folder.mkdir()
            with lzma.open(packed) as read, open(folder / "results.sqlite", "wb") as file:
                shutil.copyfileobj(read, file)
            merge(store, folder)
        assert set(published.conditions) == set(
            finished(conditions_of_study(read_study(STUDY)), store)
        )
        for i, condition in enumerate(published.conditions):
            # One rule in each condition, each time another: all of them take half a minute.
            name = condition.selectors[i % len(condition.selectors)]
            entry = published.entries(condition, condition.seeds)[name]
            same(entry, read_entry(store, condition.runs(name), name, condition.target))


def test_a_rule_that_lacks_a_seed_does_not_cost_the_others_theirs(board, tmp_path, capsys):
    folder = tmp_path / "store"
    lacks = next(c for c in board.configs() if (c.selector, c.skew, c.seed) == ("match", "1", 2))
    with Store(folder) as store:
        merge(store, board.folder)
        store.db.execute("UPDATE runs SET done = 0 WHERE run = ?", (lacks.key,))
    study = tmp_path / "study.toml"
    study.write_text(BOARD)
    publish([folder], tmp_path / "some.npz", study)
    assert capsys.readouterr().err == "digits-1: left out are the selectors match.\n"
    (found,) = Published(tmp_path / "some.npz").conditions
    assert (len(found.selectors), found.seeds) == (5, (0, 1, 2))


def test_what_is_not_finished_is_left_out_and_named(board, tmp_path, capsys):
    more = """
    [[part]]
    name = "not begun"
    skew = "H"
    target = 0.3
    [[part]]
    name = "no target"
    skew = 0.5
    dropout = 0.3
    [[part]]
    name = "neither"
    skew = "iid"
    """
    asked = BOARD.replace('oracle"]', 'oracle", "afl"]').replace("0..2", "0..3")
    (tmp_path / "study.toml").write_text(asked + more)
    publish([board.folder], tmp_path / "some.npz", tmp_path / "study.toml")
    said = capsys.readouterr().err.splitlines()
    uniform = [c for c in board.configs() if (c.selector, c.dropout) == ("fedavg", 0.3)]
    curves = [[record.test_score for record in board.records(c.key)] for c in uniform]
    highest = max(level for level in np.arange(21) / 20 if np.mean(curves, axis=0).max() >= level)
    assert 0 < highest < 1
    assert said == [
        "'no target' has no target in the study, and is left out: fedavg reaches"
        f" {highest:g} on the test part in Digits, ξ = 0.5.",
        "digits-1: left out are the selectors afl.",
        "digits-1: left out are the seeds 3.",
        "digits-H is left out.",
    ]
    (condition,) = Published(tmp_path / "some.npz").conditions
    assert (condition.name, condition.seeds) == ("digits-1", (0, 1, 2))
    assert "afl" not in condition.selectors


def test_where_runs_were_made_is_kept(board, conditions, published):
    facts = board.facts(conditions[0].runs("fedavg")[0].key)
    origin = published.origins[conditions[0].name]
    assert (origin.device, origin.torch) == (facts["device"], facts["torch"])
    assert str(origin).endswith(f"(PyTorch {facts['torch']}, float32)")


def test_targets_on_the_test_part_travel(board, conditions, tmp_path):
    tested = [dataclasses.replace(c, target=Target(0.3, "test")) for c in conditions]
    with open(tmp_path / "tested.npz", "wb") as file:
        write_published(file, tested, board)
    found = Published(tmp_path / "tested.npz")
    assert found.conditions == tuple(tested)
    entry = found.entries(tested[0], [0, 1, 2])["match"]
    same(entry, read_entry(board, tested[0].runs("match"), "match", Target(0.3, "test")))
    np.testing.assert_array_equal(entry.curve, entry.test)


def test_the_worst_decile_is_that_of_the_clients_scores(board, conditions, published):
    config = conditions[0].runs("dp3s", [1])[0]
    scores = sorted(s.score for s in board.final_scores(config.key, "client") if s.part == "train")
    (worst,) = published.entries(conditions[0], [1])["dp3s"].worst_decile
    assert worst == pytest.approx(np.mean(scores[:2]))


def test_a_packed_store_publishes_what_the_store_does(board, conditions, tmp_path, capsys):
    """Runs that are not finished stay out of it, and so do the losses of single clients."""
    (unfinished,) = conditions[0].runs("fedavg", [9])
    begun = tmp_path / "begun"
    with Store(begun) as store:
        merge(store, board.folder)
        store.begin(unfinished, {}, {})
    pack_main([str(begun), str(tmp_path / "small.sqlite.xz")])
    assert "small.sqlite.xz: " in capsys.readouterr().out
    with Store(tmp_path / "all") as store:
        unpacked = tmp_path / "unpacked"
        unpacked.mkdir()
        packed = (tmp_path / "small.sqlite.xz").read_bytes()
        (unpacked / "results.sqlite").write_bytes(lzma.decompress(packed))
        merge(store, unpacked)
        assert {c.key for c in store.configs()} == {c.key for c in board.configs()}
        for condition in conditions:
            args = condition.runs("match"), "match", condition.target
            same(read_entry(store, *args), read_entry(board, *args))
        scores = store.final_scores(conditions[0].runs("match")[0].key, "client")
    assert {s.loss for s in scores} == {None}
    with Store.existing(begun) as store:
        assert store.final_scores(conditions[0].runs("match")[0].key, "client")[0].loss is not None


def test_only_a_store_is_packed(tmp_path):
    with pytest.raises(StoreError, match="There are no results"):
        pack(tmp_path / "nothing", tmp_path / "small.sqlite.xz")
    assert not (tmp_path / "small.sqlite.xz").exists()


def test_targets_on_the_test_part_are_the_highest_that_fedavg_reaches():
    """In steps of 5 %, so that nobody chose them to suit a rule."""
    published = Published()
    tested = [c for c in published.conditions if c.target.on == "test"]
    assert tested
    for condition in tested:
        peak = published.entries(condition, condition.seeds)["fedavg"].peak("test")
        assert condition.target.score == pytest.approx(int(20 * peak + 1e-9) / 20), condition.name
