"""The calibration of `fedcohort.advise`: the gain that it predicts against the measured one.

    python studies/advise.py [-o FOLDER] [--csv FILE] [--published FILE] [--more STORE...]

takes every published condition (`fedcohort arena --list`) in which both `match` and `fedavg` ran,
with the published seeds and those that both finished in the stores with more, and writes
`advise.csv`, a row per condition, and the figure `advise`. Last it prints rank correlations and the
constants of `fedcohort/advice.py`.

measured   2 to the mean over seeds of log2(fedavg's rounds to the target / match's), rounds read
           between evaluations by linear interpolation; a run that never got there counts as having
           arrived in the round after the last. With a 95 % t interval.
predicted  from profiles and agreements of gradients, by a constant that was fitted to the
           conditions of all other data sets.
alone      from profiles alone, likewise.
rounds     fedavg's, the mean over seeds.

Profiles and agreements are computed, and kept in the folder `--profiles`.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from drawing import NotInStoreError, run_script, write_table_and_figure
from held_out import both_ways, by_others, conditions_of, doublings, fit
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator
from numpy.typing import NDArray
from publish import STEP, reachable, together
from scipy.stats import spearmanr, t

from fedcohort import Advice, advise
from fedcohort.advice import OTHER_ERROR, OTHER_GRADIENT_ERROR
from fedcohort.leaderboard.conditions import Condition
from fedcohort.leaderboard.entries import BY_SEED, Entry, read_entry
from fedcohort.leaderboard.published import FILE, Published
from fedcohort.randomness import generator
from fedcohort.report.grouping import dataset_title
from fedcohort.simulation import RunConfig, Store
from fedcohort.simulation.assignment import asked_and_lost
from fedcohort.simulation.devices import find_device
from fedcohort.simulation.federation_profiles import agreements_and_shared, profiles_and_sizes
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.scores import Part, Target

Floats = NDArray[np.float64]

SELECTOR, BASELINE = "match", "fedavg"
# A constant for two data sets is fitted to a third.
_FEWEST_CONDITIONS, _FEWEST_DATASETS = 4, 3
# Other rules for targets than the leaderboard's: what is reached on which part, in which steps.
_OTHER_RULES: tuple[tuple[Part, float], ...] = (
    ("test", 0.02),
    ("test", 0.01),
    ("train", 0.05),
    ("train", 0.02),
    ("train", 0.01),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """What came of `fedavg` and `match` in one condition."""

    condition: Condition
    baseline: Entry
    selector: Entry

    @property
    def doublings(self) -> Floats:
        """log2 of the ratio of their rounds, by seed [S]."""
        rounds = zip(_rounds(self.baseline), _rounds(self.selector), strict=True)
        return np.log2([before / after for before, after in rounds])

    @property
    def title(self) -> str:
        """What is hard about it."""
        return self.condition.title.partition(", ")[2]

    def targeted(self, on: Part, step: float) -> Pair:
        """Return the pair with the highest target, in steps, that the baseline reaches."""
        highest = reachable(getattr(self.baseline, on).mean(0), step)
        both = (self.baseline, self.selector)
        return Pair(
            self.condition,
            *(dataclasses.replace(entry, target=Target(highest, on)) for entry in both),
        )


def pairs(published: Published) -> list[Pair]:
    """Return all published conditions in which both rules ran."""
    found = []
    for condition in published.conditions:
        if {BASELINE, SELECTOR} <= {*condition.selectors}:
            entries = published.entries(condition, condition.seeds)
            found.append(Pair(condition, entries[BASELINE], entries[SELECTOR]))
    datasets = {pair.condition.config.dataset for pair in found}
    if len(found) < _FEWEST_CONDITIONS or len(datasets) < _FEWEST_DATASETS:
        raise NotInStoreError(
            f"{str(published.path)!r} holds {len(found)} conditions of {len(datasets)} data sets"
            f" with {SELECTOR} and {BASELINE}: {_FEWEST_CONDITIONS} of {_FEWEST_DATASETS} are"
            " needed."
        )
    return found


def with_more(pair: Pair, store: Store) -> Pair:
    """Return a pair with the seeds that both rules finished in a store, beside its own.

    The target is what the leaderboard's rule makes of all of them.
    """
    both = (pair.baseline, pair.selector)
    seeds = {config.seed for config in store.configs()} - {*pair.baseline.seeds}
    runs = {
        seed: [pair.condition.runs(entry.selector, [seed])[0] for entry in both]
        for seed in sorted(seeds)
    }
    finished = [own for own in runs.values() if all(store.is_done(c.key) for c in own)]
    if not finished:
        return pair
    more = (
        read_entry(store, configs, entry.selector, entry.target)
        for entry, configs in zip(both, zip(*finished, strict=True), strict=True)
    )
    joined = Pair(pair.condition, *(_joined(*two) for two in zip(both, more, strict=True)))
    return joined.targeted("test", STEP)


def _joined(first: Entry, second: Entry) -> Entry:
    """Return one entry with the seeds of both."""
    fields: dict[str, Any] = {
        name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in BY_SEED
    }
    return dataclasses.replace(first, seeds=first.seeds + second.seeds, **fields)


def _rounds(entry: Entry) -> list[float]:
    """Return the rounds that each seed takes to the target, interpolated between evaluations."""
    return [_crossing(entry, scores) for scores in entry.curve]


def _crossing(entry: Entry, scores: Floats) -> float:
    target = entry.target.score
    there = np.flatnonzero(scores >= target)
    if not len(there):
        return entry.rounds + 1.0
    after = there[0]
    if after == 0:
        return 1.0
    low, high = scores[after - 1], scores[after]
    begin, end = entry.evaluated_rounds[[after - 1, after]]
    return float(begin + (end - begin) * (target - low) / (high - low))


def advice_on(
    pair: Pair, seeds: int, cache: Path, materials: Materials, device: str
) -> list[Advice]:
    """Return what is said about the condition's first federations, one per seed."""
    said = []
    for config in pair.condition.runs(SELECTOR)[:seeds]:
        sent = computed(config, cache, materials, device)
        sizes, shared = sent.pop("sizes"), float(sent.pop("shared"))
        asked, lost = asked_and_lost(config, len(sizes))
        said.append(advise(sizes=sizes, k=asked, lost=lost, shared=shared, **sent))
    return said


def computed(config: RunConfig, cache: Path, materials: Materials, device: str) -> dict[str, Any]:
    """Return what clients send, and their sizes, from the cache, or compute it."""
    path = cache / f"{config.federation_key}.npz"
    kept = dict(np.load(path)) if path.exists() else {}
    if {"profiles", "sizes", "agreements", "shared"} <= kept.keys():
        return kept
    where = find_device(device)
    cache.mkdir(parents=True, exist_ok=True)
    plain = dataclasses.replace(config, precision="float32", eval_samples=1000)
    profiles, sizes = profiles_and_sizes(plain, materials, where)
    agreements, shared = agreements_and_shared(plain, materials, where)
    found = {"profiles": profiles, "sizes": sizes, "agreements": agreements, "shared": shared}
    np.savez(path, **found)  # type: ignore[arg-type]
    return found


def calibrate(
    found: Sequence[Pair], said: Sequence[Sequence[Advice]]
) -> tuple[list[dict[str, Any]], float, float]:
    """Return the table, and the constants that are fitted to all of it, with agreements first."""
    spread, felt, left = np.transpose([means(one) for one in said])
    measured = np.array([pair.doublings.mean() for pair in found])
    datasets = np.array([pair.condition.config.dataset for pair in found])
    predicted = by_others(datasets, felt, left, measured)
    alone = by_others(datasets, spread, left, measured)
    rows = [
        row_of(pair, one) | {"alone": round(2**by_profiles, 3), "predicted": round(2**gain, 3)}
        for pair, one, by_profiles, gain in zip(
            found, said, alone.tolist(), predicted.tolist(), strict=True
        )
    ]
    return rows, fit(felt, left, measured), fit(spread, left, measured)


def means(said: Sequence[Advice]) -> tuple[float, float, float]:
    """Return spread, gradient spread and what is left of it, means over federations."""
    spread = np.exp(np.mean([np.log(advice.spread) for advice in said]))
    felt = np.mean([advice.gradient_spread for advice in said])
    return float(spread), float(felt), float(np.mean([advice.left for advice in said]))


def row_of(pair: Pair, said: Sequence[Advice]) -> dict[str, Any]:
    """Return a row of the table but for its predictions."""
    spread, felt, left = means(said)
    doublings, first = pair.doublings, said[0]
    middle, count = float(doublings.mean()), len(doublings)
    half = float(t.ppf(0.975, count - 1) * doublings.std(ddof=1) / np.sqrt(count))
    return {
        "dataset": pair.condition.config.dataset,
        "condition": pair.title,
        "clients": first.clients,
        "asked": first.k,
        "lost": round(first.lost, 3),
        "seeds": count,
        "spread": round(spread, 4),
        "left": round(left, 3),
        "gradients": round(felt, 4),
        "target": pair.baseline.target.score,
        "measured": round(2**middle, 3),
        "low": round(2 ** (middle - half), 3),
        "high": round(2 ** (middle + half), 3),
        "rounds": round(float(np.mean(_rounds(pair.baseline))), 1),
    }


def advise_figure(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw the measured gain over the predicted one, a point per condition."""
    figure = Figure(figsize=(4.2, 3.6), layout="constrained")
    axis = figure.subplots()
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        own = [row for row in rows if row["dataset"] == dataset]
        measured = np.array([row["measured"] for row in own])
        bars = [
            measured - [row["low"] for row in own],
            np.array([row["high"] for row in own]) - measured,
        ]
        axis.errorbar(
            [row["predicted"] for row in own],
            measured,
            yerr=bars,
            fmt="o",
            markersize=4,
            elinewidth=0.6,
            label=dataset_title(dataset),
        )
    values = [row[name] for row in rows for name in ("predicted", "measured")]
    ends = min(values) / 1.1, max(values) * 1.1
    axis.plot(ends, ends, color="0.6", linewidth=0.8, zorder=0)
    ticks = [tick for tick in (0.5, 0.75, 1, 1.5, 2, 3, 4) if ends[0] <= tick <= ends[1]]
    for each, scale in ((axis.xaxis, axis.set_xscale), (axis.yaxis, axis.set_yscale)):
        scale("log")
        each.set_minor_locator(NullLocator())
        each.set_minor_formatter(NullFormatter())
        each.set_ticks(ticks, [f"{tick:g} ×" for tick in ticks])
    axis.set(xlabel="predicted gain, fitted to other data sets", ylabel="measured gain")
    pooled, pairwise = both_ways(*conditions_of(rows))
    axis.set_title(f"rank correlation by pairs {pairwise:.2f}, pooled {pooled:.2f}")
    axis.legend()
    return figure


def in_both_ways(rows: Sequence[dict[str, Any]], distance: str = "gradients") -> str:
    """Say how well gains are ranked on held-out data sets (studies/held_out.py)."""
    pooled, pairwise = both_ways(*conditions_of(rows, distance))
    return f"by pairs {pairwise:.3f}, pooled {pooled:.3f}"


def repeatability(found: Sequence[Pair]) -> float:
    """Return the rank correlation of gains measured with one half of the seeds and the other."""
    doublings = [pair.doublings for pair in found]
    rng = generator(0, "halves")
    halves = []
    for _ in range(200):
        orders = [rng.permutation(len(one)) for one in doublings]
        first, second = (
            [float(one[o[part::2]].mean()) for one, o in zip(doublings, orders, strict=True)]
            for part in (0, 1)
        )
        halves.append(float(spearmanr(first, second)[0]))
    return float(np.mean(halves))


def attainable(rows: Sequence[dict[str, Any]], found: Sequence[Pair]) -> float:
    """Return the rank correlation to expect if all predictions were exact but for the seeds."""
    exact = np.log2([row["predicted"] for row in rows])
    rng = generator(0, "attainable")
    errors = [
        one.std(ddof=1) / np.sqrt(len(one)) * rng.standard_t(len(one) - 1, 2000)
        for one in (pair.doublings for pair in found)
    ]
    return float(np.mean([spearmanr(exact, exact + error)[0] for error in np.transpose(errors)]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table and the figure, and print what `fedcohort/advice.py` has to say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--published", type=Path, default=FILE, help="the package's if not given")
    parser.add_argument(
        "--more", type=Path, nargs="+", default=[], metavar="STORE", help="with more seeds of both"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("advise"), metavar="FOLDER")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="the table")
    parser.add_argument("--profiles", type=Path, metavar="FOLDER", help="what was computed before")
    parser.add_argument("--seeds", type=int, default=3, help="federations per condition (3)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    options = parser.parse_args(arguments)
    options.csv = options.csv or options.output / "advise.csv"
    cache = options.profiles or options.output / "profiles"
    found = pairs(Published(options.published))
    with together(options.more) as store:
        found = [with_more(pair, store) for pair in found]
    materials = Materials()
    said = [advice_on(pair, options.seeds, cache, materials, options.device) for pair in found]
    rows, other_gradient, other = calibrate(found, said)
    write_table_and_figure("advise", rows, lambda: advise_figure(rows), options)
    print(f"rank correlations {in_both_ways(rows)}", end=", ")
    _, felt, left = np.transpose([means(one) for one in said])
    alike = spearmanr(doublings(other_gradient, felt, left), [row["measured"] for row in rows])[0]
    print(f"with one constant for all {alike:.3f}")
    for on, step in _OTHER_RULES:
        others = [pair.targeted(on, step) for pair in found]
        name = f"targets in steps of {step:g}, {on} scores"
        print(f"with {name}: {in_both_ways(calibrate(others, said)[0])}")
    print(f"from profiles alone: {in_both_ways(rows, 'spread')}")
    print(f"of measured gains with those of other seeds, by halves: {repeatability(found):.3f}")
    print(f"of exact predictions with gains as noisy as these: {attainable(rows, found):.3f}")
    print(f"constants {other_gradient:.4f} and, from profiles alone, {other:.4f};", end=" ")
    print(f"fedcohort/advice.py has {OTHER_GRADIENT_ERROR} and {OTHER_ERROR}")


if __name__ == "__main__":
    run_script(main)
