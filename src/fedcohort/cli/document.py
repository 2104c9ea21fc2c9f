"""One JSON document on standard output, and nothing else."""

import contextlib
import json
import sys
from typing import Annotated, Any

import click
import typer

_STDOUT = "fedcohort.stdout"


def _keep_clear(context: typer.Context, asked: bool) -> bool:
    """Send what models and data of a user's own print to standard error."""
    if asked:
        context.meta[_STDOUT] = sys.stdout
        context.with_resource(contextlib.redirect_stdout(sys.stderr))
    return asked


Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="One JSON document on stdout, nothing else.",
        callback=_keep_clear,
        is_eager=True,
    ),
]


def print_document(values: Any) -> None:
    """Print the document of a command that has the option `Json`."""
    stdout = click.get_current_context().meta[_STDOUT]
    typer.echo(json.dumps(values), file=stdout)
