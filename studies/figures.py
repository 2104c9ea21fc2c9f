"""The paper's figures from a study, in the paper's layout.

    fedcohort study run studies/paper.toml --out paper
    python studies/figures.py paper [-o FOLDER]

draws those whose runs the study has, and says why the others are left out:

    accuracy              accuracy curves, one row per data set, one column per skew
    gemd                  GEMD bars, one panel per data set, grouped by skew
    profiling             dp3s by profiling method
    profiles              what 20 clients send under each initialisation
    kernels               the similarity of those clients under each initialisation
    initialisations       dp3s and fedavg under each initialisation

M. Zhang et al.: DPP-based Client Selection for Federated Learning with Non-IID Data. ICASSP 2023.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from drawing import FORMATS, NotInStoreError, draw, finished_runs, read_options, run_script
from figure_runs import (
    INITIALISATIONS,
    ProfilesByInit,
    plain_comparison,
    profiles_by_initialisation,
    widest_panel,
)
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedcohort.dpp import similarity
from fedcohort.report.grouping import dataset_title, skew_title
from fedcohort.report.palette import selector_styles
from fedcohort.report.summary import Summary, summarise
from fedcohort.simulation import Store

_SKEWS = ("0.5", "0.8", "H", "1")
_PROFILINGS = {"fc1": "FC-1", "gradient": "gradients", "representative-gradient": "repr. gradients"}
_NAMES = {"dp3s": "FL-DP³S", "fedavg": "FedAvg", "clustered": "Cluster", "fedsae": "FedSAE"}

# Grey is enough to tell fedavg, which the report dots.
_DASHES = {"dash": "dashed", "dashdot": "dashdot", "longdash": "dashed", "longdashdot": "dashdot"}
_LEGEND_COLUMN = 0.95  # inches


@dataclasses.dataclass(frozen=True)
class Figures:
    """What was drawn.

    Attributes
    ----------
    paths : list of Path
        The files.
    left_out : dict
        Why each other figure could not be drawn, by its name.
    """

    paths: list[Path]
    left_out: dict[str, str]


@dataclasses.dataclass(frozen=True, eq=False)
class _Line:
    summary: Summary
    label: str
    colour: str
    dash: str = "solid"


def write_figures(store: Store, folder: str | Path, formats: Sequence[str] = FORMATS) -> Figures:
    """Draw every figure of the paper whose runs are in a store, of finished runs if there are any.

    Parameters
    ----------
    store : Store
        Where the runs are.
    folder : path-like
        Where the files go; created if missing.
    formats : sequence of str
        File endings. The same store gives the same bytes.

    Returns
    -------
    Figures
        The files, and why the others were left out.
    """
    # An unfinished run would cut the curves of its group short.
    summaries = summarise(store, None, finished_runs(store) or store.configs())
    drawings: dict[str, Callable[[], Figure]] = {
        "accuracy": lambda: _accuracy(summaries),
        "gemd": lambda: _gemd(summaries),
        "profiling": lambda: _profiling(summaries),
        "profiles": lambda: _profiles(profiles_by_initialisation(store, summaries)),
        "kernels": lambda: _kernels(profiles_by_initialisation(store, summaries)),
        "initialisations": lambda: _initialisations(summaries),
    }
    paths, left_out = [], {}
    for name, drawing in drawings.items():
        try:
            paths += draw(name, drawing, Path(folder), formats)
        except NotInStoreError as reason:
            left_out[name] = str(reason)
    return Figures(paths, left_out)


# -- figures ---------------------------------------------------------------------------------


def _accuracy(summaries: Sequence[Summary]) -> Figure:
    shown = plain_comparison(summaries)
    datasets, skews = _in_order(shown)
    figure = Figure(figsize=(1.9 * len(skews) + 0.3, 1.65 * len(datasets) + 0.4))
    axes = figure.subplots(len(datasets), len(skews), squeeze=False, sharex="col")
    styles = selector_styles([s.label for s in shown])
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    for row, dataset in enumerate(datasets):
        for column, skew in enumerate(skews):
            axis = axes[row, column]
            here = [s for s in shown if (s.dataset, s.skew) == (dataset, skew)]
            axis.set_visible(bool(here))
            _draw(axis, [_Line(s, _name(s.label), **_look(styles[s.label])) for s in here])
            letter = next(letters, "")
            axis.set_title(f"({letter}) {skew_title(skew)}, {dataset_title(dataset)}")
            if row == len(datasets) - 1:
                axis.set_xlabel("training rounds")
        axes[row, 0].set_ylabel("accuracy")
    _shared_legend(figure, axes.flat)
    return figure


def _gemd(summaries: Sequence[Summary]) -> Figure:
    shown = [s for s in plain_comparison(summaries) if s.gemd is not None]
    if not shown:
        raise NotInStoreError("no round has a GEMD yet")
    datasets, _ = _in_order(shown)
    widest = max(len(_in_order([s for s in shown if s.dataset == d])[1]) for d in datasets)
    figure = Figure(figsize=(max(2.6, 0.62 * widest) * len(datasets) + 0.6, 2.1))
    axes = figure.subplots(1, len(datasets), squeeze=False, sharey=True)[0]
    styles = selector_styles([s.label for s in shown])
    labels = list(dict.fromkeys(s.label for s in shown))
    for axis, dataset in zip(axes, datasets, strict=True):
        here = [s for s in shown if s.dataset == dataset]
        _, skews = _in_order(here)
        width = 0.8 / len(labels)
        for i, label in enumerate(labels):
            mine = {s.skew: s for s in here if s.label == label}
            at = [k + (i - (len(labels) - 1) / 2) * width for k, x in enumerate(skews) if x in mine]
            values = [mine[x].gemd or 0.0 for x in skews if x in mine]
            hatch = "" if _look(styles[label])["dash"] == "solid" else "/////"
            axis.bar(
                at, values, width, color=styles[label]["light"], hatch=hatch, label=_name(label)
            )
        axis.set_xticks(range(len(skews)), [skew_title(skew) for skew in skews])
        axis.set_title(dataset_title(dataset))
        axis.grid(axis="y")
        axis.set_axisbelow(True)
    axes[0].set_ylabel("GEMD")
    _shared_legend(figure, axes)
    return figure


def _profiling(summaries: Sequence[Summary]) -> Figure:
    wanted = [s for s in summaries if s.selector == "dp3s" and s.config.init == "default"]
    shown = widest_panel(
        wanted, lambda s: s.config.profile, "dp3s with more than one profiling method"
    )
    colours = _colours([s.config.profile for s in shown])
    return _one_panel(
        _Line(s, _PROFILINGS[s.config.profile], colours[s.config.profile]) for s in shown
    )


def _initialisations(summaries: Sequence[Summary]) -> Figure:
    wanted = [
        s
        for s in summaries
        if s.selector in ("dp3s", "fedavg")
        and s.config.profile == "fc1"
        and s.config.init in INITIALISATIONS
    ]
    shown = widest_panel(
        wanted, lambda s: s.config.init, "dp3s or fedavg under more than one initialisation"
    )
    colours = _colours([s.config.init for s in shown])
    return _one_panel(
        _Line(
            s,
            f"{_name(s.selector)}, {_spaced(s.config.init)}",
            colours[s.config.init],
            "solid" if s.selector == "dp3s" else "dashed",
        )
        for s in shown
    )


def _profiles(found: ProfilesByInit) -> Figure:
    figure = Figure(figsize=(1.6 * len(found) + 0.6, 3.6), layout="constrained")
    grid = figure.add_gridspec(2, len(found), height_ratios=[2, 1])
    largest = max(float(np.abs(values).max()) for values, _ in found.values())
    # One scale for all: initialisations differ by orders of magnitude, which is what is shown.
    scale = SymLogNorm(largest / 30 or 1.0, vmin=-largest, vmax=largest)
    for column, (init, (values, main)) in enumerate(found.items()):
        axis = figure.add_subplot(grid[0, column])
        image = axis.imshow(values, aspect="auto", cmap="RdBu_r", norm=scale)
        axis.set_title(f"({'abcd'[column]}) {_spaced(init)}")
        axis.set_xlabel("FC-1 output")
        _class_ticks(axis, main, y_only=True)
        if column == 0:
            axis.set_ylabel("clients by main class")
    figure.colorbar(image, ax=figure.axes, shrink=0.8)
    last = figure.add_subplot(grid[1, :])
    colours = _colours(list(found))
    for init, (values, _) in found.items():
        last.plot(values[0], color=colours[init], linewidth=0.8, label=_spaced(init))
    last.set_xlabel("FC-1 output")
    last.set_title("(e) the first client's profile")
    last.legend(ncols=len(found), fontsize=6, loc="lower center", bbox_to_anchor=(0.5, -0.75))
    return figure


def _kernels(found: ProfilesByInit) -> Figure:
    figure = Figure(figsize=(1.6 * len(found) + 0.7, 1.9), layout="constrained")
    axes = figure.subplots(1, len(found), squeeze=False)[0]
    for column, (axis, (init, (values, main))) in enumerate(zip(axes, found.items(), strict=True)):
        # The paper's heat maps are darker where clients are more alike.
        image = axis.imshow(similarity(values), cmap="Blues", vmin=0, vmax=1)
        axis.set_title(f"({'abcd'[column]}) {_spaced(init)}")
        _class_ticks(axis, main)
    axes[0].set_ylabel("clients by main class")
    figure.colorbar(image, ax=list(axes), shrink=0.8, label="similarity")
    return figure


# -- parts -----------------------------------------------------------------------------------


def _one_panel(lines: Iterable[_Line]) -> Figure:
    shown = list(lines)
    figure = Figure(figsize=(3.9, 2.1), layout="constrained")
    axis = figure.subplots()
    _draw(axis, shown)
    axis.set_title(shown[0].summary.panel)
    axis.set_xlabel("training rounds")
    axis.set_ylabel("accuracy")
    axis.legend(fontsize=6, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _draw(axis: Axes, lines: Iterable[_Line]) -> None:
    for line in lines:
        x, curve = line.summary.evaluated_rounds, line.summary.train
        axis.plot(x, curve.mean, color=line.colour, linestyle=line.dash, label=line.label)
        axis.fill_between(x, curve.low, curve.high, color=line.colour, alpha=0.15, linewidth=0)
    axis.grid()
    axis.set_ylim(0, 1)
    axis.margins(x=0)
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def _colours(names: Sequence[str]) -> dict[str, str]:
    return {name: style["light"] for name, style in selector_styles(names).items()}


def _look(style: Mapping[str, str]) -> dict[str, str]:
    """Return a line's colour on paper, and its dash where colours are used a second time."""
    return {"colour": style["light"], "dash": _DASHES.get(style["dash"], "solid")}


def _shared_legend(figure: Figure, axes: Iterable[Axes]) -> None:
    entries: dict[str, Artist] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.tight_layout()
    figure.legend(
        list(entries.values()),
        list(entries),
        ncols=max(1, min(len(entries), int(figure.get_figwidth() / _LEGEND_COLUMN))),
        loc="upper center",
        bbox_to_anchor=(0.5, 0.02),
    )


def _class_ticks(axis: Axes, main: NDArray[np.int64], *, y_only: bool = False) -> None:
    classes, first, count = np.unique(main, return_index=True, return_counts=True)
    middle = first + (count - 1) / 2
    axis.set_yticks(middle, [str(c) for c in classes], fontsize=6)
    if not y_only:
        axis.set_xticks(middle, [str(c) for c in classes], fontsize=6)


def _in_order(summaries: Sequence[Summary]) -> tuple[list[str], list[str]]:
    """Return data sets as they come, and skews in the paper's order, others after them."""
    skews = list(dict.fromkeys(s.skew for s in summaries))
    known = [skew for skew in _SKEWS if skew in skews]
    datasets = list(dict.fromkeys(s.dataset for s in summaries))
    return datasets, known + [skew for skew in skews if skew not in known]


def _name(selector: str) -> str:
    return _NAMES.get(selector, selector)


def _spaced(init: str) -> str:
    return init.replace("-", " ").capitalize()


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the figures of a study and print their paths."""
    options = read_options(__doc__, arguments)
    with Store.existing(options.study) as store:
        drawn = write_figures(store, options.output)
    for path in drawn.paths:
        print(path)
    for name, reason in drawn.left_out.items():
        print(f"{name} is left out: {reason}.", file=sys.stderr)


if __name__ == "__main__":
    run_script(main)
