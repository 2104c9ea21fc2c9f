"""One selector against another over all conditions, seed by seed."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from fedcohort.leaderboard.entries import Entry, IntArray, compare_entries
from fedcohort.leaderboard.standings import geometric_mean, speed_against
from fedcohort.metrics.convergence import first_reached, weighted_sums
from fedcohort.randomness import generator
from fedcohort.report.comparison import Comparison

_RESAMPLES = 2000


@dataclasses.dataclass(frozen=True)
class Versus:
    """How one selector did against a rule.

    Attributes
    ----------
    rule : str
        Who it is compared with.
    speed : float
        How many times as fast it was: the rule's rounds to the target over its own, geometric mean
        over the conditions.
    low, high : float or None
        The 95 % interval of `speed`: pairs of the same seed are drawn anew, the same in all
        conditions. None with one seed.
    comparisons : dict of (Comparison or None)
        The difference in rounds and its interval, by condition.
    seeds_won, seeds_lost, seeds_tied : int
        Pairs of the same seed and condition in which it got there earlier, later, or in the same
        round.
    """

    rule: str
    speed: float
    low: float | None
    high: float | None
    comparisons: dict[str, Comparison | None]
    seeds_won: int
    seeds_lost: int
    seeds_tied: int

    @property
    def won(self) -> int:
        """Conditions in which the interval of the difference is below 0: faster."""
        return sum(c is not None and c.high < 0 for c in self.comparisons.values())

    @property
    def lost(self) -> int:
        """Conditions in which the interval of the difference is above 0: slower."""
        return sum(c is not None and c.low > 0 for c in self.comparisons.values())


def versus(ours: Mapping[str, Entry], theirs: Mapping[str, Entry]) -> Versus:
    """Compare two selectors over the conditions that both have, with the same seeds in each."""
    pairs = {title: (entry, theirs[title]) for title, entry in ours.items() if title in theirs}
    sooner = np.concatenate([b.arrivals - a.arrivals for a, b in pairs.values()])
    low, high = _interval(list(pairs.values()))
    return Versus(
        rule=next(iter(theirs.values())).selector,
        speed=geometric_mean([speed_against(a, b) for a, b in pairs.values()]),
        low=low,
        high=high,
        comparisons={title: compare_entries(a, b) for title, (a, b) in pairs.items()},
        seeds_won=int(np.sum(sooner > 0)),
        seeds_lost=int(np.sum(sooner < 0)),
        seeds_tied=int(np.sum(sooner == 0)),
    )


def _interval(pairs: list[tuple[Entry, Entry]]) -> tuple[float | None, float | None]:
    seeds = len(pairs[0][0].seeds)
    if seeds < 2:
        return None, None
    share = np.full(seeds, 1 / seeds)
    counts = generator(0, "arena speeds").multinomial(seeds, share, size=_RESAMPLES)
    logs = [np.log(_arrivals(b, counts) / _arrivals(a, counts)) for a, b in pairs]
    low, high = np.percentile(np.exp(np.mean(logs, axis=0)), [2.5, 97.5])
    return float(low), float(high)


def _arrivals(entry: Entry, counts: IntArray) -> IntArray:
    """Return the rounds to the target of resampled mean curves, shape [resamples]."""
    late = np.append(entry.evaluated_rounds, entry.rounds + 1)
    means = weighted_sums(counts, entry.curve) / len(entry.seeds)
    first = first_reached(means, entry.target.score)
    found: IntArray = np.maximum(late[first], 1)
    return found
