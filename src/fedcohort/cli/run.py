"""Do a study with live progress, and show what came of it."""

import dataclasses
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

from fedcohort.cli.document import print_document
from fedcohort.federation import DATASETS
from fedcohort.files import make_folder, replace_file
from fedcohort.report.live import live_downloads, live_progress
from fedcohort.report.summary import summarise, to_json
from fedcohort.report.table import ResultsTable
from fedcohort.simulation import RunConfig, Store
from fedcohort.simulation.devices import find_device
from fedcohort.simulation.execution.here import here
from fedcohort.simulation.execution.runner import prepare_study, run_study
from fedcohort.simulation.execution.work import Executor
from fedcohort.simulation.kept_models import check_kept, read_model
from fedcohort.simulation.logs import open_logs, run_name
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.planning import Entered
from fedcohort.simulation.scores import Target
from fedcohort.simulation.study import Study, study_of_runs

INTERRUPTED = 130
UNFINISHED = 3


def run_and_show(
    configs: Sequence[RunConfig],
    out: Path,
    *,
    target: Target,
    json: bool,
    device: str,
    html: bool = False,
    save_models: Path | None = None,
) -> None:
    """Run what the folder does not hold yet, then print a table or a JSON document."""
    study = study_of_runs(configs, target)
    notices = Console(stderr=True)
    with do_study(study, out, notices, device=device, save_models=save_models) as (store, wanted):
        if save_models is not None:
            _save_models(store, wanted, save_models)
        summaries = summarise(store, target, wanted)
        for read in dict.fromkeys(summary.profile for summary in summaries if summary.profile):
            notices.print(f"Profiles are read from the {read}.", highlight=False)
        if json:
            print_document(to_json(summaries, target.score))
        else:
            Console().print(ResultsTable(summaries))
        if html:
            # Imported here, since it alone needs jinja2: machines with GPUs are often bare.
            from fedcohort.report.html import write_report

            notices.print(f"Curves and details: {write_report(store, out / 'report.html', target)}")
        elif not json:
            notices.print(f"For curves and details: fedcohort report {shlex.quote(str(out))}")


def _save_models(store: Store, configs: Sequence[RunConfig], folder: Path) -> None:
    """Write each run's final model as a state dict that `torch.load` reads."""
    import torch

    for config in configs:
        arrays = read_model(store.folder, config.key)
        with replace_file(folder / f"{run_name(config)}.pt") as file:
            torch.save({name: torch.from_numpy(values) for name, values in arrays.items()}, file)


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
    executor: Executor = here,
    stop_after: float | None = None,
    logs: Sequence[str] = (),
    save_models: Path | None = None,
) -> Iterator[tuple[Store, Sequence[RunConfig]]]:
    """Do a study, and yield its store and its runs when it is finished.

    Parameters are those of `prepare_study` and `run_study`, but for `out`, the store's folder;
    `notices`, where to say how it goes; `stop_after`, the minutes after which to save and end; and
    `save_models`, the folder that final models are to go into, which is made.
    """
    keep_models = save_models is not None
    deadline = math.inf if stop_after is None else time.monotonic() + 60 * stop_after
    with live_downloads(notices) as heard:
        materials = Materials(progress=heard)
        prepared = prepare_study(study, device=device, materials=materials)
    brought = (config for config in prepared.study.configs if config.dataset not in DATASETS)
    for data in dict.fromkeys(map(materials.dataset, brought)):
        notices.print(repr(data), soft_wrap=True, highlight=False, markup=False)
    with open_logs(logs):
        pass  # refuses what cannot be logged to
    if save_models is not None:
        make_folder(save_models)
    with Store(out) as store:
        if keep_models:
            check_kept(store, prepared.study.configs)
        with interrupts(notices) as stop, live_progress(notices) as show:
            finished = run_study(
                prepared,
                store,
                executor,
                entered=lambda found: _say_what_is_there(notices, prepared.study, found, out),
                report=show,
                stop=stop,
                deadline=deadline,
                logs=logs,
                keep_models=keep_models,
            )
            wished = stop()
        if not finished:
            command = shlex.join(["fedcohort", *sys.argv[1:]])
            said = f"Stopped. All finished rounds are saved; to resume: {command}"
            notices.print(said, soft_wrap=True, highlight=False)
            raise typer.Exit(INTERRUPTED if wished else UNFINISHED)
        yield store, prepared.study.configs


def _say_what_is_there(notices: Console, study: Study, entered: Entered, out: Path) -> None:
    if entered.changed:
        notices.print(
            f"Study {study.name!r} has changed since {out} was begun: {entered.added} runs are"
            f" added; {entered.unnamed} that it does not name any more stay as they are.",
            soft_wrap=True,
            highlight=False,
        )
    if entered.done:
        runs = entered.added + entered.known
        notices.print(f"{entered.done} of {runs} runs are in {out} already.")


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
