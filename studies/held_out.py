"""How well are gains ranked on data sets that the constant was not fitted to?

    python studies/held_out.py [docs/results/advise.csv]

The prediction has one constant, s, and a rank correlation over all conditions compares those of
one data set with those of another. There are two ways to hold data sets out:

pooled     each data set is predicted by a constant that was fitted to the others, and all
           predictions are ranked together. Then two that are compared come from two constants, and
           they err in opposite directions: leaving out the data set with the largest gains makes
           its own predictions the smallest. Airola et al. show this bias for the area under the
           ROC curve, and that leaving out pairs has next to none.
pairwise   two conditions are compared by one constant, fitted without the data sets of *both*. A
           condition's rank is how many others it is predicted to exceed.

The script makes worlds in which the truth is known: the conditions of the table, a constant of its
own for every data set, and noise. The true value is the rank correlation that a constant from
another such world has. It prints what both ways say of it.

A. Airola, T. Pahikkala, W. Waegeman, B. De Baets, T. Salakoski: An experimental comparison of
cross-validation techniques for estimating the area under the ROC curve. Computational Statistics &
Data Analysis 55(4), 2011, doi:10.1016/j.csda.2010.11.018.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from drawing import run_script
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.stats import spearmanr

from fedcohort.advice import gain_of
from fedcohort.randomness import generator

Floats = NDArray[np.float64]

TABLE = Path(__file__).parents[1] / "docs" / "results" / "advise.csv"
# How far the constants of data sets differ: standard deviations of their logarithms.
_DIFFERENCES = (0.0, 0.2, 0.4, 0.6)


def doublings(other: float | Floats, spread: Floats, left: Floats) -> Floats:
    """Return log2 of the gain that `fedcohort.advice` predicts with another constant."""
    return np.log2(gain_of(other, spread, left))


def fit(spread: Floats, left: Floats, measured: Floats) -> float:
    """Return the constant that comes closest to the measured gains, in least squares of log2."""

    def missed(logarithm: float) -> float:
        return float(np.sum((doublings(np.exp(logarithm), spread, left) - measured) ** 2))

    return float(np.exp(minimize_scalar(missed, bounds=(-7, 3), method="bounded").x))


def of_others(
    datasets: NDArray[Any], spread: Floats, left: Floats, measured: Floats
) -> dict[str, float]:
    """Return for each data set the constant that is fitted to the others."""
    given = spread, left, measured
    return {
        str(dataset): fit(*(values[datasets != dataset] for values in given))
        for dataset in dict.fromkeys(datasets)
    }


def by_others(datasets: NDArray[Any], spread: Floats, left: Floats, measured: Floats) -> Floats:
    """Return log2 of the gains of each data set, by a constant that is fitted to the others."""
    constants = of_others(datasets, spread, left, measured)
    return doublings(np.array([constants[dataset] for dataset in datasets]), spread, left)


def exceeded(datasets: NDArray[Any], spread: Floats, left: Floats, measured: Floats) -> Floats:
    """Return how many others each condition is predicted to exceed [N]; equal ones are halves.

    Every comparison is by a constant that is fitted without the data sets of both conditions; with
    two data sets nothing would be left to compare them by.
    """
    names = list(dict.fromkeys(datasets))
    found = np.zeros(len(datasets))
    for i, first in enumerate(names):
        for second in names[i:]:
            held = np.isin(datasets, [first, second])
            other = fit(spread[~held], left[~held], measured[~held])
            predicted = doublings(other, spread, left)
            above = (np.sign(predicted[:, None] - predicted) + 1) / 2
            one, two = datasets == first, datasets == second
            compared = np.outer(one, two) | np.outer(two, one)
            found += np.where(compared, above, 0).sum(1)
    # Nobody is compared with itself.
    return found - 0.5


def conditions_of(
    rows: Sequence[dict[str, Any]], distance: str = "gradients"
) -> tuple[NDArray[Any], Floats, Floats, Floats]:
    """Return data sets, how far cohorts are, what is left and doublings of a table's rows [N].

    The distance is that of gradients or, as the column `spread`, that of profiles.
    """
    spread, left, gains = (
        np.array([float(row[name]) for row in rows]) for name in (distance, "left", "measured")
    )
    return np.array([row["dataset"] for row in rows]), spread, left, np.log2(gains)


def read_table(path: Path) -> list[dict[str, Any]]:
    """Read a table of studies/advise.py or studies/advise_new.py."""
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def both_ways(
    datasets: NDArray[Any], spread: Floats, left: Floats, measured: Floats
) -> tuple[float, float]:
    """Return the rank correlations, pooled and pairwise."""
    given = datasets, spread, left, measured
    pooled, pairwise = (spearmanr(way(*given), measured)[0] for way in (by_others, exceeded))
    return float(pooled), float(pairwise)


def in_worlds(
    datasets: NDArray[Any],
    spread: Floats,
    left: Floats,
    *,
    other: float,
    differ: float,
    noise: float,
    worlds: int,
) -> Floats:
    """Return the true, the pooled and the pairwise rank correlation, a row for each world [W, 3].

    Parameters
    ----------
    datasets, spread, left : arrays [N]
        The conditions.
    other : float
        The median of the data sets' constants.
    differ : float
        The standard deviation of their logarithms.
    noise : float
        That of the measured doublings.
    worlds : int
        How many.
    """
    rng = generator(0, "worlds")
    names, place = np.unique(datasets, return_inverse=True)

    def measured() -> Floats:
        own = other * np.exp(differ * rng.standard_normal(len(names)))[place]
        return doublings(own, spread, left) + noise * rng.standard_normal(len(datasets))

    rows = []
    for _ in range(worlds):
        here, elsewhere = measured(), measured()
        known = doublings(fit(spread, left, elsewhere), spread, left)
        rows.append((spearmanr(known, here)[0], *both_ways(datasets, spread, left, here)))
    return np.array(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both rank correlations of a table, and what they are worth."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path, nargs="?", default=TABLE, help="of studies/advise.py")
    parser.add_argument("--worlds", type=int, default=300, help="to simulate (300)")
    options = parser.parse_args(arguments)
    datasets, spread, left, measured = conditions_of(read_table(options.table))
    pooled, pairwise = both_ways(datasets, spread, left, measured)
    print(f"{len(datasets)} conditions: pooled {pooled:.3f}, pairwise {pairwise:.3f}")
    for name, constant in of_others(datasets, spread, left, measured).items():
        ranked = spearmanr(doublings(constant, spread, left), measured)[0]
        print(f"{constant:.3f}, fitted without {name}: all are ranked {ranked:.3f}")
    own = {
        name: fit(*(values[datasets == name] for values in (spread, left, measured)))
        for name in dict.fromkeys(datasets)
        if np.sum(datasets == name) > 1
    }
    differ = float(np.std(np.log([*own.values()]), ddof=1))
    by_own = doublings(np.array([own.get(name, np.nan) for name in datasets]), spread, left)
    noise = float(np.nanstd(measured - by_own))
    print("constants by data set:", ", ".join(f"{name} {s:.3f}" for name, s in own.items()))
    print(f"their logarithms differ by {differ:.2f}, and gains from them by {noise:.2f} doublings")
    other = fit(spread, left, measured)
    for each in sorted({*_DIFFERENCES, round(differ, 2)}):
        found = in_worlds(
            datasets, spread, left, other=other, differ=each, noise=noise, worlds=options.worlds
        )
        true, pooled, pairwise = found.mean(0)
        print(f"differ {each:.2f}: true {true:.3f}, pooled {pooled:.3f}, pairwise {pairwise:.3f}")


if __name__ == "__main__":
    run_script(main)
