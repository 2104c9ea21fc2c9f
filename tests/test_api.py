"""The simulator from Python."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from torch import nn

import fedcohort
from fedcohort import FedAvg, Match, Results, simulate
from fedcohort.errors import InvalidInputError, StoreError, UnknownNameError
from fedcohort.federation import Dataset, load_dataset
from fedcohort.parameters import Interval, parameter
from fedcohort.selection import Selector, always, only
from fedcohort.simulation import Store

SMALL = {"clients": 12, "cohort": 4, "rounds": 3, "progress": False}


@dataclasses.dataclass(kw_only=True, eq=False)
class First(Selector):
    """The first clients, from some place on."""

    start: int = parameter(0, Interval(0, integral=True))

    def _choose(self, k, rows, rng):  # noqa: ARG002
        return self._cohort(np.roll(rows, -self.start)[:k])


@pytest.fixture(scope="module")
def results():
    return simulate(selectors=["match", "fedavg"], seeds=range(2), lr=1, **SMALL)


def test_rounds_are_a_frame_with_a_row_per_run_and_round(results):
    rounds = results.rounds
    assert isinstance(rounds, pd.DataFrame)
    assert len(rounds) == 2 * 2 * 4
    assert set(rounds.selector) == {"match", "fedavg"}
    assert rounds[rounds["round"] > 0].gemd.notna().all()


def test_a_target_that_nobody_reaches_is_unknown_and_not_left_out(results):
    summary = results.summary(target=1.0)
    assert summary.rounds_to_target.isna().all()
    assert "time_to_target" not in summary


def test_the_summary_has_a_row_per_selector(results):
    summary = results.summary(target=0.1)
    assert list(summary.index) == ["match", "fedavg"]
    assert (summary.seeds == 2).all()
    assert "rounds_to_target" in summary


def test_models_outlive_the_results_they_came_from():
    few = {"selectors": ["fedavg"], "rounds": 1, "clients": 5, "cohort": 2, "progress": False}
    assert len(simulate(model="mlp", **few).models["fedavg", 0]) == 4


def test_models_are_the_final_weights(results):
    model = fedcohort.training.models.MODELS["cnn-small"]((1, 8, 8), 10)
    assert set(results.models) == {(s, seed) for s in ("match", "fedavg") for seed in (0, 1)}
    state = results.models["match", 0]
    model.load_state_dict(state)
    data = load_dataset("digits")
    x = (data.x_test / data.scale - data.mean) / data.std
    right = model(fedcohort.api.torch.from_numpy(x).float()).argmax(1).numpy() == data.y_test
    rows = results.rounds.query("selector == 'match' and seed == 0")
    assert right.mean() == pytest.approx(rows.iloc[-1].test_accuracy, abs=1e-9)


def test_report_and_plot_are_made_from_the_same_runs(results, tmp_path):
    axes = results.plot()
    plt.close(axes.figure)
    assert [line.get_label() for line in axes.get_lines()] == ["match", "fedavg"]
    with pytest.raises(UnknownNameError, match="test_accuracy"):
        results.plot("test_acuracy")
    page = results.report(tmp_path / "r.html", target=0.1)
    assert "fedavg" in page.read_text()
    assert "match" in results._repr_html_()


def test_a_mean_is_not_drawn_where_a_seed_has_no_score(tmp_path):
    results = simulate(selectors=["fedavg"], seeds=[0, 1], out=tmp_path, **SMALL)
    with Store.existing(tmp_path) as store:
        store.db.execute(
            "UPDATE rounds SET test_score = NULL WHERE round > 0 AND run = ?",
            (store.configs()[0].key,),
        )
    (line,) = results.plot(ax=Figure().subplots()).lines
    assert line.get_xdata().tolist() == [0]


def test_results_are_loaded_from_a_folder_and_nothing_is_done_twice(tmp_path):
    first = simulate(selectors=["fedavg"], out=tmp_path, **SMALL)
    before = first.rounds.seconds.tolist()
    again = simulate(selectors=["fedavg"], out=tmp_path, **SMALL)
    assert again.rounds.seconds.tolist() == before
    assert Results.load(tmp_path).rounds.equals(first.rounds)


def test_settings_in_one_folder_are_told_apart(tmp_path):
    alone = [
        simulate(selectors=["fedavg", "match"], out=tmp_path, **SMALL | {"lr": lr})
        for lr in (0.01, 0.5)
    ]
    both = Results.load(tmp_path)
    settings = ["Digits, ξ = 1, lr 0.01", "Digits, ξ = 1, lr 0.5"]
    assert both.rounds.setting.unique().tolist() == settings
    assert both.summary().setting.unique().tolist() == settings
    assert "setting" not in alone[0].rounds
    axes = both.plot(ax=Figure().subplots())
    drawn = {line.get_label(): line.get_ydata() for line in axes.lines}
    for results, setting in zip(alone, settings, strict=True):
        rows = results.rounds[results.rounds.selector == "fedavg"]
        expected = rows.groupby("round").test_accuracy.mean()
        assert drawn[f"{setting}: fedavg"] == pytest.approx(expected.dropna())
    with pytest.raises(StoreError, match="2 models of 'fedavg' with seed 0, in different settings"):
        both.models["fedavg", 0]


def test_objects_are_taken_for_data_models_and_selectors():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    x = (rng.normal(size=(60, 5)) + 4 * np.eye(3, 5)[y]).astype(np.float32)
    owners = np.arange(60) % 6
    names = tuple("abcdef")
    mine = Dataset(
        "mine", x, y, x[:0], y[:0], classes=3, client=owners, client_names=names, inputs="table"
    )
    found = simulate(
        dataset=mine,
        model=lambda shape, classes: nn.Linear(shape[0], classes),
        selectors=[First(start=2), First, Match(evenness="free"), FedAvg],
        cohort=2,
        rounds=2,
        profile="gradient",
        progress=False,
    )
    cohorts = found.rounds[found.rounds["round"] == 1].set_index("selector").cohort
    assert cohorts["First:start=2"] == (2, 3)
    assert cohorts["First"] == (0, 1)
    assert set(cohorts.index) == {"First:start=2", "First", "match:evenness=free", "fedavg"}


def test_numbers_of_numpys_are_numbers(results):
    given = {"clients": np.int64(12), "cohort": np.int32(4), "rounds": np.int8(3)}
    found = simulate(
        selectors=["fedavg"], seeds=np.arange(1), lr=np.float64(1), progress=False, **given
    )
    expected = results.rounds[(results.rounds.selector == "fedavg") & (results.rounds.seed == 0)]
    assert found.rounds.test_accuracy.tolist() == expected.test_accuracy.tolist()


def test_a_temporary_folder_goes_with_its_results():
    script = (
        "from fedcohort import simulate\n"
        "found = simulate(selectors=['fedavg'], rounds=1, clients=12, cohort=4, progress=False)\n"
        "print(found.folder)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", script],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert not Path(done.stdout.strip()).exists()


def test_other_processes_know_classes_of_ones_own(tmp_path):
    given = {"selectors": [First, only(First(start=2), range(9))], **SMALL}
    alone = simulate(**given)
    together = simulate(workers=2, out=tmp_path, **given)
    assert together.rounds.cohort.tolist() == alone.rounds.cohort.tolist()


def test_wrapped_selectors_are_runs_of_their_own_by_whom_they_are_for(tmp_path):
    some, others = [1, 3, 5, 7, 9, 11], [0, 2, 4, 6, 8, 10]
    given = [
        only("match", some),
        only("match", others),
        always(Match(evenness="free"), [2]),
        "match",
    ]
    results = simulate(selectors=given, out=tmp_path, **SMALL)
    trained = results.rounds.query("round > 0")
    cohorts = trained.groupby("selector").cohort.agg(list)
    assert len(cohorts) == 4
    assert all(set(cohort) <= set(some) for cohort in cohorts["only(match; 1; 3; 5; 7; 9; 11)"])
    assert all(set(cohort) <= set(others) for cohort in cohorts["only(match; 0; 2; 4; 6; 8; 10)"])
    assert all(2 in cohort for cohort in cohorts["always(match:evenness=free; 2)"])
    again = simulate(selectors=given[:1], out=tmp_path, **SMALL)
    pd.testing.assert_frame_equal(
        again.rounds, results.rounds.query("selector.str.contains('; 1;')").reset_index(drop=True)
    )


def test_other_data_under_the_same_name_are_another_run(tmp_path):
    data = load_dataset("digits")
    turned = dataclasses.replace(data, x_train=data.x_train[:, :, ::-1].copy())
    kept = [
        simulate(dataset=d, selectors=["fedavg"], out=tmp_path, **SMALL).rounds.train_loss.tolist()
        for d in (data, turned, data)
    ]
    assert kept[0] == kept[2] != kept[1]


def test_a_target_that_nobody_can_reach_is_refused(results):
    with pytest.raises(InvalidInputError, match=r"target must be .*not 90: write 0\.9 for 90 %"):
        results.summary(target=90)
    with pytest.raises(InvalidInputError, match=r"target must be .*not '0\.9'"):
        results.report(target="0.9")


def test_what_is_wrong_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'rounds'"):
        simulate(round=3, out=tmp_path / "a")
    with pytest.raises(InvalidInputError, match="no selector here but selectors: give selectors="):
        simulate(selector="match", out=tmp_path / "a")
    with pytest.raises(InvalidInputError, match=r"no seed here but seeds: give seeds=\[3\]"):
        simulate(seed=3, out=tmp_path / "a")
    with pytest.raises(InvalidInputError):
        simulate(selectors=["mtch"], out=tmp_path / "a")
    np.save(tmp_path / "trace.npy", np.ones((3, 5)))
    for wrong, said in {
        ("availability", str(tmp_path / "trace.npy")): "trace has 5 clients where .* has 100",
        ("dataset", ()): "dataset must be a name, a file or a Dataset, not a tuple",
        ("selectors", "match"): r'must be a list, such as \["match"\], not \'match\'',
        ("selectors", ()): "selectors is empty",
        ("seeds", "12"): "seeds must be a list",
        ("seeds", 3): "seeds must be a list",
        ("seeds", (True,)): r"seed of the run must be a whole number.*not True",
        ("model", nn.Linear(64, 10)): "model is a Linear that is made already",
        ("seeds", (0.5,)): r"seed of the run must be a whole number.*not 0\.5",
        ("workers", 0): "workers must be a whole number at least 1, not 0",
    }.items():
        with pytest.raises(InvalidInputError, match=said):
            simulate(**dict([wrong]), out=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_file_of_data_is_given_as_a_path(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", x=rng.normal(size=(40, 3)), y=np.arange(40) % 2)
    few = {"clients": 4, "cohort": 2, "rounds": 2, "progress": False}
    losses = [
        simulate(dataset=kind(tmp_path / "mine.npz"), selectors=["fedavg"], **few).rounds.train_loss
        for kind in (Path, str)
    ]
    assert losses[0].tolist() == losses[1].tolist()


def test_numbers_and_words_are_read_as_in_study_files(results):
    alike = simulate(selectors=["match"], seeds=range(2), skew=1, batch_size="full", lr=1, **SMALL)
    ours = results.rounds.query("selector == 'match'").train_loss
    assert alike.rounds.train_loss.tolist() == ours.tolist()


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, fedcohort; print(*sorted({'torch', 'pandas', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
