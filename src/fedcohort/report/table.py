"""Summaries as a table in the terminal, as wide as the terminal allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fedcohort.report.summary import Summary, by_panel, common_score, common_target, timed
from fedcohort.report.wording import (
    MISSING,
    PARTS,
    decimal,
    final_score,
    goal,
    megabytes,
    perplexity,
    rounds_interval,
    rounds_reached,
)


class _Column(NamedTuple):
    """A column: what it says, when it makes room in a narrow terminal, and what is noted below.

    The highest in `leaves` makes room first.
    """

    title: str
    short: str
    value: Callable[[Summary], str]
    leaves: int = 0
    note: str = ""


class ResultsTable:
    """What `rich` prints of summaries: one table a panel, whose columns fit the terminal."""

    def __init__(self, summaries: Sequence[Summary]) -> None:
        self._panels = by_panel(summaries)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._panels:
            yield Text("No round is finished yet.")
        for i, (title, members) in enumerate(self._panels.items()):
            if i:
                yield Text()
            columns, table = self._table(title, members, console, options)
            yield table
            notes = [column.note for column in columns if column.note]
            yield Text("; ".join(_notes(members) + notes), style="dim")

    def _table(
        self, title: str, members: Sequence[Summary], console: Console, options: ConsoleOptions
    ) -> tuple[list[_Column], Table]:
        columns = self._columns(members)
        table = _draw(title, columns, members, short=False)
        while _width(table, console, options) > options.max_width:
            table = _draw(title, columns, members, short=True)
            least = max(columns, key=lambda column: column.leaves)
            if not least.leaves:
                break
            if _width(table, console, options) > options.max_width:
                columns.remove(least)
        return columns, table

    def _columns(self, members: Sequence[Summary]) -> list[_Column]:
        score = common_score(members)
        target = goal(common_target(members), score)
        slow = timed(members)
        columns = [
            _Column("selector", "selector", lambda s: s.label),
            _Column(f"rounds to {target}", f"to {target}", rounds_reached),
            _Column("95 % interval", "95 %", rounds_interval, 3),
            _Column(f"train {score}", "train", lambda s: final_score(s, "train")),
            _Column(f"test {score}", "test", lambda s: final_score(s, "test"), 4),
            _Column("test perplexity", "perpl.", lambda s: perplexity(s.test_perplexity), 4),
            _Column("GEMD", "GEMD", lambda s: decimal(s.gemd), 1),
            _Column(f"MB to {target}", "MB", lambda s: megabytes(s.bytes_to_target), 2),
            _Column(
                f"time to {target}",
                "time",
                lambda s: decimal(s.time_to_target if slow else None, 1),
                2,
                "time is in passes of a median client",
            ),
            _Column(
                "part. variation",
                "variation",
                lambda s: decimal(s.participation_variation, 2),
                5,
            ),
        ]
        unknown = {MISSING, ""}
        return [c for c in columns if not all(c.value(s) in unknown for s in members)]


def _width(table: Table, console: Console, options: ConsoleOptions) -> int:
    return Measurement.get(console, options.update(max_width=10_000), table).maximum


def plain_grid(title: str | None = None, *, tight: bool = False) -> Table:
    """Return an empty table without lines at its sides, as all commands print them."""
    return Table(
        title=title,
        box=box.SIMPLE_HEAD,
        title_style="bold",
        title_justify="left",
        collapse_padding=tight,
        pad_edge=False,
        show_edge=False,
    )


def _draw(
    title: str, columns: Sequence[_Column], members: Sequence[Summary], *, short: bool
) -> Table:
    table = plain_grid(title)
    for i, column in enumerate(columns):
        heading = column.short if short else column.title
        table.add_column(heading, justify="right" if i else "left", no_wrap=i > 0)
    reached = [s.rounds_to_target for s in members if s.rounds_to_target is not None]
    for member in members:
        best = bool(reached) and member.rounds_to_target == min(reached)
        table.add_row(*(c.value(member) for c in columns), style="bold green" if best else None)
    return table


def _notes(members: Sequence[Summary]) -> list[str]:
    seeds = sorted({len(s.seeds) for s in members})
    rounds = sorted({s.rounds for s in members})
    notes = [f"{_span(seeds, 'seed')}, {_span(rounds, 'round')}"]
    measured = {m.target.on for m in members if m.target is not None}
    if measured:
        words = " or ".join(word for part, word in PARTS.items() if part in measured)
        notes.append(f"rounds to the target are those of the mean {words} curve")
    promises = {s.config.promise for s in members}
    if len(promises) == 1 and (promise := promises.pop()) is not None:
        notes.append(str(promise))
    every = sorted({s.config.eval_every for s in members})
    if every != [1]:
        notes.append(f"evaluated every {_span(every, 'round')}")
    sizes = sorted({s.train_evaluated_on for s in members if s.train_on_subset})
    if sizes:
        notes.append(
            f"training {common_score(members)} on {_span(sizes, 'sample')} until the last round"
        )
    if unfinished := sum(s.unfinished for s in members):
        notes.append(f"{_span([unfinished], 'run')} unfinished")
    if left_out := sum(s.left_out for s in members):
        notes.append(f"{_span([left_out], 'update')} left out")
    return notes


def _span(values: Sequence[int], word: str) -> str:
    if len(values) > 1:
        return f"{values[0]}–{values[-1]} {word}s"
    return f"{values[0]} {word}{'' if values[0] == 1 else 's'}"
