"""Simulator, Flower and NVFlare choose the same cohorts for the same profiles, sizes and seed."""

import importlib.util
import pathlib

import numpy as np
import pytest
from recorded import CLIENTS, COHORT, ROUNDS, SEED, SELECTORS, Recording, record


def nvflare_is_there() -> bool:
    """Tell whether the package is installed; the folder of its tests has the same name."""
    spec = importlib.util.find_spec("nvflare")
    return spec is not None and spec.origin is not None


@pytest.fixture(scope="module", params=SELECTORS)
def recorded(request: pytest.FixtureRequest) -> tuple[str, Recording]:
    return request.param, record(request.param)


def test_the_recording_is_worth_replaying(recorded: tuple[str, Recording]) -> None:
    selector, run = recorded
    assert len(run.cohorts) == ROUNDS
    assert len(set(run.cohorts)) > 1
    assert len(set(run.sizes)) > 1
    assert bool(run.updates) == (selector == "clustered")


@pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="needs Flower")
def test_flower_chooses_as_the_simulator_does(
    recorded: tuple[str, Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fake_federation import SUPERLINK, Clock, FakeGrid, Federation
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp.strategy import FedAvg
    from flwr.supercore.task_identity import TaskIdentity

    from fedcohort.flower import CohortStrategy

    for name, value in (("_task_id", 1), ("_run_id", 1), ("_node_id", SUPERLINK)):
        monkeypatch.setattr(TaskIdentity, name, value)
    selector, run = recorded
    clock = Clock()
    federation = Federation(FakeGrid(clock), clock)

    def train(client: int, message: Message) -> RecordDict:
        round_ = int(message.content["config"]["server-round"])
        w = message.content["arrays"]["w"].numpy() + run.change(round_, client)
        return RecordDict(
            {
                "arrays": ArrayRecord({"w": Array(w)}),
                "metrics": MetricRecord({"num-examples": int(run.sizes[client])}),
            }
        )

    for client in np.random.default_rng(0).permutation(CLIENTS).tolist():
        federation.add(
            client,
            size=int(run.sizes[client]),
            profile=run.profiles[client],
            train=lambda message, c=client: train(c, message),
        )
    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1),
        selector,
        cohort=COHORT,
        seed=SEED,
        min_clients=CLIENTS,
        identify=True,
    )
    width = len(run.change(1, run.cohorts[0][0]))
    first = ArrayRecord({"w": Array(np.zeros(width))})
    strategy.start(federation.grid, first, num_rounds=ROUNDS)
    assert [tuple(int(name) for name in s.cohort) for s in strategy.history] == run.cohorts


@pytest.mark.skipif(not nvflare_is_there(), reason="needs NVFlare")
def test_nvflare_chooses_as_the_simulator_does(
    recorded: tuple[str, Recording], tmp_path: pathlib.Path
) -> None:
    from fake_workflow import CohortFake, Site, moved

    selector, run = recorded
    sites = {
        f"site-{client}": Site(
            run.sizes[client],
            run.profiles[client],
            lambda params, round_, c=client: moved(params, run.change(round_ + 1, c)),
        )
        for client in np.random.default_rng(0).permutation(CLIENTS).tolist()
    }
    workflow = CohortFake(
        sites=sites,
        folder=tmp_path,
        num_clients=COHORT,
        num_rounds=ROUNDS,
        selector=selector,
        seed=SEED,
        width=len(run.change(1, run.cohorts[0][0])),
    )
    workflow.run()
    cohorts = [tuple(int(name[5:]) for name in s.cohort) for s in workflow.history]
    assert cohorts == run.cohorts
