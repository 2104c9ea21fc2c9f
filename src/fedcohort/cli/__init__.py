"""The ``fedcohort`` command."""

import sys

from fedcohort.errors import FedcohortError


def main() -> None:
    """Run the command; wrong input ends it with one sentence and exit code 2."""
    try:
        from fedcohort.cli.app import app
    except ImportError as error:
        sys.stderr.write(
            f"Error: the command needs the simulator's packages ({error}):"
            " pip install 'fedcohort[sim]'.\n"
        )
        sys.exit(2)
    try:
        app()
    except FedcohortError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(2)
