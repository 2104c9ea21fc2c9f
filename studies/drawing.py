"""What the scripts beside the studies share: their options, how figures look, how they are saved.

Every script takes the folder that was ``--out`` of a study and writes figures as PDF, SVG and PNG.
The same store gives the same bytes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from fedcohort.errors import FedcohortError, InvalidInputError
from fedcohort.files import replace_file
from fedcohort.report.export import Row, write_csv
from fedcohort.simulation import RunConfig, Store
from fedcohort.simulation.scores import Target

FORMATS = ("pdf", "svg", "png")
TARGET = Target(0.9)  # of runs that no study gave one

_STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.4,
    "grid.alpha": 0.5,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "pdf.fonttype": 42,
    # Ids in an SVG are random without a salt, and text as text keeps files small and searchable.
    "svg.hashsalt": "fedcohort",
    "svg.fonttype": "none",
}
_UNDATED: dict[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}


class NotInStoreError(InvalidInputError):
    """The runs that a figure or a table shows are not in the store; the message names them."""


def read_options(
    description: str,
    arguments: Sequence[str] | None = None,
    *,
    table: str | None = None,
    parser: argparse.ArgumentParser | None = None,
) -> argparse.Namespace:
    """Read what a script is told on the command line.

    Parameters
    ----------
    description : str
        The script's documentation; its first line is what ``--help`` begins with.
    arguments : sequence of str or None
        The words after the script's name; those of this process by default.
    table : str or None
        The file name of the script's table, if it has one.
    parser : ArgumentParser or None
        With options of the script's own.

    Returns
    -------
    Namespace
        ``study`` and ``output``, both folders, and with a table ``csv``, its file.
    """
    parser = parser or argparse.ArgumentParser()
    parser.description = description.splitlines()[0]
    parser.add_argument("study", type=Path, help="the --out folder of a study or a run")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help="where the files go (default: figures in that folder)",
    )
    if table:
        parser.add_argument(
            "--csv", type=Path, metavar="FILE", help=f"the table (default: {table} beside them)"
        )
    options = parser.parse_args(arguments)
    beside = options.study.parent if options.study.is_file() else options.study
    options.output = options.output or beside / "figures"
    if table:
        options.csv = options.csv or options.output / table
    return options


def run_script(main: Callable[[], None]) -> None:
    """Run a script; wrong input ends it with one sentence and exit code 2."""
    try:
        main()
    except FedcohortError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(2)


def finished_runs(store: Store) -> list[RunConfig]:
    """Return the runs that are finished."""
    return [config for config in store.configs() if store.is_done(config.key)]


def write_table_of(
    rows_of: Callable[[Store], Sequence[Row]], options: argparse.Namespace, nothing: str
) -> None:
    """Write the table that is made of a study's store, and print its path.

    Raises `NotInStoreError` with the words `nothing`, in which ``{}`` is the study, if it is empty.
    """
    with Store.existing(options.study) as store:
        rows = rows_of(store)
    if not rows:
        raise NotInStoreError(nothing.format(options.study))
    write_table(rows, options)


def write_table(rows: Iterable[Row], options: argparse.Namespace) -> None:
    """Write a table and print its path."""
    write_csv(options.csv, rows)
    print(options.csv)


def write_table_and_figure(
    name: str, rows: Iterable[Row], drawing: Callable[[], Figure], options: argparse.Namespace
) -> None:
    """Write a table and the figure of it, and print their paths, or why there is no figure."""
    write_table(rows, options)
    try:
        print(*draw(name, drawing, options.output), sep="\n")
    except NotInStoreError as reason:
        print(f"{name} is left out: {reason}.", file=sys.stderr)


def draw(
    name: str, drawing: Callable[[], Figure], folder: Path, formats: Iterable[str] = FORMATS
) -> list[Path]:
    """Draw one figure in the style of all and save it.

    Parameters
    ----------
    name : str
        The files' name without an ending.
    drawing : callable
        Makes the figure.
    folder : Path
        Where the files go; created if missing.
    formats : iterable of str
        File endings.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    NotInStoreError
        When `drawing` does: nothing is written then.
    """
    paths = []
    with mpl.rc_context(_STYLE):
        figure = drawing()
        for ending in formats:
            paths.append(folder / f"{name}.{ending}")
            with replace_file(paths[-1]) as file:
                metadata = _UNDATED.get(ending, {})
                figure.savefig(file, format=ending, dpi=200, bbox_inches="tight", metadata=metadata)
    return paths
