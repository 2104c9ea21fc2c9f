"""Summaries as a table in the terminal, as wide as the terminal allows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

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
    divergence,
    final_score,
    goal,
    megabytes,
    perplexity,
    rounds_interval,
    rounds_reached,
)

Row = TypeVar("Row")


@dataclasses.dataclass(frozen=True)
class Column(Generic[Row]):
    """A column: what it says, when it makes room in a narrow terminal, and what is noted below.

    The highest in `leaves` makes room first, and 0 never does. One that `stays` is shown even if
    nothing is known in it.
    """

    title: str
    short: str
    value: Callable[[Row], str]
    leaves: int = 0
    note: str = ""
    stays: bool = False


class ResultsTable:
    """What `rich` prints of summaries: one table a panel, whose columns fit the terminal."""

    def __init__(self, summaries: Sequence[Summary]) -> None:
        self._panels = by_panel(summaries)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._panels:
            yield Text("No round is finished yet.")
        explained: dict[str, None] = {}
        for i, (title, members) in enumerate(self._panels.items()):
            if i:
                yield Text()
            columns = _columns(members)
            table, shown = fitting(columns, members, console, options, title, _first(members))
            yield table
            if said := divergence(members):
                yield Text(said, style="yellow")
            yield Text("; ".join(_notes(members)), style="dim")
            explained |= dict.fromkeys(column.note for column in shown if column.note)
        if explained:
            yield Text("; ".join(explained), style="dim")


def _first(members: Sequence[Summary]) -> Callable[[Summary], bool]:
    """Return what tells who is first at the target; nobody is where nobody got there."""
    reached = [s.rounds_to_target for s in members if s.rounds_to_target is not None]
    return lambda s: bool(reached) and s.rounds_to_target == min(reached)


def _columns(members: Sequence[Summary]) -> list[Column[Summary]]:
    score = common_score(members)
    target = goal(common_target(members), score)
    slow = timed(members)
    tested = all(s.part == "test" for s in members)
    columns = [
        Column[Summary]("selector", "selector", lambda s: s.label),
        Column[Summary](f"rounds to {target}", f"to {target}", rounds_reached),
        Column[Summary](
            "95 % interval",
            "interval",
            rounds_interval,
            3,
            "interval: 95 %, of the rounds, by resampling the seeds",
        ),
        Column[Summary](
            f"train {score}",
            "train",
            lambda s: final_score(s, "train"),
            leaves=4 if tested else 0,
            stays=any(s.train.known for s in members),
        ),
        Column[Summary](
            f"test {score}",
            "test",
            lambda s: final_score(s, "test"),
            leaves=0 if tested else 4,
            stays=any(s.test is not None for s in members),
        ),
        Column[Summary]("test perplexity", "perpl.", lambda s: perplexity(s.test_perplexity), 4),
        Column[Summary](
            "GEMD",
            "GEMD",
            lambda s: decimal(s.gemd),
            1,
            "GEMD: how far a cohort's label mixture is from everyone's, from 0 (the same) to 2",
        ),
        Column[Summary](
            f"MB to {target}",
            "MB",
            lambda s: megabytes(s.bytes_to_target),
            2,
            "MB: sent both ways until the target",
        ),
        Column[Summary](
            f"time to {target}",
            "time",
            lambda s: decimal(s.time_to_target if slow else None, 1),
            2,
            "time is in passes of a median client",
        ),
        Column[Summary](
            "part. variation",
            "variation",
            lambda s: decimal(s.participation_variation, 2),
            5,
            "variation: of how often clients were chosen, 0 if all alike",
        ),
    ]
    unknown = {MISSING, ""}
    return [c for c in columns if c.stays or not all(c.value(s) in unknown for s in members)]


def fitting(
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    console: Console,
    options: ConsoleOptions,
    title: str | None = None,
    best: Callable[[Row], bool] = lambda _: False,
) -> tuple[Table, list[Column[Row]]]:
    """Return a table with as many of the columns as fit the terminal, and these columns."""
    left = list(columns)
    table = _draw(title, left, rows, best, short=False)
    while _width(table, console, options) > options.max_width:
        table = _draw(title, left, rows, best, short=True)
        least = max(left, key=lambda column: column.leaves)
        if not least.leaves:
            break
        if _width(table, console, options) > options.max_width:
            left.remove(least)
    return table, left


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
    title: str | None,
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    best: Callable[[Row], bool],
    *,
    short: bool,
) -> Table:
    table = plain_grid(title)
    for i, column in enumerate(columns):
        heading = column.short if short else column.title
        table.add_column(heading, justify="right" if i else "left", no_wrap=i > 0)
    for row in rows:
        table.add_row(*(c.value(row) for c in columns), style="bold green" if best(row) else None)
    return table


def _notes(members: Sequence[Summary]) -> list[str]:
    seeds = sorted({len(s.seeds) for s in members})
    rounds = sorted({s.rounds for s in members})
    notes = [f"{_span(seeds, 'seed')}, {_span(rounds, 'round')}"]
    measured = {m.target.on for m in members if m.target is not None}
    if measured:
        words = " or ".join(word for part, word in PARTS.items() if part in measured)
        reached = any(s.rounds_to_target is not None for s in members)
        notes.append(
            f"rounds to the target are those of the mean {words} curve"
            if reached
            else f"no mean {words} curve reached the target"
        )
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
    if missed := sum(s.missed for s in members):
        notes.append(f"{_span([missed], 'update')} left out (dropped out, late or not finite)")
    return notes


def _span(values: Sequence[int], word: str) -> str:
    if len(values) > 1:
        return f"{values[0]}–{values[-1]} {word}s"
    return f"{values[0]} {word}{'' if values[0] == 1 else 's'}"
