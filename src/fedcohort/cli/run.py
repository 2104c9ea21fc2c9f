"""Do a study with live progress, and show what came of it."""

import dataclasses
import json as json_module
import math
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from fedcohort.cli.timing import time_left
from fedcohort.report.summary import summarise, to_json
from fedcohort.report.table import results_table
from fedcohort.simulation import RunConfig, Store
from fedcohort.simulation.content import study_with_content
from fedcohort.simulation.driver import Worker, load_datasets
from fedcohort.simulation.engine import device_for, find_device
from fedcohort.simulation.ledger import Entered, Ledger
from fedcohort.simulation.logs import open_logs
from fedcohort.simulation.packing import packer
from fedcohort.simulation.progress import Progress as StudyProgress
from fedcohort.simulation.study import Study, study_of_runs

INTERRUPTED = 130
UNFINISHED = 3
_SECONDS_BETWEEN_LINES = 30.0


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
    study = study_of_runs(configs, target)
    notices = Console(stderr=True)
    with do_study(study, out, notices, device=device) as (store, study):
        summaries = summarise(store, target, study.configs)
        if json:
            typer.echo(json_module.dumps(to_json(summaries, target)))
        else:
            Console().print(results_table(summaries))
        if html:
            # Imported here, since it alone needs plotly: machines with GPUs are often bare.
            from fedcohort.report.html import write_report

            notices.print(f"Curves and details: {write_report(store, out / 'report.html', target)}")
        elif not json:
            notices.print(f"For curves and details: fedcohort report {shlex.quote(str(out))}")


def in_fast_precision(configs: Sequence[RunConfig], device: str) -> list[RunConfig]:
    """Return runs in the precision that is fastest on the device."""
    fastest = "bfloat16" if find_device(device).type == "cuda" else "float32"
    return [dataclasses.replace(config, precision=fastest) for config in configs]


@contextmanager
def do_study(
    study: Study,
    out: Path,
    notices: Console,
    *,
    device: str,
    parts: Sequence[str] = (),
    workers: int | None = None,
    engine: str = "local",
    stop_after: float | None = None,
    logs: Sequence[str] = (),
) -> Iterator[tuple[Store, Study]]:
    """Do a study and yield its store, and the study as it stands there, when it is finished.

    Parameters
    ----------
    study : Study
        What to do.
    out : Path
        The store's folder.
    notices : Console
        Where to say how it goes.
    device : {"auto", "cpu", "cuda"}
        Where to train.
    parts : sequence of str
        Parts to do now; all if empty.
    workers : int, optional
        Processes, or groups at a time on Ray.
    engine : {"local", "ray"}
        Who trains.
    stop_after : float, optional
        Minutes after which to save and end.
    logs : sequence of str
        Where to log to besides.
    """
    deadline = math.inf if stop_after is None else time.monotonic() + 60 * stop_after
    where = device_for((study.only(parts) if parts else study).configs, device)
    # All that can be wrong with the input is found before the folder is made.
    datasets = load_datasets(study.configs)
    study = study_with_content(study, datasets)
    wanted = study.only(parts).configs if parts else study.configs
    with open_logs(logs) as log, Store(out) as store:
        before = sum(store.is_done(config.key) for config in wanted)
        ledger = Ledger(store)
        entered = ledger.enter(study, packer(datasets, where))
        _say_what_is_there(notices, study, entered, before, len(wanted), out)
        names = ledger.groups_of(wanted)
        with interrupts(notices) as stop, live_progress(notices, lines=bool(study.source)) as show:
            if engine == "ray":
                from fedcohort.simulation.on_ray import work_on_ray

                finished = work_on_ray(
                    ledger,
                    names,
                    datasets,
                    device,
                    workers,
                    report=show,
                    stop=stop,
                    deadline=deadline,
                    log=log,
                )
            elif workers is not None and workers > 1:
                from fedcohort.simulation.workers import work_in_processes

                finished = work_in_processes(
                    store,
                    names,
                    list(datasets),
                    device,
                    workers,
                    report=show,
                    stop=stop,
                    deadline=deadline,
                    logs=logs,
                )
            else:
                finished = Worker(
                    ledger, datasets, where, report=show, stop=stop, deadline=deadline, log=log
                ).work(names)
            wished = stop()
        if not finished:
            command = shlex.join(["fedcohort", *sys.argv[1:]])
            said = f"Stopped. All finished rounds are saved; to go on: {command}"
            notices.print(said, soft_wrap=True, highlight=False)
            raise typer.Exit(INTERRUPTED if wished else UNFINISHED)
        yield store, study


def _say_what_is_there(
    notices: Console, study: Study, entered: Entered, done: int, runs: int, out: Path
) -> None:
    if entered.changed and study.source:
        notices.print(
            f"Study {study.name!r} has changed since {out} was begun: {entered.added} runs are"
            f" added; {entered.unnamed} that it does not name any more stay as they are.",
            soft_wrap=True,
            highlight=False,
        )
    if done:
        notices.print(f"{done} of {runs} runs are in {out} already.")


@contextmanager
def interrupts(notices: Console) -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C or a termination into a wish to stop after this round; twice stops at once."""
    wished = False

    def wish(_signal: int, _frame: FrameType | None) -> None:
        nonlocal wished
        if wished:
            raise KeyboardInterrupt
        wished = True
        notices.print("Stopping after this round; press Ctrl-C again to stop at once.")

    before = {kind: signal.signal(kind, wish) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: wished
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


@contextmanager
def live_progress(
    notices: Console, *, lines: bool = False
) -> Iterator[Callable[[StudyProgress], None]]:
    """Show a progress bar on a terminal; elsewhere now and then a line, if `lines`."""
    said = time.monotonic()
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
        console=notices,
        transient=True,
        disable=not notices.is_terminal,
    ) as bar:
        task = bar.add_task("preparing", total=None, left="")

        def show(progress: StudyProgress) -> None:
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
                notices.print(f"{progress.note}: {done}, {left}", highlight=False)

        yield show
