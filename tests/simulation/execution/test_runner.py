"""Studies are looked at before anything is written, and what runs start from is built once."""

import collections
import dataclasses
import itertools
import math

import pytest
from torch import nn

from fedcohort.errors import CohortSizeError, FedcohortError, InvalidModelError
from fedcohort.simulation import RunConfig, Store
from fedcohort.simulation import materials as materials_module
from fedcohort.simulation.content import with_content
from fedcohort.simulation.execution import runner
from fedcohort.simulation.execution.runner import prepare_study, run_study
from fedcohort.simulation.groups import part_states
from fedcohort.simulation.materials import Materials
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
    # It is looked at whether a model is the same again, and what another seed builds.
    assert built == {"federation": seeds, "model": max(seeds, 2) + 1}


WRONG = {
    "data": ('[[part]]\nname = "b"\ndataset = "nothing.npz"', "nothing.npz"),
    "model": ('[[part]]\nname = "b"\nmodel = "cnn"', "cannot be trained"),
    "size": ('[[part]]\nname = "b"\nsamples_per_client = 100000', "samples"),
    "layer": ('[[part]]\nname = "b"\nprofile_layer = "fc3"', "has no layer 'fc3'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_done_is_refused_before_the_study_begins(case):
    text, complaint = WRONG[case]
    study = parse_study(f'[base]\nrounds = 2\n[[part]]\nname = "a"\n{text}', "s.toml")
    with pytest.raises(FedcohortError, match=complaint):
        prepare_study(study, device="cpu")
    # A part alone can be done where what the others need is not there.
    assert len(prepare_study(study.only(["a"]), device="cpu").study.configs) == 1


def normed(shape, classes):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), 8), nn.BatchNorm1d(8), nn.Linear(8, classes)
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"samples_per_client": 1, "skew": "iid"},
            r"client 0 of seed 0 has \(samples: 1, batch size: full\)",
        ),
        ({"samples_per_client": 21, "batch_size": 10}, r"client 0 .*samples: 21, batch size: 10\)"),
        ({"batch_size": 1}, r"batch size: 1\)"),
    ],
)
def test_batches_of_one_sample_are_refused_where_a_model_takes_none(settings, words):
    run = dataclasses.replace(RUN, model="normed", **settings)
    with pytest.raises(InvalidModelError, match=words):
        prepare_study(
            study_of_runs([run]), device="cpu", materials=Materials(models={"normed": normed})
        )
    prepare_study(study_of_runs([dataclasses.replace(run, model="mlp")]), device="cpu")


def squeezed(shape, classes):
    class Squeezed(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(math.prod(shape), classes)

        def forward(self, x):
            x = self.fc(x.flatten(1))
            return x.squeeze() if self.training else x

    return Squeezed()


@pytest.mark.parametrize(
    ("factory", "reason"),
    [(normed, "Expected more than 1 value"), (squeezed, r"a batch of 1 have shape \[10\]")],
)
def test_it_is_said_why_a_model_takes_no_single_sample(factory, reason):
    study = study_of_runs([dataclasses.replace(RUN, model="own", batch_size=1)])
    with pytest.raises(InvalidModelError, match=f"a batch of one sample, .*{reason}"):
        prepare_study(study, device="cpu", materials=Materials(models={"own": factory}))


def test_what_a_factory_counts_is_no_part_of_a_runs_key():
    def materials():
        made = []

        def factory(shape, classes):
            made.append(shape)
            return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))

        return Materials(models={"own": factory})

    study = study_of_runs([dataclasses.replace(RUN, model="own")])
    (expected,) = with_content(study, materials()).configs
    (found,) = prepare_study(study, device="cpu", materials=materials()).study.configs
    assert found.key == expected.key


def test_clients_of_one_sample_are_found_in_every_seed():
    given = dataclasses.replace(RUN, model="normed", size_spread=1.5, clients=40, skew="iid")
    runs = [dataclasses.replace(given, seed=seed) for seed in (2, 0)]
    assert [int(Materials().federation(run).sizes.min()) for run in runs] == [2, 1]
    materials = Materials(models={"normed": normed})
    with pytest.raises(InvalidModelError, match="of seed 0"):
        prepare_study(study_of_runs(runs), device="cpu", materials=materials)


def test_a_part_is_done_alone_and_then_the_others_and_all_keep_their_places(tmp_path):
    text = '[base]\nrounds = 1\ncohort = 3\nclients = 10\n[[part]]\nname = "a"\n'
    study = parse_study(f'{text}[[part]]\nname = "b"\nlr = 0.2\n', "s.toml")
    heard = []

    def do(some):
        with Store(tmp_path) as store:
            assert run_study(prepare_study(some, device="cpu"), store, entered=heard.append)
            return [(part.part, part.done, part.runs) for part in part_states(store)]

    assert do(study.only(["b"])) == [("b", 1, 1)]
    assert do(study.only(["a"])) == [("a", 1, 1), ("b", 1, 1)]
    assert do(study) == [("a", 1, 1), ("b", 1, 1)]
    assert [(found.added, found.done) for found in heard] == [(1, 0), (1, 0), (0, 2)]


def test_a_selector_for_some_clients_has_smaller_cohorts_where_they_are_away(tmp_path):
    run = dataclasses.replace(
        RUN, selector="only(fedavg; 0; 1; 2; 3; 4)", cohort=4, over_selection=1.5, rounds=4
    )
    away = dataclasses.replace(run, availability="0.6")
    with Store(tmp_path) as store:
        prepared = prepare_study(study_of_runs([run, away]), device="cpu")
        assert run_study(prepared, store)
        rows = [store.records(config.key)[1:] for config in prepared.study.configs]
        asked = [[len(row.cohort) for row in own] for own in rows]
    assert asked[0] == [5] * 4
    # More than the cohort are never needed here, and fewer are there.
    assert asked[1] == [3] * 4


def convolutions(shape, classes):
    return nn.Sequential(nn.Conv2d(shape[0], classes, 8), nn.Flatten())


def mixing(shape, classes):
    return nn.Sequential(
        nn.BatchNorm2d(shape[0], track_running_stats=False), *normed(shape, classes)
    )


@pytest.mark.parametrize(
    ("factory", "settings", "words"),
    [
        (convolutions, {}, "no fully connected layer to profile with"),
        (mixing, {"profile_epsilon": 8.0}, "outputs of 2, which depend on other samples"),
    ],
)
def test_a_model_without_a_layer_to_profile_is_refused_where_profiles_are_needed(
    factory, settings, words
):
    run = dataclasses.replace(RUN, model="own", **settings)

    def prepare(**changes):
        study = study_of_runs([dataclasses.replace(run, **changes)])
        prepare_study(study, device="cpu", materials=Materials(models={"own": factory}))

    with pytest.raises(InvalidModelError, match=words):
        prepare()
    prepare(selector="fedavg")
    prepare(profile="gradient", profile_epsilon=None)


def test_layers_are_looked_at_once_however_many_runs_there_are(monkeypatch):
    looked = []
    monkeypatch.setattr(runner, "check_layer", lambda config, *_: looked.append(config))
    grid = {
        "seed": range(3), "selector": ["match", "dp3s", "fedavg"], "clients": [10, 20],
        "profile_layer": [None, "fc2"],
    }  # fmt: skip
    runs = [
        dataclasses.replace(RUN, **dict(zip(grid, values, strict=True)))
        for values in itertools.product(*grid.values())
    ]
    prepare_study(study_of_runs(runs), device="cpu")
    assert [config.profile_layer for config in looked] == [None, "fc2"]


@pytest.mark.parametrize(("who", "left"), [("1; 2", 2), ("99", 0)])
def test_a_selector_for_fewer_clients_than_a_cohort_has_is_refused_before_it_begins(who, left):
    run = dataclasses.replace(RUN, selector=f"only(fedavg; {who})")
    with pytest.raises(CohortSizeError, match=f"among {left} of the 10 clients, and a cohort"):
        prepare_study(study_of_runs([run]), device="cpu")
