"""A selector of your own beside the published ones: only yours runs, with the published seeds."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcohort.errors import MissingPackageError
from fedcohort.files import replace_file
from fedcohort.leaderboard import tables
from fedcohort.leaderboard.challenge import USUAL, Challenge, challenge
from fedcohort.leaderboard.conditions import BASELINE, Condition, setting_of
from fedcohort.leaderboard.entries import Entry, read_entry
from fedcohort.leaderboard.machine import MachineCheck, compare_machines
from fedcohort.leaderboard.published import origin_of
from fedcohort.leaderboard.standings import (
    Standing,
    missing_somewhere,
    needs_of,
    standing_rows,
    standings,
)
from fedcohort.leaderboard.tables import PaperTable
from fedcohort.leaderboard.versus import Versus, versus
from fedcohort.report.export import write_csv
from fedcohort.selection import Selector

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from fedcohort.simulation.config import RunConfig
    from fedcohort.simulation.store import Store


def arena(
    selector: str | Selector | type[Selector],
    conditions: Sequence[str] = USUAL,
    *,
    seeds: Sequence[int] | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    progress: bool = True,
) -> ArenaResults:
    """Run a selector in published conditions and put it beside the published selectors.

    Parameters
    ----------
    selector : str, Selector or class
        A spec such as ``"my_selector.py:MySelector:share=0.3"``, or a selector of your own. One
        that is published is shown and not run again.
    conditions : sequence of str
        Names of conditions (``fedcohort arena --list``) or of data sets, which stand for all their
        conditions.
    seeds : sequence of int, optional
        Some of the published seeds; all if not given.
    out : path-like, optional
        The folder of the runs, which resume there; a temporary one if not given.
    device : {"auto", "cpu", "cuda"}
        Where to train.
    progress : bool
        Whether to show a progress bar.

    Examples
    --------
    >>> from fedcohort import arena
    >>> "match" in set(arena("match", ["digits-1"]).standings.selector)
    True
    """
    asked = challenge(selector, conditions, seeds)
    if not asked.new:
        return ArenaResults.of(asked)
    try:
        from fedcohort.report.shown import shown_downloads, shown_progress
        from fedcohort.simulation import Store
        from fedcohort.simulation.devices import find_device
        from fedcohort.simulation.execution.runner import prepare_study, run_study
        from fedcohort.simulation.materials import Materials
    except ImportError as error:
        raise MissingPackageError("fedcohort.arena", "sim", error) from error
    kind = find_device(device).type
    with shown_downloads(progress) as heard:
        materials = Materials(progress=heard)
        prepared = [
            prepare_study(study, device=device, materials=materials)
            for study in (asked.check(kind), asked.study(kind))
        ]
    with (
        tempfile.TemporaryDirectory(prefix="fedcohort-") as temporary,
        Store(out or temporary) as store,
        shown_progress(progress) as report,
    ):
        for study in prepared:
            run_study(study, store, report=report)
        return ArenaResults.of(asked, store, *(one.study.configs for one in prepared))


@dataclasses.dataclass(frozen=True, eq=False)
class ArenaResults:
    """A selector beside the published ones.

    Attributes
    ----------
    challenge : Challenge
        What was asked for.
    entries : dict of dict of Entry
        All curves, by condition's title and selector.
    checks : tuple of MachineCheck
        Whether this machine repeats the published runs; empty if nothing ran.

    Examples
    --------
    >>> from fedcohort import arena
    >>> arena("dp3s", ["digits-1"]).pairs.columns[0]
    'condition'
    """

    challenge: Challenge
    entries: dict[str, dict[str, Entry]]
    checks: tuple[MachineCheck, ...]

    @classmethod
    def of(
        cls,
        asked: Challenge,
        store: Store | None = None,
        checked: Iterable[RunConfig] = (),
        own: Iterable[RunConfig] = (),
    ) -> ArenaResults:
        """Put a selector's runs beside the published ones.

        Parameters
        ----------
        asked : Challenge
            What was asked for.
        store : Store, optional
            Where the runs are; none if nothing had to run.
        checked, own : iterable of RunConfig
            The runs of the check and of the selector.
        """
        entries = {c.title: asked.published.entries(c, asked.seeds) for c in asked.conditions}
        checks = []
        if store is not None:
            repeated, runs = _by_setting(checked), _by_setting(own)
            for condition in asked.new:
                setting = _setting(condition.config)
                entries[condition.title][asked.label] = read_entry(
                    store, runs[setting], asked.label, condition.target
                )
                if setting in repeated:
                    checks.append(_checked(asked, condition, store, repeated[setting][0]))
        return cls(asked, entries, tuple(checks))

    @functools.cached_property
    def ranked(self) -> list[Standing]:
        """The standings of all selectors that ran in every condition, the fastest first."""
        own = self.challenge.spec, self.challenge.label
        names = {name for found in self.entries.values() for name in found} - {own[1]}
        return standings(self.entries, needs_of(names) | {own[1]: needs_of([own[0]])[own[0]]})

    @functools.cached_property
    def duels(self) -> list[Versus]:
        """The selector against each of the others, in the order of the standings."""
        own = {title: found[self.challenge.label] for title, found in self.entries.items()}
        return [versus(own, s.entries) for s in self.ranked if s.selector != self.challenge.label]

    @property
    def standings(self) -> pd.DataFrame:
        """One row per selector, the fastest first."""
        import pandas as pd

        return pd.DataFrame(standing_rows(self.ranked))

    @property
    def pairs(self) -> pd.DataFrame:
        """One row per condition and rule: rounds, and the paired difference with its interval."""
        import pandas as pd

        return pd.DataFrame(self._pair_rows())

    def tables(self) -> dict[str, PaperTable]:
        """Return the tables for people: standings, conditions, rules, rounds and accuracy."""
        label, conditions = self.challenge.label, self.challenge.conditions
        seeds = len(self.challenge.seeds)
        return {
            "standings": tables.standings_table(
                self.ranked, label, missing_somewhere(self.entries)
            ),
            "conditions": tables.conditions_table(self.entries, conditions, label),
            "rules": tables.rules_table(self.duels, len(conditions), seeds, label),
            "rounds": tables.rounds_table(self.ranked, conditions, label),
            "accuracy": tables.accuracy_table(self.ranked, label),
        }

    def figure(self) -> Figure:
        """Draw rounds to the target of every selector in every condition."""
        from fedcohort.leaderboard.picture import leaderboard_figure

        return leaderboard_figure(self.ranked, self.challenge.label)

    def to_json(self) -> dict[str, Any]:
        """Return the document that ``--json`` prints: plain values, None for unknown."""
        return {
            "selector": self.challenge.label,
            "conditions": [condition.name for condition in self.challenge.conditions],
            "seeds": list(self.challenge.seeds),
            "checks": [check.to_json() for check in self.checks],
            "standings": standing_rows(self.ranked),
            "rules": [
                {
                    "rule": v.rule,
                    "speed": v.speed,
                    "low": v.low,
                    "high": v.high,
                    "won": v.won,
                    "lost": v.lost,
                    "seeds_won": v.seeds_won,
                    "seeds_lost": v.seeds_lost,
                    "seeds_tied": v.seeds_tied,
                }
                for v in self.duels
            ],
            "pairs": self._pair_rows(),
        }

    def write(self, folder: str | Path) -> list[Path]:
        """Write all tables as CSV, Markdown and LaTeX, and the picture as PNG and PDF.

        Returns
        -------
        list of Path
            The files; without a picture where matplotlib is not installed.
        """
        place = Path(folder)
        rows = {
            "standings": standing_rows(self.ranked),
            "rounds": tables.entry_rows(self.entries, self.challenge.conditions),
            "pairs": self._pair_rows(),
        }
        paths = [place / f"{name}.csv" for name in rows]
        for path, table in zip(paths, rows.values(), strict=True):
            write_csv(path, table)
        for name, drawn in self.tables().items():
            for ending, text in (("md", drawn.markdown()), ("tex", drawn.latex())):
                paths.append(place / f"{name}.{ending}")
                with replace_file(paths[-1]) as file:
                    file.write(text.encode())
        with contextlib.suppress(ImportError):
            figure = self.figure()
            for ending in ("png", "pdf"):
                paths.append(place / f"arena.{ending}")
                with replace_file(paths[-1]) as file:
                    figure.savefig(file, format=ending, dpi=200)
        return paths

    def _pair_rows(self) -> list[dict[str, Any]]:
        asked = self.challenge
        return tables.pair_rows(self.duels, self.entries, asked.conditions, asked.label)


def _checked(
    asked: Challenge, condition: Condition, store: Store, config: RunConfig
) -> MachineCheck:
    published = asked.published.entries(condition, [config.seed])[BASELINE]
    repeated = read_entry(store, [config], BASELINE, condition.target)
    origin, here = asked.published.origins[condition.name], origin_of(store, config)
    return compare_machines(condition, published, repeated, origin, here)


def _by_setting(configs: Iterable[RunConfig]) -> dict[RunConfig, list[RunConfig]]:
    found: dict[RunConfig, list[RunConfig]] = {}
    for config in configs:
        found.setdefault(_setting(config), []).append(config)
    return found


def _setting(config: RunConfig) -> RunConfig:
    """Return what the runs of a condition share, wherever they were made."""
    return dataclasses.replace(setting_of(config), selection_content="", precision="float32")
