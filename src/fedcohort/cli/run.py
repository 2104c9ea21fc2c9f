"""Run configurations with live progress, and show what came of them."""

import json as json_module
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from fedcohort.report.summary import summarise, to_json
from fedcohort.report.table import results_table
from fedcohort.simulation import RunConfig, Store, simulate
from fedcohort.simulation.driver import load_datasets
from fedcohort.simulation.engine import find_device
from fedcohort.simulation.progress import Progress as RunProgress

INTERRUPTED = 130


def run_and_show(
    configs: Sequence[RunConfig],
    out: Path,
    *,
    target: float,
    json: bool,
    device: str,
    html: bool = False,
) -> None:
    """Run what the folder does not hold yet, then print a table or a JSON document."""
    find_device(device)
    # All that can be wrong with the input is found before the folder is made.
    datasets = load_datasets(configs)
    notices = Console(stderr=True)
    with Store(out) as store:
        before = sum(store.is_done(config.key) for config in configs)
        if before:
            notices.print(f"{before} of {len(configs)} runs are in {out} already.")
        with interrupts(notices) as stop, live_progress(notices) as progress:
            finished = simulate(
                configs, store, datasets=datasets, device=device, report=progress, stop=stop
            )
        if not finished:
            command = shlex.join(["fedcohort", *sys.argv[1:]])
            notices.print(f"Stopped. All finished rounds are saved; to go on: {command}")
            raise typer.Exit(INTERRUPTED)
        summaries = summarise(store, target, configs)
        if json:
            typer.echo(json_module.dumps(to_json(summaries, target)))
        else:
            Console().print(results_table(summaries, target))
        if html:
            # Imported here, since it alone needs plotly: machines with GPUs are often bare.
            from fedcohort.report.html import write_report

            notices.print(f"Curves and details: {write_report(store, out / 'report.html', target)}")
        elif not json:
            notices.print(f"For curves and details: fedcohort report {shlex.quote(str(out))}")


@contextmanager
def interrupts(notices: Console) -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a wish to stop after this round; the second one stops at once."""
    wished = False

    def wish(_signal: int, _frame: FrameType | None) -> None:
        nonlocal wished
        if wished:
            raise KeyboardInterrupt
        wished = True
        notices.print("Stopping after this round; press Ctrl-C again to stop at once.")

    before = signal.signal(signal.SIGINT, wish)
    try:
        yield lambda: wished
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def live_progress(notices: Console) -> Iterator[Callable[[RunProgress], None]]:
    """Show a progress bar on the terminal; silent where stderr is not one."""
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=notices,
        transient=True,
        disable=not notices.is_terminal,
    ) as bar:
        task = bar.add_task("preparing", total=None)

        def show(progress: RunProgress) -> None:
            bar.update(
                task,
                completed=progress.done,
                total=progress.total,
                description=f"{progress.note}, rounds",
            )

        yield show
