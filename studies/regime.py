"""The regime map: how much faster `dp3s` is than `fedavg` in each training setting of a study.

    fedcohort study run studies/regime.toml --out regime
    python studies/regime.py regime [-o FOLDER] [--csv FILE]

writes `gains.csv`, a row per setting, and, where at least three settings can be compared, the
figure `regime`: the gain against each setting that varies, and both selectors' rounds.

The gain is the ratio of rounds to the target, the baseline's over the selector's; above 1 the
selector is faster. Where one of the two never got there the ratio is a bound.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from drawing import (
    TARGET,
    NotInStoreError,
    read_options,
    run_script,
    write_table_and_figure,
)
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from fedcohort.metrics.convergence import weighted_sums
from fedcohort.randomness import generator
from fedcohort.report.grouping import panel_title, skew_of
from fedcohort.report.palette import selector_styles
from fedcohort.report.summary import Summary, summarise
from fedcohort.simulation import Store

if TYPE_CHECKING:
    from fedcohort.simulation.config import RunConfig

SETTINGS = {
    "epochs": "local passes E",
    "batch_size": "batch size B",
    "lr": "learning rate",
    "momentum": "momentum",
    "inputs": "inputs",
    "init": "first weights",
}
SELECTOR, BASELINE = "dp3s", "fedavg"
# MNIST, ξ = 1, rounds to 90 %: what the paper reports of its selector and of FedAvg.
_PAPER = (62, 127)
_RESAMPLES = 2000


@dataclasses.dataclass(frozen=True)
class Gain:
    """What a selector gains over the baseline in one setting.

    Attributes
    ----------
    config : RunConfig
        The setting; its selector and seed mean nothing.
    seeds : int
        How many seeds both have.
    last : int
        Rounds that were run.
    rounds : dict of (int or None)
        Rounds to the target of the mean curve, by selector; None if it was not reached.
    gain, low, high : float or None
        The ratio and its 95 % interval by bootstrap over seeds, a round that was not reached
        counted as the one after the last; None where neither got there.
    bound : {"", ">", "<"}
        Whether the ratio is a bound, because one of the two never got there.
    """

    config: RunConfig
    seeds: int
    last: int
    rounds: dict[str, int | None]
    gain: float | None
    low: float | None
    high: float | None
    bound: str


def gains(summaries: Iterable[Summary]) -> list[Gain]:
    """Return the gain of ``dp3s`` over ``fedavg`` in every setting that has both."""
    by_setting: dict[RunConfig, dict[str, Summary]] = {}
    for summary in summaries:
        config = summary.config
        if config.profile == "fc1" and summary.target is not None:
            setting = dataclasses.replace(config, selector=BASELINE, seed=0)
            by_setting.setdefault(setting, {})[config.selector] = summary
    return [
        _gain(setting, found)
        for setting, found in by_setting.items()
        if SELECTOR in found and BASELINE in found
    ]


def _gain(setting: RunConfig, found: dict[str, Summary]) -> Gain:
    ours, theirs = found[SELECTOR], found[BASELINE]
    seeds = [seed for seed in ours.seeds if seed in theirs.seeds]
    rounds, *places = np.intersect1d(
        ours.evaluated_rounds, theirs.evaluated_rounds, return_indices=True
    )
    last = int(rounds[-1]) if len(rounds) else 0
    share = np.full(len(seeds), 1 / max(len(seeds), 1))
    counts = generator(0, "regime").multinomial(len(seeds), share, size=_RESAMPLES) / len(seeds)
    weights = np.vstack([share, counts])
    reached = [
        _first_reached(
            weighted_sums(weights, s.curve.seeds[[s.seeds.index(seed) for seed in seeds]][:, at]),
            rounds,
            (s.target or TARGET).score,
        )
        for s, at in zip((ours, theirs), places, strict=True)
    ]
    late = [int(r[0]) > last for r in reached]
    ratios = reached[1] / np.maximum(reached[0], 1)
    low, high = np.percentile(ratios[1:], [2.5, 97.5])
    return Gain(
        config=setting,
        seeds=len(seeds),
        last=last,
        rounds={name: summary.rounds_to_target for name, summary in found.items()},
        gain=None if all(late) else float(ratios[0]),
        low=None if all(late) else float(low),
        high=None if all(late) else float(high),
        bound="" if late[0] == late[1] else "<" if late[0] else ">",
    )


def _first_reached(
    curves: NDArray[np.float64], rounds: NDArray[np.int64], target: float
) -> NDArray[np.int64]:
    """Return when each curve first reaches the target; the round after the last if never."""
    late = np.column_stack([curves >= target, np.ones(len(curves), dtype=bool)])
    first: NDArray[np.int64] = np.append(rounds, rounds[-1] + 1)[late.argmax(axis=1)]
    return first


def gain_rows(found: Sequence[Gain]) -> list[dict[str, Any]]:
    """Return the gains as a table, the largest first."""
    names = sorted({name for g in found for name in g.rounds})
    return [
        {
            "dataset": g.config.dataset,
            "skew": g.config.skew,
            **{name: getattr(g.config, name) for name in SETTINGS},
            "seeds": g.seeds,
            "rounds": g.last,
            **{f"rounds_{name}": g.rounds.get(name) for name in names},
            "bound": g.bound,
            "gain": None if g.gain is None else round(g.gain, 3),
            "gain_low": None if g.low is None else round(g.low, 3),
            "gain_high": None if g.high is None else round(g.high, 3),
        }
        for g in sorted(found, key=lambda g: -(g.gain or 0))
    ]


# -- the figure --------------------------------------------------------------------------------


def regime_figure(found: Sequence[Gain]) -> Figure:
    """Draw the gain against each setting that varies, and both selectors' rounds.

    Raises
    ------
    NotInStoreError
        When fewer than three settings have both selectors.
    """
    shown = _largest_map(found)
    varying = [n for n in SETTINGS if len({getattr(g.config, n) for g in shown}) > 1]
    figure = Figure(figsize=(2.1 * (len(varying) + 1) + 0.4, 2.5), layout="constrained")
    axes = figure.subplots(1, len(varying) + 1, squeeze=False)[0]
    scales = list(dict.fromkeys(g.config.inputs for g in shown))
    colours = {n: s["light"] for n, s in selector_styles(scales).items()}
    for axis, name in zip(axes, varying, strict=False):
        _against(axis, name, shown, colours)
        axis.sharey(axes[0])
    axes[0].set_ylabel(f"rounds {BASELINE} / rounds {SELECTOR}")
    _rounds(axes[-1], shown, colours)
    config = shown[0].config
    figure.suptitle(
        f"{panel_title(config.dataset, skew_of(config))}: what {SELECTOR} gains, by training"
        " setting",
        fontsize=9,
    )
    return figure


def _largest_map(found: Sequence[Gain]) -> list[Gain]:
    """Return the settings of the data set and skew that has most of them."""
    maps: dict[tuple[str, str], list[Gain]] = {}
    for gain in found:
        if gain.gain is not None:
            maps.setdefault((gain.config.dataset, gain.config.skew), []).append(gain)
    best = max(maps.values(), key=len, default=[])
    if len(best) < 3:
        raise NotInStoreError(
            f"no three training settings in which {SELECTOR} or {BASELINE} reached the target"
        )
    return best


def _against(axis: Axes, name: str, found: Sequence[Gain], colours: dict[str, str]) -> None:
    values = sorted(
        {getattr(g.config, name) for g in found},
        key=lambda v: (v is None, v) if not isinstance(v, str) else (False, v),
    )
    place = {value: i for i, value in enumerate(values)}
    # Settings that differ in this one alone are joined: the slope is its effect.
    rest: dict[RunConfig, list[Gain]] = {}
    for g in found:
        rest.setdefault(dataclasses.replace(g.config, **{name: _FIRST[name]}), []).append(g)
    for members in rest.values():
        ordered = sorted(members, key=lambda g: place[getattr(g.config, name)])
        for a, b in itertools.pairwise(ordered):
            x = [place[getattr(g.config, name)] for g in (a, b)]
            axis.plot(x, [a.gain or 0.0, b.gain or 0.0], color="0.75", linewidth=0.7, zorder=1)
    for g in found:
        _point(axis, place[getattr(g.config, name)], g.gain or 0.0, g, colours)
    axis.axhline(1, color="0.4", linewidth=0.6, linestyle="dashed", zorder=0)
    axis.set_xticks(range(len(values)), [_tick(v) for v in values])
    axis.set_xlim(-0.5, len(values) - 0.5)
    axis.set_xlabel(SETTINGS[name])
    axis.grid(axis="y")


def _tick(value: Any) -> str:
    if isinstance(value, str):
        return value.replace("-", "\n")
    return "full" if value is None else f"{value:g}"


_FIRST: dict[str, Any] = {
    "epochs": 1.0,
    "batch_size": None,
    "lr": 1.0,
    "momentum": 0.0,
    "inputs": "unit",
    "init": "default",
}


def _rounds(axis: Axes, found: Sequence[Gain], colours: dict[str, str]) -> None:
    for g in found:
        ours, theirs = (g.rounds[n] or g.last + 1 for n in (SELECTOR, BASELINE))
        _point(axis, ours, theirs, g, colours)
    shown = [r or g.last + 1 for g in found for r in (g.rounds[SELECTOR], g.rounds[BASELINE])]
    if (found[0].config.dataset, found[0].config.skew) == ("mnist", "1"):
        axis.plot(*_PAPER, marker="*", color="black", markersize=9, linestyle="", zorder=3)
        axis.annotate("paper", _PAPER, textcoords="offset points", xytext=(6, -3), fontsize=7)
        shown += _PAPER
    low, high = 0.8 * min(shown), 1.25 * max(shown)
    axis.plot([low, high], [low, high], color="0.4", linewidth=0.6, linestyle="dashed", zorder=0)
    axis.set_xscale("log")
    axis.set_yscale("log")
    ticks = [t for t in (5, 10, 20, 50, 100, 200, 500) if low <= t <= high]
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_locator(FixedLocator(ticks))
        each.set_ticklabels([str(t) for t in ticks])
        each.set_minor_locator(NullLocator())
        each.set_minor_formatter(NullFormatter())
    axis.set_xlim(low, high)
    axis.set_ylim(low, high)
    axis.set_xlabel(f"rounds {SELECTOR}")
    axis.set_ylabel(f"rounds {BASELINE}")
    axis.grid()
    for name, colour in colours.items():
        axis.plot([], [], "o", color=colour, markersize=4, label=f"{name} inputs")
    axis.plot([], [], "o", color="0.4", fillstyle="none", markersize=4, label="a bound")
    axis.legend(fontsize=6, loc="lower right")


def _point(axis: Axes, x: float, y: float, g: Gain, colours: dict[str, str]) -> None:
    axis.plot(
        x,
        y,
        marker="o",
        color=colours[g.config.inputs],
        fillstyle="none" if g.bound else "full",
        markersize=4,
        linestyle="",
        zorder=2,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table and the figure of a study."""
    options = read_options(__doc__, arguments, table="gains.csv")
    with Store.existing(options.study) as store:
        found = gains(summarise(store, store.targets() or TARGET))
    if not found:
        raise NotInStoreError(
            f"There are no gains in {options.study}: it has no setting with both {SELECTOR} and"
            f" {BASELINE}. Run a study such as studies/regime.toml first."
        )
    write_table_and_figure("regime", gain_rows(found), lambda: regime_figure(found), options)


if __name__ == "__main__":
    run_script(main)
