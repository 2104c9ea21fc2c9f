"""How much of a cohort's gradient error its profile residual explains, along a FedAvg run.

    python studies/theory.py --dataset mnist --model cnn [--skew 1]... [--device cuda]
    python studies/theory.py --dataset cifar-10 --model cnn-cifar --epochs 2 --lr 0.05

trains with uniform cohorts and stops at rounds 0, 20 and 100. There it takes the gradient g_c of
every client's mean loss at the global model. A cohort Y with weights w has the gradient error
e_Y = Σ w_c g_c − ḡ and, from the profiles that were sent before round 1, the profile residual
r_Y = Σ w_c z_c, in the coordinates of `match`. It writes `theory-DATASET-MODEL.csv`, a row per
federation and round, and the figure of the same name.

r2           share of Σ_Y ‖e_Y‖² over uniform cohorts that a linear map of r_Y explains. The map is
             fitted to other clients than those it predicts (ten folds), so it can be below 0.
correlation  rank correlation of ‖r_Y‖ and ‖e_Y‖ over uniform cohorts.
error_RULE   root mean square of ‖e_Y‖ / ‖ḡ‖ over the cohorts of a rule.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from drawing import draw, run_script
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import spearmanr

from fedcohort import make_selector
from fedcohort.profiles import gradient_profiles
from fedcohort.randomness import generator
from fedcohort.report.export import write_csv
from fedcohort.report.grouping import dataset_title, skew_title
from fedcohort.selection.coordinates import Basis
from fedcohort.simulation import RunConfig
from fedcohort.simulation.device_data import load_device_data
from fedcohort.simulation.devices import find_device
from fedcohort.simulation.federation_profiles import profiles_and_sizes
from fedcohort.simulation.lockstep import Lockstep
from fedcohort.simulation.materials import Materials

Floats = NDArray[np.float64]

ROUNDS = (0, 20, 100)
RULES = ("fedavg", "dp3s", "match")
_COHORTS = 500
_FOLDS = 10
# Of the map from residuals to errors, in units of a direction's variance.
_RIDGE = 0.1


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """What one round of one federation shows.

    Attributes
    ----------
    row : dict
        A line of the table.
    residuals, errors : dict of float64 [n]
        ‖r_Y‖ and ‖e_Y‖ / ‖ḡ‖ of the cohorts of each rule.
    """

    row: dict[str, Any]
    residuals: dict[str, Floats]
    errors: dict[str, Floats]


def explain(config: RunConfig, materials: Materials, device: torch.device) -> list[Found]:
    """Train one federation with uniform cohorts, and look at its gradients on the way."""
    profiles, sizes = profiles_and_sizes(config, materials, device)
    share = sizes / sizes.sum()
    basis = Basis.fit(profiles, sizes.astype(np.float64))
    points = basis.project(profiles)
    points = (points - share @ points) * basis.scales(config.cohort)
    away = {rule: cohorts(rule, profiles, sizes, config) - share for rule in RULES}
    lockstep = Lockstep([config], materials, device)
    found = []
    for round_ in ROUNDS:
        while lockstep.round < round_:
            lockstep.advance()
        products, length = gradient_products(config, lockstep, materials, device, share)
        found.append(_compare(config, round_, points, share, away, products, length))
        print(found[-1].row, flush=True)
    return found


def cohorts(
    rule: str, profiles: NDArray[np.float32], sizes: NDArray[np.int64], config: RunConfig
) -> Floats:
    """Return the weights of all clients in consecutive cohorts of a rule, [n, C]."""
    selector = make_selector(rule).fit(profiles, sizes=sizes)
    weights = np.zeros((_COHORTS, len(sizes)))
    for place in range(_COHORTS):
        cohort = selector.select(config.cohort, rng=generator(config.seed, "theory", place))
        weights[place, cohort.ids] = cohort.weights
    return weights


def gradient_products(
    config: RunConfig,
    lockstep: Lockstep,
    materials: Materials,
    device: torch.device,
    share: Floats,
) -> tuple[Floats, float]:
    """Return the inner products [C, C] of all clients' g_c − ḡ at the global model, and ‖ḡ‖."""
    model = copy.deepcopy(materials.model(config)).to(device).eval()
    state = {name: torch.from_numpy(values) for name, values in lockstep.models(0).items()}
    model.load_state_dict(state, strict=False)
    partition = materials.federation(config).partition
    samples = torch.from_numpy(partition.indices).to(device)
    sizes = torch.from_numpy(partition.sizes).to(device)
    x, y = load_device_data(materials.dataset(config), config, device).train
    gradients = gradient_profiles(model, x, y, samples, sizes, materials.task(config).losses)
    mean = torch.from_numpy(share).to(gradients) @ gradients
    gradients -= mean
    return (gradients @ gradients.T).double().cpu().numpy(), float(mean.norm())


def explained_share(points: Floats, share: Floats, away: Floats, products: Floats) -> float:
    """Return how much of Σ ‖e_Y‖² a linear map of r_Y explains, fitted to other clients.

    Parameters
    ----------
    points : float64 [C, r]
        Coordinates of all clients.
    share : float64 [C]
        Their shares of all samples.
    away : float64 [n, C]
        The cohorts' weights less those shares.
    products : float64 [C, C]
        Inner products of what is explained.
    """
    clients = len(points)
    fold = generator(0, "folds").permutation(np.arange(clients) % _FOLDS)
    unexplained = np.eye(clients)
    for part in range(_FOLDS):
        known, new = np.flatnonzero(fold != part), np.flatnonzero(fold == part)
        weighted = points[known].T * share[known]
        spread = weighted @ points[known] + _RIDGE * np.eye(points.shape[1])
        unexplained[np.ix_(new, known)] -= points[new] @ np.linalg.solve(spread, weighted)
    left = away @ unexplained
    return float(1 - _squares(left, products).sum() / _squares(away, products).sum())


def _squares(weights: Floats, products: Floats) -> Floats:
    squares: Floats = np.einsum("nc,cd,nd->n", weights, products, weights, optimize=True)
    return np.maximum(squares, 0.0)


def _compare(
    config: RunConfig,
    round_: int,
    points: Floats,
    share: Floats,
    away: dict[str, Floats],
    products: Floats,
    length: float,
) -> Found:
    residuals = {rule: np.linalg.norm(gone @ points, axis=1) for rule, gone in away.items()}
    errors = {rule: np.sqrt(_squares(gone, products)) / length for rule, gone in away.items()}
    row: dict[str, Any] = {
        "dataset": config.dataset,
        "model": config.model,
        "skew": config.skew,
        "seed": config.seed,
        "round": round_,
        "r2": round(explained_share(points, share, away["fedavg"], products), 3),
        "correlation": round(float(spearmanr(residuals["fedavg"], errors["fedavg"])[0]), 3),
    }
    for rule, values in errors.items():
        row[f"error_{rule}"] = round(float(np.sqrt(np.mean(values**2))), 4)
    return Found(row, residuals, errors)


def theory_figure(found: Sequence[Sequence[Found]]) -> Figure:
    """Draw R² along the runs, and cohorts' gradient errors over their residuals in the middle."""
    figure = Figure(figsize=(2.3 * (len(found) + 1), 2.4), layout="constrained")
    first, *others = figure.subplots(1, len(found) + 1)
    for federation in found:
        rows = [one.row for one in federation]
        first.plot(
            [row["round"] for row in rows],
            [row["r2"] for row in rows],
            marker="o",
            label=skew_title(rows[0]["skew"]),
        )
    first.set(xlabel="round", ylabel="share of the error explained", ylim=(min(0, *_r2s(found)), 1))
    first.legend(fontsize=7)
    for axis, federation in zip(others, found, strict=True):
        middle = federation[len(federation) // 2]
        for rule in RULES:
            axis.scatter(middle.residuals[rule], middle.errors[rule], s=3, alpha=0.4, label=rule)
        axis.set(xlim=(0, None), ylim=(0, None), xlabel="profile residual")
        axis.set_title(f"{skew_title(middle.row['skew'])}, round {middle.row['round']}")
    others[0].set_ylabel("gradient error / gradient")
    others[-1].legend(fontsize=7, markerscale=2)
    row = found[0][0].row
    figure.suptitle(f"{dataset_title(row['dataset'])}, {row['model']}", fontsize=8)
    return figure


def _r2s(found: Sequence[Sequence[Found]]) -> list[float]:
    return [one.row["r2"] for federation in found for one in federation]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table and the figure of a data set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--skew", action="append", help="1, H and dirichlet:0.1 if not given")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--cohort", type=int, default=10)
    parser.add_argument("--samples-per-client", type=int)
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--batch-size", type=int, default=54)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--csv", type=Path, default=Path("docs/results"), metavar="FOLDER")
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/img"), metavar="FOLDER")
    options = parser.parse_args(arguments)
    settings = {
        name: value
        for name, value in vars(options).items()
        if name not in ("skew", "device", "csv", "output")
    }
    device, materials = find_device(options.device), Materials()
    configs = [
        RunConfig(
            **settings,
            skew=skew,
            selector="fedavg",
            inputs="standard",
            rounds=max(ROUNDS),
            eval_every=max(ROUNDS),
            eval_samples=1000,
        )
        for skew in options.skew or ("1", "H", "dirichlet:0.1")
    ]
    found = [explain(config, materials, device) for config in configs]
    name = f"theory-{options.dataset}-{options.model}"
    table = options.csv / f"{name}.csv"
    write_csv(table, [one.row for federation in found for one in federation])
    print(table)
    print(*draw(name, lambda: theory_figure(found), options.output, ("png",)), sep="\n")


if __name__ == "__main__":
    run_script(main)
