"""The ``fedcohort`` command."""

import gc
import sys

from fedcohort.errors import FedcohortError, show_warnings_as_lines


def main() -> None:
    """Run the command; wrong input ends it with one sentence and exit code 2."""
    # What is imported stays to the end: to look for garbage among half a million such objects, now
    # and once more on leaving, would take a quarter of the time to start.
    gc.disable()
    try:
        from fedcohort.cli.app import app

        gc.freeze()
        gc.enable()
        show_warnings_as_lines()
        app()
    except FedcohortError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(2)
    except ModuleNotFoundError as error:
        # Commands import what they need of it only when they are called.
        sys.stderr.write(
            f"Error: the command needs the simulator's packages ({error}):"
            " pip install 'fedcohort[sim]'.\n"
        )
        sys.exit(2)
