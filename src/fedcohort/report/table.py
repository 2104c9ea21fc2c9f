"""Summaries as a table in the terminal, as wide as the terminal allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fedcohort.report.summary import Summary
from fedcohort.report.wording import (
    decimal,
    final,
    megabytes,
    percent,
    rounds_interval,
    rounds_reached,
)


class _Column(NamedTuple):
    """A column: what it says, and the terminal width from which it is worth its place."""

    title: str
    short: str
    value: Callable[[Summary], str]
    from_width: int = 0


def results_table(summaries: Sequence[Summary], target: float | None) -> ResultsTable:
    """Return what `rich` prints: one table a data set and skew, one row a selector.

    Parameters
    ----------
    summaries : sequence of Summary
        From `summarise`.
    target : float or None
        The training accuracy that rounds and bytes are counted to.
    """
    return ResultsTable(summaries, target)


class ResultsTable:
    """Summaries that choose their columns when they are printed."""

    def __init__(self, summaries: Sequence[Summary], target: float | None) -> None:
        self._target = target
        self._panels: dict[str, list[Summary]] = {}
        for summary in summaries:
            self._panels.setdefault(summary.panel, []).append(summary)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._panels:
            yield Text("No round is finished yet.")
        for title, members in self._panels.items():
            yield self._table(title, members, console, options)

    def _table(
        self, title: str, members: Sequence[Summary], console: Console, options: ConsoleOptions
    ) -> Table:
        width = options.max_width
        columns = [c for c in self._columns(members) if width >= c.from_width]
        for short in (False, True):
            table = _draw(title, _caption(members, self._target), columns, members, short=short)
            if Measurement.get(console, options.update(max_width=10_000), table).maximum <= width:
                break
        return table

    def _columns(self, members: Sequence[Summary]) -> list[_Column]:
        columns = [_Column("selector", "selector", lambda s: s.label)]
        if self._target is not None:
            goal = percent(self._target, 0)
            columns.append(_Column(f"rounds to {goal}", f"to {goal}", rounds_reached))
            if any(s.interval is not None for s in members):
                columns.append(_Column("95 % interval", "95 %", rounds_interval))
        columns.append(_Column("train accuracy", "train", lambda s: percent(final(s, "train"))))
        if any(s.test is not None for s in members):
            columns.append(
                _Column("test accuracy", "test", lambda s: percent(final(s, "test")), 70)
            )
        columns.append(_Column("GEMD", "GEMD", lambda s: decimal(s.gemd)))
        if self._target is not None:
            to_target = _Column(f"MB to {goal}", "MB", lambda s: megabytes(s.bytes_to_target), 64)
            columns.append(to_target)
        unfair = "participation variation", "unfair"
        columns.append(_Column(*unfair, lambda s: decimal(s.participation_variation, 2), 76))
        return columns


def _draw(
    title: str,
    caption: str,
    columns: Sequence[_Column],
    members: Sequence[Summary],
    *,
    short: bool,
) -> Table:
    table = Table(
        title=title, caption=caption, box=box.SIMPLE_HEAD, title_style="bold", pad_edge=False
    )
    for i, column in enumerate(columns):
        heading = column.short if short else column.title
        table.add_column(heading, justify="right" if i else "left", no_wrap=i > 0)
    reached = [s.rounds_to_target for s in members if s.rounds_to_target is not None]
    for member in members:
        best = bool(reached) and member.rounds_to_target == min(reached)
        table.add_row(*(c.value(member) for c in columns), style="bold green" if best else None)
    return table


def _caption(members: Sequence[Summary], target: float | None) -> str:
    seeds = sorted({len(s.seeds) for s in members})
    rounds = sorted({s.rounds for s in members})
    notes = [f"{_span(seeds)} seeds, {_span(rounds)} rounds"]
    if target is not None:
        notes.append("rounds and MB to the target: of the mean training curve")
    if unfinished := sum(s.unfinished for s in members):
        notes.append(f"{unfinished} runs unfinished")
    if left_out := sum(s.left_out for s in members):
        notes.append(f"{left_out} updates left out")
    return "; ".join(notes)


def _span(values: Sequence[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]}–{values[-1]}"
