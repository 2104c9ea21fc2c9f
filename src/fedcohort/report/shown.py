"""Progress for those who want it; who does not needs no rich."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedcohort.federation import Progress as Receiving
from fedcohort.simulation.progress import Progress


@contextmanager
def shown_progress(wanted: bool) -> Iterator[Callable[[Progress], None]]:
    """Yield what shows progress, if it is to be shown."""
    if not wanted:
        yield lambda _: None
        return
    from rich.console import Console

    from fedcohort.report.live import live_progress

    with live_progress(Console(stderr=True)) as show:
        yield show


@contextmanager
def shown_downloads(wanted: bool) -> Iterator[Receiving | None]:
    """Yield what shows how far downloads are, if it is to be shown."""
    if not wanted:
        yield None
        return
    from rich.console import Console

    from fedcohort.report.live import live_downloads

    with live_downloads(Console(stderr=True)) as show:
        yield show
