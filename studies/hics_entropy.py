"""What hics sees of the labels, and what its authors' temperatures are of their signal.

    python studies/hics_entropy.py

prints the correlation of the estimated with the true label entropies on digits, as in the table of
docs/selectors/hics.md (a minute on one core), and the authors' temperatures over the root mean
square of the signal in their Fashion-MNIST setting (a minute more).
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import entr
from torch import nn
from torch.nn.functional import cross_entropy

from fedcohort.federation import load_dataset
from fedcohort.selection.hics import HiCS, entropy_of, temperature_for
from fedcohort.simulation import RunConfig
from fedcohort.simulation.lockstep import Lockstep
from fedcohort.simulation.materials import Materials

SELECTORS = ("hics:temperature=0.0025", "hics:temperature=0.0015", "hics", "hics:freeze=True")
ROUNDS = (5, 10, 20, 40)
SEEDS = range(5)

# The authors' configuration FMNIST_hics_1.
ALPHAS = (0.001, 0.002, 0.005, 0.01, 0.5)
CLIENTS_PER_ALPHA, SAMPLES, BATCH = 5, 1200, 64
TEMPERATURES = (0.001, 0.0015)


def main() -> None:
    """Print both."""
    print("correlation with the true entropy after rounds", *ROUNDS)
    for selector in SELECTORS:
        print(selector, np.mean([correlations(selector, seed) for seed in SEEDS], axis=0).round(2))
    weights, biases = authors_signals()
    for name, signal in (("mean change of output weights", weights), ("of biases", biases)):
        size = np.sqrt(np.mean(signal**2))
        ratios = ", ".join(f"{t} is {t / size:.2f} of it" for t in TEMPERATURES)
        print(f"{name}: root mean square {size:.4f}; {ratios}")


def correlations(selector: str, seed: int) -> list[float]:
    """Return the correlation of estimated and true entropies after each of `ROUNDS`."""
    config = RunConfig(
        dataset="digits", clients=50, cohort=10, skew="dirichlet:0.1", lr=0.5, inputs="standard",
        rounds=max(ROUNDS), selector=selector, seed=seed,
    )  # fmt: skip
    lockstep = Lockstep([config], Materials(), torch.device("cpu"))
    counts = lockstep.federations()[0]["label_counts"]
    true = entr(counts / counts.sum(axis=1, keepdims=True)).sum(axis=1)
    found = []
    for round_ in range(1, max(ROUNDS) + 1):
        lockstep.advance()
        if round_ in ROUNDS:
            rule = lockstep._members[0].selector
            assert isinstance(rule, HiCS)
            biases = rule._biases(np.arange(len(true)))
            entropies = entropy_of(biases, rule.temperature or temperature_for(biases))
            found.append(float(np.corrcoef(entropies, true)[0, 1]))
    return found


def authors_signals() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what one round changes of output weights (means) and biases, [clients, 10] each."""
    torch.manual_seed(0)
    dataset = load_dataset("fashion-mnist")
    x = torch.from_numpy(np.asarray(dataset.x_train, np.float32)).reshape(-1, 1, 28, 28)
    x = (x - x.mean()) / x.std()
    y = torch.from_numpy(np.asarray(dataset.y_train)).long()
    first = Materials().model(RunConfig(dataset="fashion-mnist"))
    for part in first.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(part.weight, gain=nn.init.calculate_gain("relu"))
    rng = np.random.default_rng(0)
    by_class = [np.flatnonzero(y.numpy() == label) for label in range(10)]
    weights, biases = [], []
    for alpha in np.repeat(ALPHAS, CLIENTS_PER_ALPHA):
        counts = rng.multinomial(SAMPLES, rng.dirichlet(np.full(10, alpha)))
        held = [rng.choice(own, n) for own, n in zip(by_class, counts, strict=True)]
        model = _trained(first, x, y, rng.permutation(np.concatenate(held)))
        before, after = (list(m.parameters())[-2:] for m in (first, model))
        change, moved = (
            (a - b).detach().double().numpy() for a, b in zip(after, before, strict=True)
        )
        weights.append(change.mean(axis=1))
        biases.append(moved)
    return np.array(weights), np.array(biases)


def _trained(
    first: nn.Module, x: torch.Tensor, y: torch.Tensor, samples: NDArray[np.int64]
) -> nn.Module:
    """Train for one pass as the authors do, with their proximal term."""
    model = copy.deepcopy(first)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, weight_decay=5e-4)
    for start in range(0, len(samples), BATCH):
        batch = samples[start : start + BATCH]
        pairs = zip(model.parameters(), first.parameters(), strict=True)
        away = sum(((own - sent.detach()) ** 2).sum() for own, sent in pairs)
        loss = cross_entropy(model(x[batch]), y[batch]) + 0.25 * away
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


if __name__ == "__main__":
    main()
