"""Fetching data sets with a progress bar, or with lines of a log."""

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from fedcohort.federation import fetch
from fedcohort.report.live import has_screen, now_and_then


def fetch_with_progress(name: str) -> Path:
    """Find or download a data set and return its folder."""
    console = Console(stderr=True)
    say = now_and_then(console)
    with Progress(
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

        return fetch(name, progress=show)
