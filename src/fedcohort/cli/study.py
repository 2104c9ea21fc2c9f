"""Studies: done, and shown by part."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedcohort.cli.run import do_study
from fedcohort.report.summary import summarise
from fedcohort.report.table import results_table
from fedcohort.simulation.study import Study


def run_and_show(
    study: Study,
    out: Path,
    *,
    device: str,
    parts: Sequence[str],
    workers: int | None,
    engine: str,
    stop_after: float | None,
    logs: Sequence[str],
) -> None:
    """Do a study, or some parts of it, and print what came of it; parameters as in `do_study`."""
    notices = Console(stderr=True)
    with do_study(
        study,
        out,
        notices,
        device=device,
        parts=parts,
        workers=workers,
        engine=engine,
        stop_after=stop_after,
        logs=logs,
    ) as (store, study):
        done = study.only(parts) if parts else study
        Console().print(results_table(summarise(store, store.targets(), done.configs)))
        folder = shlex.quote(str(out))
        notices.print(f"For curves and details: fedcohort report {folder}")
        notices.print(f"For the paper's figures: fedcohort figures {folder}")
