"""Standings: how fast each selector was over all conditions, against uniform sampling.

A selector's speed in a condition is fedavg's rounds to the target over its own; above 1 it is
faster. One that never got there counts as having arrived in the round after the last. Its standing
is the geometric mean over the conditions.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedcohort.leaderboard.conditions import BASELINE
from fedcohort.leaderboard.entries import Entry, FloatArray, compare_entries
from fedcohort.selection import make_selector

# What a selector came to in a condition besides its speed. Scores are on the test part, where
# there is one.
MEASURES: dict[str, Callable[[Entry], float | None]] = {
    "gemd": lambda e: _known(e.gemd),
    "participation_variation": lambda e: _known(e.participation_variation),
    "final": lambda e: e.final(e.held_out),
    "peak": lambda e: e.peak(e.held_out),
    "drop": lambda e: e.drop(e.held_out),
    "worst_decile": lambda e: _known(e.worst_decile),
}

# By the condition's title and the selector's name.
Entries = Mapping[str, Mapping[str, Entry]]


@dataclasses.dataclass(frozen=True, eq=False)
class Standing:
    """What one selector came to over all conditions.

    Attributes
    ----------
    selector : str
        What it is called.
    needs : tuple of str
        What it must be told of clients.
    entries : dict of Entry
        By condition.
    speeds : dict of float
        By condition.
    bytes, time : float or None
        Geometric means of bytes and simulated time to the target, over fedavg's, in the conditions
        where both got there.
    faster, slower : int
        Conditions in which the 95 % interval of the difference in rounds to fedavg's leaves out 0.
    """

    selector: str
    needs: tuple[str, ...]
    entries: dict[str, Entry]
    speeds: dict[str, float]
    bytes: float | None
    time: float | None
    faster: int
    slower: int

    @property
    def speed(self) -> float:
        """The geometric mean of the speeds."""
        return geometric_mean(list(self.speeds.values()))

    @property
    def least_speed(self) -> float:
        """The lowest speed."""
        return min(self.speeds.values())

    @property
    def selection_ms(self) -> float:
        """The time of a selection, the median of the conditions."""
        seconds = [float(entry.selection_seconds.mean()) for entry in self.entries.values()]
        return 1e3 * float(np.median(seconds))

    def mean(self, measure: str) -> float | None:
        """Return the mean of one of `MEASURES` over the conditions; None if one has none."""
        values = [MEASURES[measure](entry) for entry in self.entries.values()]
        known = [value for value in values if value is not None]
        return float(np.mean(known)) if len(known) == len(values) else None


def standings(entries: Entries, needs: Mapping[str, Sequence[str]]) -> list[Standing]:
    """Return the standings of all selectors that ran in every condition, the fastest first.

    Parameters
    ----------
    entries : dict of dict of Entry
        By condition and selector; fedavg is in every condition.
    needs : dict of sequences of str
        What selectors must be told, by name.
    """
    absent = missing_somewhere(entries)
    everywhere = [name for name in next(iter(entries.values())) if name not in absent]
    found = [_standing(name, tuple(needs[name]), entries) for name in everywhere]
    return sorted(found, key=lambda standing: -standing.speed)


def missing_somewhere(entries: Entries) -> list[str]:
    """Return the selectors that ran in some conditions but not in all, which have no standing."""
    names = dict.fromkeys(name for found in entries.values() for name in found)
    return [name for name in names if any(name not in found for found in entries.values())]


def standing_rows(found: Sequence[Standing]) -> list[dict[str, Any]]:
    """Return the standings as a table of plain values."""
    rows = []
    for place, s in enumerate(found, start=1):
        rows.append(
            {
                "place": place,
                "selector": s.selector,
                "needs": " ".join(s.needs),
                "conditions": len(s.entries),
                "speed": round(s.speed, 4),
                "least_speed": round(s.least_speed, 4),
                "faster": s.faster,
                "slower": s.slower,
                "bytes": rounded(s.bytes, 4),
                "time": rounded(s.time, 4),
                **{name: rounded(s.mean(name), 4) for name in MEASURES},
                "selection_ms": round(s.selection_ms, 3),
            }
        )
    return rows


def needs_of(selectors: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return what selectors must be told of clients, by their specs."""
    return {
        spec: tuple(sorted(need.value for need in make_selector(spec).needs)) for spec in selectors
    }


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive numbers."""
    return float(np.exp(np.mean(np.log(values))))


def speed_against(ours: Entry, theirs: Entry) -> float:
    """Return how many times as fast the first selector was: 2 is in half the rounds."""
    return max(theirs.arrival, 1) / max(ours.arrival, 1)


def _standing(name: str, needs: tuple[str, ...], entries: Entries) -> Standing:
    own = {title: others[name] for title, others in entries.items()}
    pairs = [(entry, entries[title][BASELINE]) for title, entry in own.items()]
    compared = [c for a, b in pairs if a is not b and (c := compare_entries(a, b)) is not None]
    return Standing(
        name,
        needs,
        own,
        {title: speed_against(*pair) for title, pair in zip(own, pairs, strict=True)},
        _mean_ratio([(a.bytes_to_target, b.bytes_to_target) for a, b in pairs]),
        _mean_ratio([(a.time_to_target, b.time_to_target) for a, b in pairs]),
        sum(c.high < 0 for c in compared),
        sum(c.low > 0 for c in compared),
    )


def _known(by_seed: FloatArray) -> float | None:
    mean = float(by_seed.mean())
    return None if np.isnan(mean) else mean


def _mean_ratio(pairs: Sequence[tuple[float | None, float | None]]) -> float | None:
    ratios = [a / b for a, b in pairs if a and b]
    return geometric_mean(ratios) if ratios else None


def rounded(value: float | None, digits: int) -> float | None:
    """Return a value with so many decimals; None where it is not known."""
    return None if value is None else round(value, digits)
