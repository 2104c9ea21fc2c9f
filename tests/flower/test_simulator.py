"""The simulator and the adapter are two engines around the same selectors."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from fake_federation import Federation
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedcohort import list_selectors, make_selector
from fedcohort.flower import CohortStrategy, answer_queries
from fedcohort.simulation import RunConfig
from fedcohort.simulation.device_data import load_device_data
from fedcohort.simulation.jobs import order_keys
from fedcohort.simulation.lockstep import Lockstep
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.profiling import client_profiles
from fedcohort.training.problem import NO_JOBS, Jobs, LocalProblem, LocalWork
from fedcohort.training.sequential import SEQUENTIAL
from fedcohort.training.task import classification

CLIENTS, COHORT, ROUNDS = 24, 5, 6


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are trained faster by one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "selector", [name for name in ("fedavg", "dp3s", "match") if name in list_selectors()]
)
def test_the_same_cohorts_and_the_same_model_as_in_the_simulator(
    federation: Federation, selector: str
) -> None:
    config = RunConfig(
        clients=CLIENTS,
        cohort=COHORT,
        rounds=ROUNDS,
        selector=selector,
        model="mlp",
        batch_size=20,
        seed=3,
    )
    materials = Materials()
    simulator = Lockstep([config], materials, torch.device("cpu"), trainer=SEQUENTIAL)
    expected = [simulator.advance()[0] for _ in range(ROUNDS)]

    net, held = materials.model(config), materials.federation(config)
    loaded = load_device_data(materials.dataset(config), config, torch.device("cpu"))
    data, test = loaded.train, loaded.test
    work = LocalWork(config.batch_size, config.lr, config.momentum)
    pool = torch.from_numpy(held.partition.indices)
    first = LocalProblem(net, {}, NO_JOBS, data, pool, work, classification(10))
    profiles = client_profiles(config, first, held, SEQUENTIAL)

    def train(client: int, message: Message) -> RecordDict:
        arrays = message.content["arrays"].to_torch_state_dict()
        ids, round_ = np.array([client]), message.content["config"]["server-round"]
        jobs = Jobs(
            model=torch.zeros(1, dtype=torch.int64),
            start=torch.from_numpy(held.partition.offsets[ids]),
            size=torch.from_numpy(held.sizes[ids]),
            key=torch.from_numpy(order_keys(config.seed, round_, ids)),
            passes=torch.tensor([config.epochs]),
        )
        stacked = {name: values[None] for name, values in arrays.items()}
        trained = SEQUENTIAL.train(
            LocalProblem(net, stacked, jobs, data, pool, work, classification(10))
        )
        metrics = {"num-examples": int(held.sizes[client]), "train_loss": float(trained.losses[0])}
        local = {name: values[0] for name, values in trained.parameters.items()}
        return RecordDict({"arrays": ArrayRecord(local), "metrics": MetricRecord(metrics)})

    for client in np.random.default_rng(0).permutation(CLIENTS).tolist():
        federation.add(
            client,
            size=int(held.sizes[client]),
            profile=profiles[client],
            train=lambda message, c=client: train(c, message),
        )
    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0),
        selector,
        cohort=COHORT,
        seed=config.seed,
        min_clients=CLIENTS,
        identify=True,
    )
    result = strategy.start(federation.grid, ArrayRecord(net.state_dict()), num_rounds=ROUNDS)

    cohorts = [tuple(int(name) for name in s.cohort) for s in strategy.history]
    assert cohorts == [record.cohort for record in expected]
    assert len(set(cohorts)) > 1
    final = {n: v[None] for n, v in result.arrays.to_torch_state_dict().items()}
    accuracy, _ = SEQUENTIAL.evaluate(net, final, test, classification(10))
    assert float(accuracy[0]) == pytest.approx(expected[-1].test_score, abs=0.01)
    for name, values in simulator.parameters.items():
        torch.testing.assert_close(final[name][0], values[0], rtol=1e-3, atol=1e-4)


def test_a_federation_with_more_clients_than_its_cohorts_is_sampled_alike(
    federation: Federation,
) -> None:
    """The draw depends on seed, round and clients, not on node ids or the order of arrival."""

    def run(order: list[int]) -> list[tuple[str, ...]]:
        federation.grid.nodes.clear()
        for client in order:
            federation.add(client)
        strategy = CohortStrategy(
            FedAvg(fraction_evaluate=0.0), make_selector("dp3s"), cohort=4, min_clients=12, seed=5
        )
        first = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
        strategy.start(federation.grid, first, num_rounds=5)
        return [summary.cohort for summary in strategy.history]

    assert run(list(range(12))) == run(list(reversed(range(12))))


def test_a_client_app_needs_one_line() -> None:
    app = ClientApp()
    answer_queries(app, size=lambda _: 1, profile=lambda *_: [0.0])
    with pytest.raises(ValueError, match="already registered"):
        answer_queries(app, size=lambda _: 1)
