"""What else the gain of selection could be predicted from, beside what `fedcohort.advise` takes.

    python studies/advise_variants.py [-o FOLDER] [--cache FOLDER]

puts the errors of uniform and of `match` cohorts in other vectors that clients have (their label
mixtures, gradients at the first model, what local training changes) into the formula of
`studies/advise.py`, each data set predicted by the others, and writes `advise-variants.csv`: the
rank correlations with the measured gain. The cohorts are always chosen by FC-1 profiles.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from advise import SELECTOR, Pair, computed, pairs
from drawing import run_script
from held_out import by_others
from numpy.typing import NDArray
from scipy.stats import spearmanr

from fedcohort import advise
from fedcohort.advice import cohort_weights
from fedcohort.leaderboard.published import FILE, Published
from fedcohort.report.export import write_csv
from fedcohort.simulation import RunConfig
from fedcohort.simulation.assignment import asked_and_lost
from fedcohort.simulation.devices import find_device
from fedcohort.simulation.federation_profiles import profiles_and_sizes
from fedcohort.simulation.materials import Materials

Floats = NDArray[np.float64]

ALIKE = ("digits", "mnist", "fashion-mnist")


@dataclasses.dataclass(frozen=True)
class Errors:
    """How far cohorts are off in the vectors of one kind.

    Attributes
    ----------
    uniform, match : float
        Root mean squares over cohorts.
    mean : float
        The length of everyone's mean vector.
    clients : float
        The root mean square of clients' vectors.
    """

    uniform: float
    match: float
    mean: float
    clients: float


# Each row of the table: how far uniform cohorts are off, and the share that `match` leaves.
VARIANTS: dict[str, Callable[[dict[str, Errors]], tuple[float, float]]] = {
    "mean profiles, over everyone's": lambda e: _over(e["profile"], e["profile"].mean),
    "label mixtures, as if the server knew all labels": lambda e: _over(e["labels"], 1.0),
    "label mixtures; of what `match` leaves, profiles": lambda e: (
        e["labels"].uniform,
        e["profile"].match / e["profile"].uniform,
    ),
    "gradients, over everyone's": lambda e: _over(e["gradient"], e["gradient"].mean),
    "gradients, over clients'": lambda e: _over(e["gradient"], e["gradient"].clients),
    "gradients of the output layer, over everyone's": lambda e: _over(
        e["output"], e["output"].mean
    ),
    "gradients of the output layer, over clients'": lambda e: _over(
        e["output"], e["output"].clients
    ),
    "what local training changes, over everyone's": lambda e: _over(
        e["trained"], e["trained"].mean
    ),
    "what local training changes, over clients'": lambda e: _over(
        e["trained"], e["trained"].clients
    ),
}


def _over(errors: Errors, unit: float) -> tuple[float, float]:
    return errors.uniform / unit, errors.match / errors.uniform


def errors_of(
    config: RunConfig, cache: Path, materials: Materials, device: str
) -> tuple[dict[str, Errors], tuple[float, float]]:
    """Return a federation's errors by kind of vector, and u and the rest of it by agreements."""
    sent = computed(config, cache, materials, device)
    sizes, share = sent["sizes"], sent["sizes"] / sent["sizes"].sum()
    asked, lost = asked_and_lost(config, len(sizes))
    profiles = sent["profiles"].astype(np.float64)
    away = {
        rule: cohort_weights(rule, profiles, sizes.astype(np.float64), asked, lost) - share
        for rule in ("fedavg", "match")
    }
    path = cache / f"{config.federation_key}-vectors.npz"
    if not path.exists():
        np.savez(path, **_products(config, materials, find_device(device)))  # type: ignore[arg-type]
    with np.load(path) as kept:
        products = dict(kept) | {"profile": profiles @ profiles.T}
    advice = advise(
        profiles,
        sizes,
        asked,
        lost=lost,
        agreements=sent["agreements"],
        shared=float(sent["shared"]),
    )
    assert advice.gradient_spread is not None
    found = {kind: _errors(away, share, inner) for kind, inner in products.items()}
    return found, (advice.gradient_spread, advice.left)


def _errors(away: dict[str, Floats], share: Floats, products: Floats) -> Errors:
    """Return errors of cohorts from the inner products [C, C] of all clients' vectors."""

    def length(weights: Floats) -> float:
        squares = np.einsum("nc,cd,nd->n", weights, products, weights, optimize=True)
        return float(np.sqrt(np.mean(np.maximum(squares, 0.0))))

    return Errors(
        length(away["fedavg"]),
        length(away["match"]),
        length(share[None]),
        float(np.sqrt(share @ np.diag(products))),
    )


def _products(config: RunConfig, materials: Materials, device: torch.device) -> dict[str, Floats]:
    """Return the inner products [C, C] of all clients' vectors, by kind."""
    plain = dataclasses.replace(config, precision="float32", eval_samples=1000)
    counts = materials.federation(plain).label_counts
    gradients, trained = (
        profiles_and_sizes(dataclasses.replace(plain, profile=kind), materials, device)[0]
        for kind in ("gradient", "representative-gradient")
    )
    *_, weight, bias = materials.model(plain).parameters()
    vectors = {
        "labels": counts / counts.sum(axis=1, keepdims=True),
        "gradient": gradients,
        "output": gradients[:, -weight.numel() - bias.numel() :],
        "trained": trained,
    }
    return {kind: (rows @ rows.T).astype(np.float64) for kind, rows in vectors.items()}


def correlations(
    found: Sequence[Pair], errors: Sequence[tuple[dict[str, Errors], tuple[float, float]]]
) -> list[dict[str, Any]]:
    """Return the table: a row per variant, `advise`'s own last."""
    measured = np.array([pair.doublings.mean() for pair in found])
    datasets = np.array([pair.condition.config.dataset for pair in found])
    alike = np.isin(datasets, ALIKE)
    inputs = {name: [variant(e) for e, _ in errors] for name, variant in VARIANTS.items()}
    inputs["agreements; of what `match` leaves, profiles"] = [own for _, own in errors]
    rows = []
    for name, values in inputs.items():
        uniform, left = np.transpose(values)
        predicted = by_others(datasets, uniform, left, measured)
        missed = 2 ** float(np.mean(np.abs(predicted - measured)))
        rows.append(
            {
                "variant": name,
                "all": round(float(spearmanr(predicted, measured)[0]), 3),
                "alike": round(float(spearmanr(predicted[alike], measured[alike])[0]), 3),
                "missed": round(missed, 3),
                "conditions": len(found),
            }
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--published", type=Path, default=FILE, help="the package's if not given")
    parser.add_argument("-o", "--output", type=Path, default=Path("advise"), metavar="FOLDER")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="what was computed before")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    options = parser.parse_args(arguments)
    cache, materials = options.cache or options.output / "profiles", Materials()
    found = pairs(Published(options.published))
    errors = []
    for pair in found:
        config = pair.condition.runs(SELECTOR)[0]
        errors.append(errors_of(config, cache, materials, options.device))
        print(f"{config.dataset}, {pair.title}", flush=True)
    rows = correlations(found, errors)
    write_csv(options.output / "advise-variants.csv", rows)
    for row in rows:
        print(row)


if __name__ == "__main__":
    run_script(main)
