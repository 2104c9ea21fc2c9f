"""Studies are looked at before anything is written, and what runs start from is built once."""

import collections
import dataclasses

import pytest

from fedcohort.errors import FedcohortError
from fedcohort.simulation import RunConfig, Store
from fedcohort.simulation import materials as materials_module
from fedcohort.simulation.execution.runner import prepare_study, run_study
from fedcohort.simulation.study import parse_study, study_of_runs
from fedcohort.training import models

RUN = RunConfig(clients=10, cohort=3, rounds=2, selector="dp3s")


@pytest.fixture
def built(monkeypatch):
    """Count what is built: federations, and models by their factory."""
    counts = collections.Counter()

    def counted(name, function):
        def call(*arguments, **options):
            counts[name] += 1
            return function(*arguments, **options)

        return call

    federation = counted("federation", materials_module.build_federation)
    monkeypatch.setattr(materials_module, "build_federation", federation)
    monkeypatch.setitem(models.MODELS, "mlp", counted("model", models.MODELS["mlp"]))
    return counts


@pytest.mark.parametrize(
    ("selectors", "seeds"), [(["dp3s"], 1), (["dp3s", "clustered", "pow-d"], 1), (["match"], 3)]
)
def test_federations_and_models_are_built_once(tmp_path, built, selectors, seeds):
    runs = [
        dataclasses.replace(RUN, model="mlp", selector=selector, seed=seed)
        for selector in selectors
        for seed in range(seeds)
    ]
    with Store(tmp_path) as store:
        assert run_study(prepare_study(study_of_runs(runs), device="cpu"), store)
    assert built == {"federation": seeds, "model": seeds}


WRONG = {
    "data": ('[[part]]\nname = "b"\ndataset = "nothing.npz"', "nothing.npz"),
    "model": ('[[part]]\nname = "b"\nmodel = "cnn"', "cannot be trained"),
    "size": ('[[part]]\nname = "b"\nsamples_per_client = 100000', "samples"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_done_is_refused_before_the_study_begins(case):
    text, complaint = WRONG[case]
    study = parse_study(f'[base]\nrounds = 2\n[[part]]\nname = "a"\n{text}', "s.toml")
    with pytest.raises(FedcohortError, match=complaint):
        prepare_study(study, device="cpu")
    with pytest.raises(FedcohortError, match=complaint):
        prepare_study(study, parts=["a"], device="cpu")


def test_only_the_parts_that_are_wanted_are_done_but_all_are_entered(tmp_path):
    text = '[base]\nrounds = 1\ncohort = 3\nclients = 10\n[[part]]\nname = "a"\n'
    study = parse_study(f'{text}[[part]]\nname = "b"\nlr = 0.2\n', "s.toml")
    heard = []
    with Store(tmp_path) as store:
        prepared = prepare_study(study, parts=["b"], device="cpu")
        assert run_study(prepared, store, entered=heard.append)
        assert [store.is_done(config.key) for config in study.configs] == [False, True]
        assert (heard[0].added, heard[0].done) == (2, 0)
        assert run_study(prepare_study(study, device="cpu"), store, entered=heard.append)
        assert (heard[1].added, heard[1].done) == (0, 1)
        assert all(store.is_done(config.key) for config in study.configs)
