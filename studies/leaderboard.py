"""The leaderboard: all selectors in all conditions, against uniform sampling.

    fedcohort study run studies/leaderboard.toml --out leaderboard
    python studies/leaderboard.py leaderboard [-o FOLDER] [--csv FILE]

writes `standings.csv`, a row per selector, and the figure `leaderboard`: the rounds of every
selector in every condition. It takes three conditions that the same six selectors or more share.

A selector's speed in a condition is fedavg's rounds to the target over its own; above 1 it is
faster. One that never got there counts as having arrived in the round after the last. Its standing
is the geometric mean over the conditions that all selectors share.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from drawing import (
    NotInStoreError,
    read_options,
    run_script,
    summaries_to_target,
    write_table_and_figure,
)
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from fedcohort.report.grouping import dataset_title, skew_of, skew_title
from fedcohort.report.summary import Summary
from fedcohort.report.wording import rounds_reached

if TYPE_CHECKING:
    from fedcohort.simulation.config import RunConfig

BASELINE = "fedavg"
_FEWEST_SELECTORS, _FEWEST_CONDITIONS = 6, 3


@dataclasses.dataclass(frozen=True, eq=False)
class Standing:
    """What one selector came to over all conditions.

    Attributes
    ----------
    selector : str
        Its name.
    needs : tuple of str
        What it must be told of clients.
    cells : dict of Summary
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
    cells: dict[str, Summary]
    speeds: dict[str, float]
    bytes: float | None
    time: float | None
    faster: int
    slower: int

    @property
    def speed(self) -> float:
        """The geometric mean of the speeds."""
        return float(np.exp(np.mean(np.log(list(self.speeds.values())))))

    @property
    def least_speed(self) -> float:
        """The lowest speed."""
        return min(self.speeds.values())


def standings(summaries: Iterable[Summary]) -> list[Standing]:
    """Return all selectors' standings, the fastest first.

    Raises
    ------
    NotInStoreError
        When there are no conditions that enough selectors share.
    """
    conditions = _conditions(summaries)
    names = next(iter(conditions.values())).keys()
    found = [
        _standing(name, {title: cells[name] for title, cells in conditions.items()}, conditions)
        for name in names
    ]
    return sorted(found, key=lambda standing: -standing.speed)


def standing_rows(found: Sequence[Standing]) -> list[dict[str, Any]]:
    """Return the standings as a table."""
    rows = []
    for place, s in enumerate(found, start=1):
        cells = s.cells.values()
        rows.append(
            {
                "place": place,
                "selector": s.selector,
                "needs": " ".join(s.needs),
                "conditions": len(s.cells),
                "speed": round(s.speed, 3),
                "least_speed": round(s.least_speed, 3),
                "faster": s.faster,
                "slower": s.slower,
                "bytes": None if s.bytes is None else round(s.bytes, 3),
                "time": None if s.time is None else round(s.time, 3),
                "gemd": round(float(np.mean([c.gemd for c in cells])), 4),
                "participation_variation": round(
                    float(np.mean([c.participation_variation for c in cells])), 3
                ),
                "selection_ms": round(
                    float(np.median([1e3 * c.selection_seconds for c in cells])), 3
                ),
            }
        )
    return rows


def condition_title(config: RunConfig) -> str:
    """Say what is hard about a setting, such as ``ξ = 1, 30 % drop out``."""
    words = [skew_title(skew_of(config))]
    if config.size_spread:
        words.append("unequal sizes")
    if config.dropout:
        words.append(f"{config.dropout:.0%} drop out".replace("%", " %"))
    if config.speed_spread:
        words.append("stragglers")
    if config.availability != "always":
        words.append(f"availability {config.availability}")
    return ", ".join(words)


def _conditions(summaries: Iterable[Summary]) -> dict[str, dict[str, Summary]]:
    """Return summaries by condition and selector, where all selectors are finished."""
    by_panel: dict[str, dict[str, Summary]] = {}
    for s in summaries:
        if s.target is not None and not s.unfinished:
            by_panel.setdefault(s.panel, {})[s.label] = s
    most = max((len(cells) for cells in by_panel.values()), default=0)
    full = [cells for cells in by_panel.values() if len(cells) == most and BASELINE in cells]
    if most < _FEWEST_SELECTORS or len(full) < _FEWEST_CONDITIONS:
        raise NotInStoreError(
            f"no {_FEWEST_CONDITIONS} conditions with a target and {_FEWEST_SELECTORS} selectors"
        )
    titled = {}
    for cells in full:
        config = cells[BASELINE].config
        titled[f"{dataset_title(config.dataset)}, {condition_title(config)}"] = cells
    return titled


def _standing(
    name: str, cells: dict[str, Summary], conditions: dict[str, dict[str, Summary]]
) -> Standing:
    pairs = [(own, conditions[title][BASELINE]) for title, own in cells.items()]
    speeds = [theirs.arrival / max(own.arrival, 1) for own, theirs in pairs]
    compared = [own.comparison for own, _ in pairs if own.comparison is not None]
    return Standing(
        name,
        tuple(sorted(n.value for n in pairs[0][0].config.make_selector().needs)),
        cells,
        dict(zip(cells, speeds, strict=True)),
        _mean_ratio([(own.bytes_to_target, theirs.bytes_to_target) for own, theirs in pairs]),
        _mean_ratio([(own.time_to_target, theirs.time_to_target) for own, theirs in pairs]),
        sum(c.high < 0 for c in compared),
        sum(c.low > 0 for c in compared),
    )


def _mean_ratio(pairs: Sequence[tuple[float | None, float | None]]) -> float | None:
    ratios = [a / b for a, b in pairs if a and b]
    return float(np.exp(np.mean(np.log(ratios)))) if ratios else None


# -- the figure --------------------------------------------------------------------------------


def leaderboard_figure(rows: Sequence[Standing]) -> Figure:
    """Draw rounds to the target of every selector in every condition, coloured by its speed."""
    titles = list(rows[0].cells)
    speeds = np.array([[row.speeds[title] for title in titles] for row in rows])
    figure = Figure(
        figsize=(0.42 * len(titles) + 2.2, 0.27 * len(rows) + 2.2), layout="constrained"
    )
    axis = figure.subplots()
    # Colours are of logarithms, so that twice and half as fast are equally far from white.
    image = axis.imshow(
        np.clip(np.log2(speeds), -1, 1.6),
        cmap="RdBu",
        norm=TwoSlopeNorm(0.0, -1.0, 1.6),
        aspect="auto",
    )
    for i, row in enumerate(rows):
        for j, title in enumerate(titles):
            text = rounds_reached(row.cells[title])
            dark = abs(np.log2(speeds[i, j])) > 0.75
            axis.text(j, i, text, ha="center", va="center", fontsize=6, color="w" if dark else "k")
    datasets = [title.partition(", ")[0] for title in titles]
    for j in range(1, len(titles)):
        if datasets[j] != datasets[j - 1]:
            axis.axvline(j - 0.5, color="k", linewidth=1)
    axis.set_xticks(range(len(titles)), titles, rotation=50, ha="right", fontsize=7)
    axis.set_yticks(
        range(len(rows)), [f"{row.selector}  {row.speed:.2f} ×" for row in rows], fontsize=7
    )
    axis.tick_params(length=0)
    bar = figure.colorbar(image, ax=axis, shrink=0.6, ticks=[-1, 0, 1, np.log2(3)])
    bar.ax.set_yticklabels(["½ ×", "1 ×", "2 ×", "3 ×"], fontsize=7)
    bar.set_label(f"as fast as {BASELINE}", fontsize=7)
    axis.set_title("Rounds to the target; right of a name, its speed over all conditions", size=8)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table and the figure of a study."""
    options = read_options(__doc__, arguments, table="standings.csv")
    try:
        found = standings(summaries_to_target(options.study))
    except NotInStoreError as reason:
        raise NotInStoreError(
            f"There are no standings in {options.study}: it has {reason}. Run a study such as"
            " studies/leaderboard.toml first."
        ) from None
    write_table_and_figure(
        "leaderboard", standing_rows(found), lambda: leaderboard_figure(found), options
    )


if __name__ == "__main__":
    run_script(main)
