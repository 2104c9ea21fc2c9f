"""Numbers as readers want them, the same in tables and in the HTML report."""

from collections.abc import Iterable
from typing import Protocol

from fedcohort.metrics import RoundsInterval
from fedcohort.report.comparison import Comparison
from fedcohort.report.summary import Summary
from fedcohort.simulation.scores import Target

MISSING = "–"
PARTS = {"train": "training", "test": "test"}


class Arrival(Protocol):
    """Whatever may have reached a target, over several seeds."""

    @property
    def target(self) -> Target | None:
        """What rounds are counted to."""

    @property
    def rounds(self) -> int:
        """How many rounds there were."""

    @property
    def rounds_to_target(self) -> int | None:
        """Of the mean curve."""

    @property
    def interval(self) -> RoundsInterval | None:
        """Its 95 % interval."""


def percent(value: float | None) -> str:
    """Return a share as a percentage."""
    return MISSING if value is None else f"{100 * value:.1f} %"


def scored(value: float | None, score: str) -> str:
    """Return a score as people write it: accuracy as a percentage, others as plain numbers.

    Examples
    --------
    >>> scored(0.5, "accuracy"), scored(-1.25, "R²"), scored(-6.2e51, "R²")
    ('50.0 %', '−1.250', '−6.2e51')
    """
    if score == "accuracy":
        return percent(value)
    if value is None:
        return MISSING
    if abs(value) < 1000:
        return f"{value:.3f}".replace("-", "−")
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa}e{int(exponent)}".replace("-", "−")


def goal(target: Target | None, score: str) -> str:
    """Return a target as people write it; ``target`` if it is not known.

    Examples
    --------
    >>> goal(Target(0.9), "accuracy"), goal(Target(0.995, "test"), "accuracy")
    ('90 %', '99.5 % test')
    """
    if target is None:
        return "target"
    number = f"{100 * target.score:g} %" if score == "accuracy" else f"{target.score:g}"
    return number if target.on == "train" else f"{number} test"


def final_score(summary: Summary, part: str) -> str:
    """Return the last mean score of ``train`` or ``test`` as people write it."""
    return scored(final(summary, part), summary.score)


def perplexity(value: float | None) -> str:
    """Return a perplexity; that of a model that has gone astray has many digits."""
    if value is None:
        return MISSING
    return f"{value:.2f}" if value < 1e6 else f"{value:.2g}"


def megabytes(count: int | None) -> str:
    """Return bytes in MB with three significant digits or more."""
    if count is None:
        return MISSING
    size = count / 1e6
    digits = 2 if size < 10 else 1 if size < 100 else 0
    return f"{size:,.{digits}f}"


def decimal(value: float | None, digits: int = 3) -> str:
    """Return a plain number."""
    return MISSING if value is None else f"{value:.{digits}f}"


def rounds_reached(arrival: Arrival) -> str:
    """Return the rounds to the target; ``>60`` where 60 rounds were not enough."""
    if arrival.target is None:
        return MISSING
    reached = arrival.rounds_to_target
    return f">{arrival.rounds}" if reached is None else str(reached)


def rounds_interval(arrival: Arrival) -> str:
    """Return the 95 % interval of the rounds to the target, or nothing with one seed."""
    interval = arrival.interval
    if interval is None:
        return ""
    if interval.low is None:
        return f">{arrival.rounds}"
    return f"≥{interval.low}" if interval.high is None else f"{interval.low}–{interval.high}"


def p_value(value: float) -> str:
    """Return a p-value with the digits that matter."""
    return "<0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def too_few(seeds: int) -> str:
    """Say that so few pairs of seeds cannot show a difference; nothing where they can."""
    least = min(1.0, 2 / 2**seeds)
    if least <= 0.05:
        return ""
    return (
        f"With {seeds} shared seed{'' if seeds == 1 else 's'} the smallest p-value that a single"
        f" comparison can have is {p_value(least)}: it takes 6 seeds or more to show a difference"
        " at the 5 % level."
    )


def final(summary: Summary, part: str) -> float | None:
    """Return the last mean score of ``train`` or ``test``."""
    curve = summary.train if part == "train" else summary.test
    return None if curve is None else curve.last


def divergence(summaries: Iterable[Summary]) -> str | None:
    """Say how many runs diverged and what to do; nothing if none did."""
    runs = [(s.score, start) for s in summaries for start in s.diverged_from]
    astray = [(score, start) for score, start in runs if start is not None]
    if not astray:
        return None
    scale = ", or scale the targets" if any(score == "R²" for score, _ in astray) else ""
    return (
        f"{len(astray)} of {len(runs)} runs diverged, the first from round"
        f" {min(start for _, start in astray)} on: lower the learning rate{scale}."
    )


def signed(value: int) -> str:
    """Return a difference with its sign."""
    return f"{value:+d}".replace("-", "−") if value else "0"


def difference(comparison: Comparison) -> str:
    """Return a difference in rounds, as a bound where one side never reached the target."""
    bound = ("≤ " if comparison.difference < 0 else "≥ ") if comparison.censored else ""
    return bound + signed(comparison.difference)


def time_left(seconds: float | None) -> str:
    """Return a time left in words that are no more exact than it is."""
    return "measuring the time left" if seconds is None else f"about {duration(seconds)} left"


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
