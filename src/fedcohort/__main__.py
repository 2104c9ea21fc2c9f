"""``python -m fedcohort``: the command line."""

from fedcohort.cli import main

main()
