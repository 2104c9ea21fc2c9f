"""The arena on the command line: a selector runs, and is shown beside the published ones."""

import re
from collections.abc import Sequence
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
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
# How narrow names may become before numbers make room for them.
_NAMES = 12


def list_conditions(wanted: Sequence[str] | None) -> None:
    """Print some published conditions, by name or by data set, or all."""
    published = Published().conditions
    rows = []
    for c in choose(published, wanted) if wanted else published:
        counts = c.config.rounds, len(c.seeds), len(c.selectors)
        rows.append((c.name, goal(c.target, "accuracy"), *map(str, counts)))
    columns = ("condition", "goal", "rounds", "seeds", "rules")
    console = Console()
    console.print(_drawn(PaperTable("", columns, tuple(rows)), console))
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
        console.print(_drawn(tables[name], console))
        console.print(Text(tables[name].note, style="dim"))


def _drawn(table: PaperTable, console: Console) -> Table:
    """Return a table that fits: long names fold, and then the last columns leave."""
    unbounded = console.options.update(max_width=10_000)
    longest = max(cell_len(cells[0]) for cells in (table.columns, *table.rows))
    for count in range(len(table.columns), 0, -1):
        drawn = plain_grid(table.title or None, tight=True)
        drawn.add_column(table.columns[0], overflow="fold")
        for heading in table.columns[1:count]:
            drawn.add_column(heading, justify="right", no_wrap=True)
        for row in table.rows:
            drawn.add_row(*row[:count], style="bold green" if row[0] == table.marked else None)
        beyond = Measurement.get(console, unbounded, drawn).maximum - console.width
        if longest - beyond >= min(longest, _NAMES):
            break
    return drawn
