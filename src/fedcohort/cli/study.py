"""Studies: done, and shown by part."""

import shlex
from pathlib import Path
from typing import Any

from rich.console import Console

from fedcohort.cli.run import do_study
from fedcohort.report.summary import summarise
from fedcohort.report.table import ResultsTable
from fedcohort.simulation.execution.here import here
from fedcohort.simulation.execution.work import Executor
from fedcohort.simulation.study import Study


def run_and_show_parts(
    study: Study, out: Path, *, engine: str, workers: int | None, **options: Any
) -> None:
    """Do a study, and print what came of it; options as in `do_study`."""
    notices = Console(stderr=True)
    executor = _executor(engine, workers)
    with do_study(study, out, notices, executor=executor, **options) as (store, wanted):
        Console().print(ResultsTable(summarise(store, store.targets(), wanted)))
        folder = shlex.quote(str(out))
        notices.print(f"For curves and details: fedcohort report {folder}")


def _executor(engine: str, workers: int | None) -> Executor:
    """Return who trains; imported only where it is used."""
    if engine == "ray":
        from fedcohort.simulation.execution.on_ray import OnRay

        return OnRay(workers)
    if workers is not None and workers > 1:
        from fedcohort.simulation.execution.processes import Processes

        return Processes(workers)
    return here
