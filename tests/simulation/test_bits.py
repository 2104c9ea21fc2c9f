"""A run is the same to the last bit, whatever it is computed beside, where, and how often stopped.

Nothing here is compared with a tolerance.
"""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from bits import SELECTORS, SHAPES, bits_of, datasets, finish, runs_of, start
from store_contents import contents

from fedcohort.simulation import Store
from fedcohort.simulation.execution.on_ray import OnRay
from fedcohort.simulation.execution.processes import Processes
from fedcohort.simulation.execution.runner import prepare_study, run_study
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.study import parse_study
from fedcohort.training import workers
from fedcohort.training.accelerators.c_chain.compiler import kernels

MODELS = list(SHAPES)
SCRIPT = Path(__file__).parents[1] / "bits.py"


@pytest.fixture(scope="module")
def together(request):
    """Return what came of all runs of a model's group, trained together."""
    found = {}

    def of(model):
        if model == "cnn":
            request.getfixturevalue("mnist")
        if model not in found:
            found[model] = bits_of(runs_of(model))
        return found[model]

    return of


@pytest.mark.parametrize("model", MODELS)
def test_the_runs_mix_clients_of_one_batch_and_of_several(model, request):
    if model == "cnn":
        request.getfixturevalue("mnist")
    config = SHAPES[model]
    sizes = start([config]).federations()[0]["label_counts"].sum(1)
    assert (sizes <= config.batch_size).sum() >= 3
    assert (sizes > config.batch_size).sum() >= 3


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("selector", SELECTORS)
def test_a_run_is_the_same_alone_and_among_others(together, model, selector):
    runs = runs_of(model)
    place = next(i for i, config in enumerate(runs) if config.selector == selector)
    (alone,) = bits_of(runs[place : place + 1])
    assert alone == together(model)[place]


@pytest.mark.parametrize("model", MODELS)
def test_a_run_is_the_same_in_another_order(together, model):
    runs = runs_of(model)
    order = np.random.default_rng(0).permutation(len(runs))[: len(runs) // 2]
    found = bits_of([runs[place] for place in order])
    for place, bits in zip(order, found, strict=True):
        assert bits == together(model)[place], runs[place].selector


@pytest.mark.parametrize("model", MODELS)
def test_a_run_is_the_same_resumed_in_the_middle(together, model):
    """All at once, and some of them alone from what they were among the others."""
    runs = runs_of(model)
    first = start(runs)
    columns = [[record] for record in first.start()]
    for _ in range(runs[0].rounds // 2):
        for column, record in zip(columns, first.advance(), strict=True):
            column.append(record)
    states = first.states()
    for part in (slice(None), slice(0, 1), slice(6, 8)):
        resumed = start(runs[part])
        resumed.resume(states[part])
        found = finish(resumed, [list(column) for column in columns[part]])
        assert found == together(model)[part]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("model", MODELS)
def test_a_run_is_the_same_however_many_cores_there_are(together, monkeypatch, model, count):
    expected = together(model)
    monkeypatch.setattr(workers, "_limit", count)
    assert bits_of(runs_of(model)) == expected


@contextlib.contextmanager
def _busy_machine():
    """Have as many processes compute as there are cores."""
    spin = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spin) for _ in range(workers.worker_count())]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.parametrize("setting", ["one thread", "empty cache, busy machine"])
def test_a_run_is_the_same_in_another_process(together, tmp_path, setting):
    """With one thread in NumPy's BLAS too; with kernels compiled anew while others compute."""
    anew = setting == "empty cache, busy machine"
    expected = [bits.digest() for model in MODELS for bits in together(model)]
    environment = dict(os.environ)
    if anew:
        environment |= {"XDG_CACHE_HOME": str(tmp_path)}
    else:
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with _busy_machine() if anew else contextlib.nullcontext():
        done = subprocess.run(
            [sys.executable, SCRIPT, *MODELS],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    differ = [line[:3] for line, digest in zip(lines, expected, strict=True) if line[3] != digest]
    assert not differ
    if anew and kernels() is not None:
        assert list((tmp_path / "fedcohort" / "kernels").iterdir()), "nothing was compiled anew"


def test_what_a_selector_knows_is_the_same_with_any_number_of_threads():
    found = [
        subprocess.run(
            [sys.executable, SCRIPT, "products"],
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": count},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for count in ("1", "2")
    ]
    assert found[0] == found[1]
    assert len(found[0]) == len(runs_of("products"))


STUDY = """
[base]
clients = 20
cohort = 5
rounds = 3
skew = "dirichlet:0.3"
batch_size = 30
selector = ["clustered", "pow-d", "match"]
[[part]]
model = "mlp"
seeds = "0..2"
[[part]]
model = "cnn-small"
[[part]]
dataset = "mnist"
model = "cnn"
samples_per_client = 15
skew = 1
rounds = 2
"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory, request):
    """Return a function that does the study with an executor, and what the store then holds."""
    request.getfixturevalue("mnist")
    study = parse_study(STUDY, "bits.toml")

    def do(*executor):
        folder = tmp_path_factory.mktemp("store")
        with Store(folder) as store:
            prepared = prepare_study(study, device="cpu", materials=Materials(datasets()))
            assert run_study(prepared, store, *executor)
        return _without_threads(contents(folder))

    return do


def _without_threads(tables):
    """Drop what a store says of how many cores were used."""
    rows = tables.pop("runs")
    return tables | {"runs": [_blank_threads(row) for row in rows]}


def _blank_threads(row):
    return tuple(re.sub(r"CPU, \d+ threads", "CPU", v) if isinstance(v, str) else v for v in row)


@pytest.fixture(scope="module")
def done_here(executed):
    return executed()


@pytest.mark.parametrize("executor", [Processes(2), OnRay(2)], ids=["processes", "ray"])
def test_a_study_is_the_same_wherever_it_is_trained(executed, done_here, executor, monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    assert executed(executor) == done_here
