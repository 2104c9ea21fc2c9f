"""The HTML report: one self-contained file about all runs of a store."""

from __future__ import annotations

import html
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from fedcohort.errors import StoreError
from fedcohort.report.summary import summarise

if TYPE_CHECKING:
    from fedcohort.simulation.store import Store


def write_report(store: Store, path: str | Path, target: float | None) -> Path:
    """Write the report of all runs in a store.

    Parameters
    ----------
    store : Store
        Where the runs are.
    path : path-like
        The file to write; it appears whole or not at all.
    target : float or None
        The training accuracy to count rounds and bytes to.

    Returns
    -------
    Path
        The file.
    """
    summaries = summarise(store, target)
    if not summaries:
        raise StoreError(f"There is no finished round in {str(store.folder)!r} to report on yet.")
    figure = go.Figure()
    for s in summaries:
        figure.add_scatter(x=s.evaluated_rounds, y=s.train.mean, name=f"{s.panel}: {s.label}")
    body = figure.to_html(full_html=False, include_plotlyjs=True)
    page = f"<!doctype html><title>fedcohort</title><h1>{html.escape(str(store.folder))}</h1>{body}"
    destination = Path(path)
    _replace(destination, page)
    return destination


def _replace(path: Path, text: str) -> None:
    """Write a file that appears whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise StoreError(f"The report {str(path)!r} cannot be written ({error}).") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
