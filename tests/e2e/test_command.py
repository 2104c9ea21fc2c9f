"""The real command, as a user calls it."""

import csv
import gzip
import importlib.metadata
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedcohort.simulation import Store
from fedcohort.simulation.groups import group_states

from .conftest import COMMAND

SMALL = ("--clients", "20", "--cohort", "5", "--epochs", "2")


def test_the_demo_prints_a_table_and_writes_a_page(fedcohort, tmp_path):
    done = fedcohort("demo", "--json")
    assert done.returncode == 0, done.stderr
    results = {r["selector"]: r for r in json.loads(done.stdout)["results"]}
    assert results.keys() == {"match", "dp3s", "clustered", "fedavg", "fedsae"}
    needed = {name: r["rounds_to_target"] or r["rounds"] + 1 for name, r in results.items()}
    assert needed["dp3s"] < needed["fedavg"]
    assert results["dp3s"]["gemd"] < 0.5 * results["fedavg"]["gemd"]
    page = (tmp_path / "fedcohort-demo" / "report.html").read_text()
    assert "dp3s" in page
    loads = re.search(r"<(script|link|img|iframe)\b[^>]*(src|href)=[\"']?(https?:)?//", page)
    assert not loads, "the page must work offline"
    again = fedcohort("demo")
    assert "25 of 25 runs are in fedcohort-demo already" in again.stderr
    assert re.search(r"dp3s +\d+", again.stdout)


def test_what_a_model_prints_is_not_in_the_document(fedcohort, tmp_path):
    (tmp_path / "talks.py").write_text(
        "import torch\nprint('imported')\n\n\nclass Net(torch.nn.Module):\n"
        "    def __init__(self, shape, classes):\n        super().__init__()\n"
        "        self.out = torch.nn.Linear(64, classes)\n\n"
        "    def forward(self, x):\n        print('forward')\n"
        "        return self.out(x.flatten(1))\n"
    )
    done = fedcohort("run", *SMALL, "--rounds", "1", "--model", "talks.py:Net", "--json")
    assert done.returncode == 0, done.stderr
    assert [r["selector"] for r in json.loads(done.stdout)["results"]] == ["dp3s", "fedavg"]
    assert "imported" in done.stderr
    assert "forward" in done.stderr


def test_run_prints_one_json_document(fedcohort):
    done = fedcohort(
        "run", *SMALL, "--rounds", "4", "--seeds", "0..1", "--selector", "dp3s",
        "--selector", "fedsae:beta=0.05", "--target", "0.2", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert [r["selector"] for r in results] == ["dp3s", "fedsae:beta=0.05"]
    assert "Profiles are read from the outputs of fc1." in done.stderr
    assert [r["profile"] for r in results] == ["outputs of fc1", None]
    assert [len(r["clients"]) for r in results] == [1, 1]
    for result in results:
        assert result["seeds"] == [0, 1]
        assert result["rounds"] == 4
        assert len(result["train_accuracy"]) == 5, "round 0 is the initial model"
        assert len(result["test_accuracy"]) == 5
        assert result["seconds_per_round"] > 0


def test_a_run_gives_the_same_numbers_alone_and_beside_others(warm_fedcohort):
    options = ("run", *SMALL, "--rounds", "4", "--json", "--selector", "dp3s", "--seeds", "3")
    alone = json.loads(warm_fedcohort(*options, "--out", "alone").stdout)["results"][0]
    both = warm_fedcohort(*options, "--selector", "fedavg", "--out", "both")
    beside = json.loads(both.stdout)["results"][0]
    assert beside["gemd"] == alone["gemd"]
    assert beside["train_accuracy"] == pytest.approx(alone["train_accuracy"], abs=1e-3)


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    command = [COMMAND, "run", *SMALL, "--rounds", "2000", "--eval-every", "2000"]
    started = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    # The engine enters its runs in the store right before the first round.
    store = tmp_path / "fedcohort-out" / "results.sqlite"
    deadline = time.monotonic() + 120
    while started.poll() is None and time.monotonic() < deadline and not _runs(store):
        os.sched_yield()
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=120)
    assert started.returncode == 130, said
    assert "to resume: fedcohort run --clients 20" in said
    with Store.existing(tmp_path / "fedcohort-out") as saved:
        keys = [config.key for config in saved.configs()]
        assert len(keys) == 2
        (group,) = group_states(saved)
        assert 0 < group.round < 2000
        assert not group.holder
        assert {saved.records(key)[-1].round for key in keys} == {group.round}


def _runs(store):
    """Count the runs in a store that may not exist yet."""
    try:
        with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as db:
            return db.execute("SELECT count(*) FROM runs").fetchone()[0]
    except sqlite3.Error:
        return 0


def test_mnist_from_the_data_folder(fedcohort, mnist):  # noqa: ARG001
    done = fedcohort(
        "run", "--dataset", "mnist", "--skew", "1", "--selector", "dp3s", "--selector", "fedavg",
        "--samples-per-client", "100", "--rounds", "12", "--eval-every", "12", "--seeds", "0..1",
        "--model", "mlp", "--eval-samples", "1000", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    gemd = {r["selector"]: r["gemd"] for r in json.loads(done.stdout)["results"]}
    # 24 cohorts: dp3s has about .15 with only 100 samples a client; uniform .66 ± .03.
    assert gemd["dp3s"] < 0.2
    assert 0.5 < gemd["fedavg"] < 0.8


def test_select_prints_one_line_of_distinct_ids(fedcohort, tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "profiles.npy", rng.normal(size=(30, 6)))
    options = ("select", "--profiles", "profiles.npy", "-k", "4", "--selector", "dp3s")
    one, two = fedcohort(*options, "--seed", "0"), fedcohort(*options, "--seed", "0")
    assert re.fullmatch(r"\d+( \d+){3}\n", one.stdout)
    assert one.stdout == two.stdout
    assert {fedcohort(*options, "--seed", s).stdout for s in range(1, 4)} != {one.stdout}


def test_the_module_is_the_command_and_tells_its_version():
    command = [sys.executable, "-m", "fedcohort", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"fedcohort {importlib.metadata.version('fedcohort')}\n"


def test_data_fetch_finds_what_is_there(fedcohort, mnist):  # noqa: ARG001
    done = fedcohort("data", "fetch", "mnist")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("mnist")


def _npz(path, **changes):
    arrays = {"x": np.ones((6, 4)), "y": [0, 1, 0, 1, 0, 1], "client": [0, 0, 1, 1, 2, 2]}
    arrays |= changes
    np.savez(path, **{name: a for name, a in arrays.items() if a is not None})


WRONG = {
    "dataset": (["run", "--dataset", "mnits"], "did you mean 'mnist'"),
    "selector": (["run", "--selector", "dp3"], "did you mean 'dp3s'"),
    "cohort": (["run", "--cohort", "200"], "at most the 100 clients"),
    "skew": (["run", "--skew", "1.5"], r"\[0, 1\] or be H"),
    "negative skew": (["run", "--skew=-0.1"], r"\[0, 1\] or be H"),
    "batch": (["run", "--batch-size", "half"], "whole number at least 1, or full"),
    "no number": (["run", "--lr", "much"], "--lr must be a number above 0, not 'much'"),
    "target": (["run", "--target", "90"], r"--target must be .* not 90\.0: write 0\.9 for 90 %"),
    "target of a report": (["report", "nothing", "--target", "90"], r"--target .* write 0\.9"),
    "target on": (["run", "--target-on", "tests"], "--target-on must be one of 'train', 'test'"),
    "target on nothing": (["report", "nothing", "--target-on", "test"], "give one too"),
    "no test part": (
        ["run", "--dataset", "good.npz", "--cohort", "2", "--target-on", "test"],
        r"test score on 'good\.npz', which has no test samples",
    ),
    "no target": (["run", "--target", "0"], "--target must be a number above 0"),
    "ignored": (
        ["run", "--dataset", "good.npz", "--clients", "7", "--skew", "iid", "--cohort", "2"],
        r"good\.npz has clients of its own.*leave out skew iid and clients 7",
    ),
    "ignored skew": (
        ["run", "--dataset", "good.npz", "--skew", "iid", "--cohort", "2"],
        r"good\.npz has clients of its own.*leave out skew iid\.",
    ),
    "ignored promise": (["run", "--profile-delta", "1e-6"], "belongs to a profile_epsilon"),
    "seeds": (["run", "--seeds", "1-3"], r"0\.\.9"),
    "device": (["run", "--device", "tpu"], "auto, cpu or cuda"),
    "model": (["run", "--model", "cnnn"], "did you mean 'cnn'"),
    "layer": (["run", "--profile-layer", "fc3"], "has no layer 'fc3': choose one of conv1"),
    "no BatchNorm": (["run", "--normalisation", "local"], "has no BatchNorm layer: leave it out"),
    "no images": (
        ["run", "--dataset", "good.npz", "--cohort", "2", "--augment", "flip"],
        r"is flip, which is for images, and good\.npz has none: leave it out",
    ),
    "nothing left": (["run", "--augment", "crop:8"], "are of 8 × 8 pixels: crop by less than 8"),
    "loss": (["run", "--loss", "hubert"], "did you mean 'huber'"),
    "no such loss": (["run", "--loss", "math:nothing"], "defines no 'nothing'"),
    "task": (["run", "--task", "regression"], "digits is made for classification"),
    "score": (["run", "--score", "AUROC"], "judged by accuracy: take that, or auto"),
    "no file": (["run", "--dataset", "missing.npz"], "missing.npz"),
    "not a number": (["run", "--dataset", "nan.npz"], "row 2"),
    "missing array": (["run", "--dataset", "no-y.npz"], "lacks the array y"),
    "mismatch": (["run", "--dataset", "short.npz"], "short.npz"),
    "empty client": (["run", "--dataset", "empty.npz"], "nobody"),
    "more than the file": (["run", "--dataset", "good.npz", "--cohort", "4"], "3 clients"),
    "out": (["run", "--out", "file/inside"], "file/inside"),
    "report": (["report", "nothing"], "no results in 'nothing'"),
    "profiles": (["select", "--profiles", "none.npy", "-k", "2"], "none.npy"),
    "select k": (["select", "--profiles", "p.npy", "-k", "9"], "cohort of 9"),
    "select nan": (["select", "--profiles", "bad.npy", "-k", "2"], "client 1"),
    "select needs": (
        ["select", "--profiles", "p.npy", "-k", "2", "--selector", "fedsae"],
        "also needs the loss",
    ),
    "fetch": (["data", "fetch", "cifar"], "cifar"),
    "no such option": (["run", "--sekew", "1"], "No such option"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_sentence_and_exit_code_2(case, warm_fedcohort, tmp_path):
    (tmp_path / "file").write_text("in the way")
    _npz(tmp_path / "good.npz")
    _npz(tmp_path / "nan.npz", x=np.where(np.arange(6)[:, None] == 2, np.nan, 1.0) * np.ones(4))
    _npz(tmp_path / "no-y.npz", y=None)
    _npz(tmp_path / "short.npz", y=[0, 1])
    _npz(tmp_path / "empty.npz", clients=["0", "1", "2", "nobody"])
    np.save(tmp_path / "p.npy", np.eye(5))
    np.save(tmp_path / "bad.npy", np.array([[1.0], [np.nan], [2.0]]))
    before = sorted(tmp_path.rglob("*"))
    arguments, complaint = WRONG[case]
    done = warm_fedcohort(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert re.search(complaint, done.stderr), done.stderr
    if case != "no such option":
        assert re.fullmatch(r"Error: [^\n]+\n", done.stderr), done.stderr
    assert sorted(tmp_path.rglob("*")) == before, "something was left behind"


def _one_run(fedcohort, *options):
    done = fedcohort(
        "run", *options, "--rounds", "2", "--selector", "fedavg", "--out", "same", "--json"
    )
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    return result, "already" in done.stderr


def _tables(fedcohort, tmp_path):
    assert fedcohort("study", "export", "same", "--to", "tables").returncode == 0
    with (tmp_path / "tables" / "summary.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_data_that_were_replaced_are_trained_on_anew(warm_fedcohort, tmp_path):
    options = ("--dataset", "my.npz", "--cohort", "2")
    _npz(tmp_path / "my.npz", x=np.eye(6))
    first, _ = _one_run(warm_fedcohort, *options)
    again, known = _one_run(warm_fedcohort, *options)
    assert known
    assert again["train_accuracy"] == first["train_accuracy"]
    _npz(tmp_path / "my.npz", x=np.eye(6), y=[0, 0, 1, 2, 1, 0])
    other, known = _one_run(warm_fedcohort, *options)
    assert not known
    assert other["train_accuracy"] != first["train_accuracy"]
    shown = _tables(warm_fedcohort, tmp_path)
    assert [(row["skew"], row["clients"]) for row in shown] == [("natural", "3")] * 2
    assert len({row["content"] for row in shown}) == 2
    page = warm_fedcohort("report", "same")
    assert page.returncode == 0, page.stderr
    text = (tmp_path / "same" / "report.html").read_text()
    assert all(f"my.npz, its own clients, content {row['content'][:6]}" in text for row in shown)


def test_a_model_that_was_replaced_is_trained_anew(warm_fedcohort, tmp_path):
    model = "from torch import nn\n\ndef make(shape, classes):\n    return nn.Sequential({})\n"
    layers = "nn.Flatten(), nn.Linear(64, 4), nn.{}(), nn.Linear(4, classes)"
    options = (*SMALL, "--model", "mymodel:make")
    found = []
    for activation in ("ReLU", "ReLU", "Sigmoid"):
        (tmp_path / "mymodel.py").write_text(model.format(layers.format(activation)))
        found.append(_one_run(lambda *a: warm_fedcohort(*a, PYTHONPATH=_path(tmp_path)), *options))
    assert [known for _, known in found] == [False, True, False]
    assert found[0][0]["train_accuracy"] == found[1][0]["train_accuracy"]
    assert found[0][0]["train_accuracy"] != found[2][0]["train_accuracy"]
    assert len(_tables(warm_fedcohort, tmp_path)) == 2


def test_models_are_saved_and_lost_ones_are_said_before_any_training(warm_fedcohort, tmp_path):
    options = ("run", *SMALL, "--rounds", "2", "--selector", "fedavg")
    assert warm_fedcohort(*options, "--out", "plain").returncode == 0
    more = (*options, "--selector", "match", "--save-model", "saved")
    refused = warm_fedcohort(*more, "--out", "plain")
    assert refused.returncode == 2
    assert re.fullmatch(r"Error: The models of 1 of 2 runs in 'plain' [^\n]+\n", refused.stderr)
    with Store.existing(tmp_path / "plain") as store:
        assert [config.selector for config in store.configs()] == ["fedavg"]
    # What was kept is found again, and the others are done.
    for given in (options + more[-2:], more):
        done = warm_fedcohort(*given, "--out", "other")
        assert done.returncode == 0, done.stderr
    names = {path.name.split("-")[2] for path in (tmp_path / "saved").glob("*.pt")}
    assert names == {"fedavg", "match"}


def _path(folder):
    return os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(folder))))


@pytest.mark.parametrize("damage", ["truncated", "corrupt"])
def test_a_damaged_data_file_is_refused_by_name(warm_fedcohort, tmp_path, mnist, damage):  # noqa: ARG001
    source = os.path.join(os.environ["FEDCOHORT_DATA"], "mnist")
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for name in os.listdir(source):
        content = Path(source, name).read_bytes()
        if name.startswith("train-images"):
            content = content[: len(content) // 2] if damage == "truncated" else gzip.compress(b"x")
        (folder / name).write_bytes(content)
    done = warm_fedcohort("run", "--dataset", "mnist", FEDCOHORT_DATA=str(tmp_path / "data"))
    assert done.returncode == 2
    assert re.fullmatch(r"Error: [^\n]*train-images-idx3-ubyte\.gz[^\n]*\n", done.stderr)


def test_figures_are_drawn_and_the_missing_ones_named(warm_fedcohort, figures, tmp_path):
    warm_fedcohort("run", *SMALL, "--rounds", "2", "--seeds", "0..1", "--out", "runs")
    done = figures("runs", "-o", "drawn")
    assert done.returncode == 0, done.stderr
    names = {Path(line).name for line in done.stdout.splitlines()}
    assert names == {
        f"{figure}.{kind}" for figure in ("accuracy", "gemd") for kind in ("pdf", "svg", "png")
    }
    assert all((tmp_path / "drawn" / name).stat().st_size > 1000 for name in names)
    assert "initialisations is left out" in done.stderr
    done = figures("nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"Error: There are no results in 'nowhere'[^\n]*\n", done.stderr)
