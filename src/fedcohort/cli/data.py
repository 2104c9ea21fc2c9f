"""Fetching data sets with a progress bar, or with lines of a log."""

from pathlib import Path

from rich.console import Console

from fedcohort.federation import fetch
from fedcohort.report.live import live_downloads


def fetch_with_progress(name: str) -> Path:
    """Find or download a data set and return its folder."""
    with live_downloads(Console(stderr=True)) as show:
        return fetch(name, progress=show)
