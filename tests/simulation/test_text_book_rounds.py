"""Whole runs against federated averaging as text books have it: a loop, and PyTorch's optimisers.

Clients train on all of their samples at once, so that no order of samples matters.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from running import lockstep_of

from fedcohort.simulation import RunConfig, lockstep
from fedcohort.simulation.materials import Materials
from fedcohort.training.inputs import prepare_inputs

ROUNDS = 3
RUNS = {
    "plain": {},
    "momentum": {"momentum": 0.9, "nesterov": True, "lr": 0.05},
    "weight decay and clipping": {"weight_decay": 0.1, "clip": 0.2},
    "FedProx": {"proximal": 0.5},
    "AdamW": {"optimizer": "adamw", "weight_decay": 0.1, "lr": 0.003},
    "decaying rate": {"lr_decay": "step:1:0.5"},
    "FedAvgM": {"server": "avgm:lr=0.5,momentum=0.7"},
    "FedAdam": {"server": "adam:lr=0.02,beta1=0.8,beta2=0.9,tau=0.01"},
    "matched weights": {"selector": "match"},
    "clients drawn twice": {"selector": "clustered"},
    "drop-outs": {"selector": "match", "dropout": 0.4},
    "drop-outs of clients drawn twice": {"selector": "clustered", "dropout": 0.4},
    "the first answers": {"selector": "delta", "over_selection": 1.6, "speed_spread": 0.5},
    "a deadline": {"deadline": 1.0, "server": "avgm:lr=1,momentum=0.5"},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_what_text_books_have(name, monkeypatch):
    given = {"selector": "fedavg", "lr": 0.2, "size_spread": 0.7} | RUNS[name]
    config = RunConfig(skew="0.8", clients=20, cohort=5, rounds=ROUNDS, epochs=2, seed=3, **given)
    cohorts = []

    def noted(*arguments):
        assignment = assign(*arguments)
        cohorts.append(assignment.cohort)
        return assignment

    assign = lockstep.assign
    monkeypatch.setattr(lockstep, "assign", noted)
    run = lockstep_of(config)
    left_out = [run.advance()[0].left_out for _ in range(ROUNDS)]
    missing = config.dropout > 0 or config.over_selection > 1 or config.deadline is not None
    assert any(left_out) == missing
    expected = text_book(config, cohorts, left_out)
    first = dict(Materials().model(config).named_parameters())
    off, moved = (
        torch.cat([(expected[n] - other[n].detach()).flatten() for n in expected]).norm()
        for other in ({n: run.parameters[n][0] for n in expected}, first)
    )
    # A sum in another order may put a single unit on the other side of its kink.
    assert off < 2e-3 * moved


def text_book(config, cohorts, left_out):
    """Return the global model after some rounds, of given cohorts."""
    materials = Materials()
    dataset, partition = materials.dataset(config), materials.federation(config).partition
    x = prepare_inputs(dataset.x_train, dataset, standard=True)
    y = torch.from_numpy(dataset.y_train).long()
    model = copy.deepcopy(materials.model(config))
    moments = [{n: torch.zeros_like(p) for n, p in model.named_parameters()} for _ in range(2)]
    for round_, (cohort, absent) in enumerate(zip(cohorts, left_out, strict=True)):
        weights = {c: cohort.weights[cohort.ids == c].sum() for c in {*cohort.ids.tolist()}}
        there = {c: weight for c, weight in weights.items() if c not in absent}
        change = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
        for client, weight in there.items():
            share = weight / sum(there.values()) * sum(weights.values())
            own = partition.of(client)
            for n, values in trained(config, model, x[own], y[own], round_).items():
                change[n] += float(share) * (values - model.get_parameter(n)).detach()
        with torch.no_grad():
            for n, p in model.named_parameters():
                p += step(config.server, change[n], moments[0][n], moments[1][n])
    return {n: p.detach() for n, p in model.named_parameters()}


def trained(config, model, x, y, round_):
    """Return a client's model after two steps on all of its samples."""
    own = copy.deepcopy(model)
    lr = config.lr * (0.5**round_ if config.lr_decay != "constant" else 1)
    optimizer = (
        torch.optim.AdamW(own.parameters(), lr=lr, weight_decay=config.weight_decay)
        if config.optimizer == "adamw"
        else torch.optim.SGD(
            own.parameters(),
            lr=lr,
            momentum=config.momentum,
            nesterov=config.nesterov,
            weight_decay=config.weight_decay,
        )
    )
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(own(x), y).backward()
        if config.clip:
            torch.nn.utils.clip_grad_norm_(own.parameters(), config.clip)
        for p, received in zip(own.parameters(), model.parameters(), strict=True):
            p.grad += config.proximal * (p - received).detach()
        optimizer.step()
    return dict(own.named_parameters())


def step(server, change, mean, square):
    """Return what a server moves by (Hsu et al. 2019; Reddi et al. 2021), and note its moments."""
    if server == "avg":
        return change
    name, _, parameters = server.partition(":")
    given = {key: float(value) for key, value in (p.split("=") for p in parameters.split(","))}
    if name == "avgm":
        mean.mul_(given["momentum"]).add_(change)
        return given["lr"] * mean
    mean.mul_(given["beta1"]).add_((1 - given["beta1"]) * change)
    square.mul_(given["beta2"]).add_((1 - given["beta2"]) * change**2)
    return given["lr"] * mean / (square.sqrt() + given["tau"])
