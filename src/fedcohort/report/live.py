"""Progress while it is made, in a terminal, in a notebook or as lines of a log."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bar

from fedcohort.federation import Progress as Receiving
from fedcohort.report.wording import time_left
from fedcohort.simulation.progress import Progress

SECONDS_BETWEEN_LINES = 30.0
# Columns from which on rounds are counted beside the bar; they would be cut off in fewer.
_WIDE = 70


def has_screen(console: Console) -> bool:
    """Tell whether a bar that moves can be shown."""
    return console.is_terminal or console.is_jupyter


def now_and_then(console: Console) -> Callable[[str], None]:
    """Return a function that prints a line unless it has said something of late."""
    said = time.monotonic()

    def say(line: str) -> None:
        nonlocal said
        if time.monotonic() - said >= SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            console.print(line, highlight=False)

    return say


@contextmanager
def live_progress(console: Console) -> Iterator[Callable[[Progress], None]]:
    """Show a progress bar where there is a screen, elsewhere now and then a line."""
    say = now_and_then(console)
    with Bar(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn() if console.width >= _WIDE else TaskProgressColumn(),
        TextColumn("{task.fields[left]}"),
        console=console,
        transient=True,
        disable=not has_screen(console),
    ) as bar:
        task = bar.add_task("preparing", total=None, left="")

        def show(progress: Progress) -> None:
            left = time_left(progress.seconds_left)
            bar.update(
                task,
                completed=progress.done,
                total=progress.total,
                description=f"{progress.note}, rounds",
                left=left,
            )
            if bar.disable:
                say(f"{progress.note}: {progress.done:,} of {progress.total:,} rounds, {left}")

        yield show


@contextmanager
def live_downloads(console: Console) -> Iterator[Receiving]:
    """Show a bar for each file that is downloaded, or now and then a line."""
    say = now_and_then(console)
    with Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
        transient=True,
        disable=not has_screen(console),
    ) as bar:
        tasks = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)
            if bar.disable:
                of = "" if total is None else f" of {total / 1e6:.0f}"
                say(f"{file}: {done / 1e6:.0f}{of} MB")

        yield show
