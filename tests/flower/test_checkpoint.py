import pathlib
from typing import Any

import numpy as np
import pytest
from fake_federation import Federation, model
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, Result, Strategy

from fedcohort import make_selector
from fedcohort.adapters.checkpoint import Checkpoint
from fedcohort.errors import InvalidInputError, StoreError
from fedcohort.flower import CohortStrategy


def adam() -> Strategy:
    return FedAdam(fraction_evaluate=0.0, eta=0.3, beta_1=0.9, beta_2=0.99)


def momentum() -> Strategy:
    return FedAvgM(fraction_evaluate=0.0, server_learning_rate=0.5, server_momentum=0.9)


def run(federation: Federation, rounds: int, inner: Strategy, **settings: Any) -> Any:
    strategy = CohortStrategy(inner, cohort=3, min_clients=6, **settings)
    result = strategy.start(
        federation.grid,
        model(),
        num_rounds=rounds,
        evaluate_fn=lambda round_, _: None if round_ < 0 else _score(round_),
    )
    return strategy, result


def _score(round_: int) -> Any:
    from flwr.app import MetricRecord

    return MetricRecord({"round": round_})


@pytest.mark.parametrize("make", [adam, momentum])
@pytest.mark.parametrize("selector", ["dp3s", "fedsae"])
@pytest.mark.parametrize("new_nodes", [False, True])
def test_a_restarted_server_goes_on_as_if_nothing_had_happened(
    federation: Federation,
    tmp_path: pathlib.Path,
    make: Any,
    selector: str,
    new_nodes: bool,
) -> None:
    def people() -> None:
        federation.grid.nodes.clear()
        for client in range(6):
            federation.add(client, loss=lambda *_, c=client: 3.0 + c)

    people()
    whole, expected = run(federation, 7, make(), selector=selector)
    people()
    path = tmp_path / "state" / "server.npz"
    first, _ = run(federation, 4, make(), selector=selector, checkpoint=path)
    if new_nodes:
        people()
    second, result = run(federation, 7, make(), selector=selector, checkpoint=path)

    assert [s.round for s in second.history] == [5, 6, 7]
    cohorts = [s.cohort for s in [*first.history, *second.history]]
    assert cohorts == [s.cohort for s in whole.history]
    np.testing.assert_array_equal(result.arrays["w"].numpy(), expected.arrays["w"].numpy())
    assert set(result.train_metrics_clientapp) == {5, 6, 7}
    assert result.evaluate_metrics_serverapp[4]["round"] == 4
    assert result.evaluate_metrics_serverapp[7]["round"] == 7
    assert [p.name for p in path.parent.iterdir()] == ["server.npz"]


def test_a_finished_run_returns_its_model_again(
    federation: Federation, tmp_path: pathlib.Path
) -> None:
    for client in range(6):
        federation.add(client)
    path = tmp_path / "server.npz"
    _, done = run(federation, 3, adam(), checkpoint=path)
    again, result = run(federation, 3, adam(), checkpoint=path)
    assert not again.history
    np.testing.assert_array_equal(result.arrays["w"].numpy(), done.arrays["w"].numpy())


def test_late_clients_after_a_restart_are_profiled_with_the_first_model(
    federation: Federation, tmp_path: pathlib.Path
) -> None:
    for client in range(6):
        federation.add(client)
    path = tmp_path / "server.npz"
    run(federation, 2, adam(), checkpoint=path)
    newcomer = federation.add(7)
    run(federation, 4, adam(), checkpoint=path)
    queries = [m for m in federation.grid.sent if m.metadata.message_type == "query.profile"]
    assert queries[-1].metadata.dst_node_id == newcomer
    np.testing.assert_array_equal(queries[-1].content["arrays"]["w"].numpy(), [0, 0, 0])


def test_a_crash_while_saving_leaves_the_last_state(
    federation: Federation, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for client in range(6):
        federation.add(client)
    path = tmp_path / "server.npz"
    run(federation, 2, adam(), checkpoint=path)

    def dies(file: Any, **_: Any) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", dies)
    with pytest.raises(KeyboardInterrupt):
        run(federation, 3, adam(), checkpoint=path)
    saved = Checkpoint.load(path)
    assert saved is not None
    assert saved.round == 2


def test_no_pickle_in_the_file(federation: Federation, tmp_path: pathlib.Path) -> None:
    for client in range(6):
        federation.add(client)
    path = tmp_path / "server.npz"
    run(federation, 1, adam(), checkpoint=path)
    with np.load(path, allow_pickle=False) as file:
        assert all(file[name].dtype.kind in "fiuU" for name in file.files)


@pytest.mark.parametrize("damage", ["truncated", "text", "pickled"])
def test_a_damaged_file_is_named(
    federation: Federation, tmp_path: pathlib.Path, damage: str
) -> None:
    for client in range(6):
        federation.add(client)
    path = tmp_path / "server.npz"
    run(federation, 1, adam(), checkpoint=path)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-200])
    elif damage == "text":
        path.write_text("hello")
    else:
        np.savez(path, round=np.array([{}], object))
    with pytest.raises(StoreError, match="remove it to start afresh"):
        run(federation, 2, adam(), checkpoint=path)


def test_another_selector_or_model_is_refused(
    federation: Federation, tmp_path: pathlib.Path
) -> None:
    for client in range(6):
        federation.add(client)
    path = tmp_path / "server.npz"
    run(federation, 1, adam(), checkpoint=path)
    with pytest.raises(InvalidInputError, match="saved with selector 'dp3s', not 'fedavg'"):
        run(federation, 2, adam(), selector="fedavg", checkpoint=path)
    strategy = CohortStrategy(adam(), make_selector("dp3s"), cohort=3, checkpoint=path)
    with pytest.raises(InvalidInputError, match="another model"):
        strategy.start(federation.grid, model(1, 2), num_rounds=2)


def test_a_folder_that_cannot_be_written_is_named(
    federation: Federation, tmp_path: pathlib.Path
) -> None:
    for client in range(6):
        federation.add(client)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        run(federation, 1, FedAvg(fraction_evaluate=0.0), checkpoint=tmp_path / "file" / "s.npz")


def test_a_result_is_flowers_own(federation: Federation) -> None:
    for client in range(6):
        federation.add(client)
    _, result = run(federation, 1, FedAvg(fraction_evaluate=0.0))
    assert isinstance(result, Result)
