"""The picture of a leaderboard: rounds of every selector in every condition."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from fedcohort.leaderboard.conditions import BASELINE
from fedcohort.leaderboard.standings import Standing
from fedcohort.report.wording import rounds_reached


def leaderboard_figure(rows: Sequence[Standing], marked: str | None = None) -> Figure:
    """Draw rounds to the target of every selector in every condition, coloured by its speed.

    Parameters
    ----------
    rows : sequence of Standing
        The fastest first.
    marked : str, optional
        A selector that stands out from the others.
    """
    titles = list(rows[0].entries)
    speeds = np.array([[row.speeds[title] for title in titles] for row in rows])
    # Inches; names of selectors that are longer than the published ones ask for more.
    width = 0.42 * len(titles) + 2.2
    more = 0.06 * max(0, max(len(row.selector) for row in rows) - 11)
    figure = Figure(figsize=(width + more, 0.27 * len(rows) + 2.2), layout="constrained")
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
            text = rounds_reached(row.entries[title])
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
    for row, label in zip(rows, axis.get_yticklabels(), strict=True):
        label.set_fontweight("bold" if row.selector == marked else "normal")
    axis.tick_params(length=0)
    bar = figure.colorbar(image, ax=axis, shrink=0.6, ticks=[-1, 0, 1, np.log2(3)])
    bar.ax.set_yticklabels(["½ ×", "1 ×", "2 ×", "3 ×"], fontsize=7)
    bar.set_label(f"as fast as {BASELINE}", fontsize=7)
    said = "Rounds to the target; right of a name, its speed over all conditions"
    axis.set_title(textwrap.fill(said, int(14 * width)), size=8)
    return figure
