"""Progress while it is made, in a terminal, in a notebook or as lines of a log."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bar

from fedcohort.report.timing import time_left
from fedcohort.simulation.progress import Progress

_SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def live_progress(console: Console, *, lines: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Show a progress bar where there is a screen; elsewhere now and then a line, if `lines`."""
    said = time.monotonic()
    with Bar(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
        console=console,
        transient=True,
        disable=not (console.is_terminal or console.is_jupyter),
    ) as bar:
        task = bar.add_task("preparing", total=None, left="")

        def show(progress: Progress) -> None:
            nonlocal said
            left = time_left(progress.seconds_left)
            bar.update(
                task,
                completed=progress.done,
                total=progress.total,
                description=f"{progress.note}, rounds",
                left=left,
            )
            if lines and bar.disable and time.monotonic() - said > _SECONDS_BETWEEN_LINES:
                said = time.monotonic()
                done = f"{progress.done:,} of {progress.total:,} rounds"
                console.print(f"{progress.note}: {done}, {left}", highlight=False)

        yield show
