"""The arena on the command line: a selector runs, and is shown beside the published ones."""

import re
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedcohort.cli.document import print_document
from fedcohort.errors import DatasetError
from fedcohort.leaderboard.arena import ArenaResults
from fedcohort.leaderboard.challenge import Challenge
from fedcohort.leaderboard.conditions import choose
from fedcohort.leaderboard.published import Published
from fedcohort.leaderboard.tables import PaperTable
from fedcohort.report.table import plain_grid
from fedcohort.report.wording import goal

_SHOWN = ("standings", "conditions", "rules")


def list_conditions(wanted: Sequence[str] | None) -> None:
    """Print some published conditions, by name or by data set, or all."""
    published = Published().conditions
    table = _grid("condition", "goal", "rounds", "seeds", "rules")
    for c in choose(published, wanted) if wanted else published:
        counts = c.config.rounds, len(c.seeds), len(c.selectors)
        table.add_row(c.name, goal(c.target, "accuracy"), *map(str, counts))
    console = Console()
    console.print(table)
    said = "A data set's name stands for all of its conditions."
    console.print(Text(said, style="dim"))


def run_arena(asked: Challenge, out: Path, *, json: bool, device: str) -> None:
    """Run what the folder does not hold yet, and print and write what came of it."""
    notices = Console(stderr=True)
    found = _run(asked, out, device, notices)
    files = found.write(out / re.sub(r"[^\w.=,-]+", "-", asked.label))
    if json:
        print_document(found.to_json())
    else:
        _show(found)
    if not any(file.suffix == ".png" for file in files):
        notices.print("There is no picture, since matplotlib is not installed.")
    where = files[0].parent
    notices.print(
        f"Tables (CSV, Markdown, LaTeX) and picture: {where}", soft_wrap=True, highlight=False
    )


def _run(asked: Challenge, out: Path, device: str, notices: Console) -> ArenaResults:
    if not asked.new:
        notices.print(
            f"{asked.label} is published in these conditions: it is shown, and nothing is run.",
            soft_wrap=True,
            highlight=False,
        )
        return ArenaResults.of(asked)
    # Imported only now, since PyTorch comes with it: wrong options are answered at once.
    from fedcohort.cli.run import do_study
    from fedcohort.simulation.devices import find_device

    kind = find_device(device).type
    try:
        with do_study(asked.check(kind), out, notices, device=device) as (_, checked):
            pass
        with do_study(asked.study(kind), out, notices, device=device) as (store, own):
            return ArenaResults.of(asked, store, checked, own)
    except DatasetError as error:
        names = sorted({c.config.dataset for c in asked.new} - {"digits"})
        fetch = " and ".join(f"fedcohort data fetch {name}" for name in names)
        raise DatasetError(f"{error} Or fetch it first, with {fetch}.") from error


def _show(found: ArenaResults) -> None:
    console = Console()
    for check in found.checks:
        style = None if check.agrees else "bold red"
        console.print(Text(str(check), style=style or ""))
    tables = found.tables()
    for name in _SHOWN:
        console.print()
        console.print(_drawn(tables[name]))
        console.print(Text(tables[name].note, style="dim"))


def _drawn(table: PaperTable) -> Table:
    drawn = _grid(*table.columns, title=table.title)
    for row in table.rows:
        drawn.add_row(*row, style="bold green" if row[0] == table.marked else None)
    return drawn


def _grid(first: str, *others: str, title: str | None = None) -> Table:
    table = plain_grid(title, tight=True)
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
