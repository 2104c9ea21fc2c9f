"""Updates that stay where they were made."""

import numpy as np
import pytest
import torch

from fedcohort import simulate
from fedcohort.selection import Need, Outcome, make_selector
from fedcohort.simulation import lockstep
from fedcohort.simulation.device_updates import DeviceUpdates, stay_on_device

CPU = torch.device("cpu")
COMPARING = ["clustered", "clustered:distance=l2", "divfl", "fedgs"]


def updates(count, seed):
    kinds = np.random.default_rng(0).normal(size=(3, 40))
    noise = 0.3 * np.random.default_rng(seed).normal(size=(count, 40))
    return (kinds[np.arange(count) % 3] + noise).astype(np.float32)


def rounds(selector, first, last, *, tensors):
    """Return the cohorts of some rounds, in which everyone that is chosen sends an update."""
    cohorts = []
    for number in range(first, last):
        rng = np.random.default_rng(number)
        as_sent = torch.from_numpy if tensors else np.asarray
        for need, ids in selector.ask(3, rng=rng).items():
            assert need is Need.UPDATE
            selector.tell(need, ids, as_sent(updates(12, number)[ids]))
        cohort = selector.select(3, rng=rng)
        ids = np.unique(cohort.ids)
        trained = np.arange(len(ids)) > number % 2 - 1
        told = as_sent(updates(12, 100 + number)[ids])
        selector.observe(Outcome(ids, trained, None, updates=told))
        cohorts.append(cohort.ids.tolist())
    return cohorts


def made(name, *, table):
    selector = make_selector(name).fit(clients=12)
    if table:
        selector.keep_updates_in(DeviceUpdates(12, CPU))
    return selector


@pytest.mark.parametrize("name", COMPARING)
def test_the_same_cohorts_as_with_updates_on_the_host(name):
    host, device = made(name, table=False), made(name, table=True)
    expected = rounds(host, 0, 8, tensors=False)
    assert rounds(device, 0, 8, tensors=True) == expected
    found, exact = device._inner_products(), host._inner_products()
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", COMPARING)
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_a_state_is_restored_wherever_updates_are_kept(name, before, after):
    expected = rounds(made(name, table=False), 0, 8, tensors=False)[4:]
    first, second = made(name, table=before), made(name, table=after)
    rounds(first, 0, 4, tensors=before)
    second.restore(first.state())
    assert rounds(second, 4, 8, tensors=after) == expected


def test_a_run_chooses_the_same_clients(monkeypatch):
    def run():
        results = simulate(
            dataset="digits",
            selectors=["clustered", "divfl", "fedgs", "hics", "always(clustered; 3)"],
            clients=20,
            cohort=4,
            rounds=6,
            dropout=0.3,
            progress=False,
        )
        return results.rounds[["selector", "round", "cohort"]]

    expected = run()
    kept = []

    def keep(selector, clients, _device):
        if getattr(selector.innermost, "only_products", False):
            selector.innermost.keep_updates_in(DeviceUpdates(clients, CPU))
            assert stay_on_device(selector)
            kept.append(selector.name)

    monkeypatch.setattr(lockstep, "keep_on_device", keep)
    assert run().equals(expected)
    assert sorted(kept) == ["always(clustered)", "clustered", "divfl", "fedgs"]


def test_a_rule_that_looks_at_the_updates_themselves_keeps_them():
    assert not make_selector("clustered:distance=l1").only_products
