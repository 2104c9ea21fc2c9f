"""Selectors: one file an algorithm.

Importing this package registers fedcohort's own selectors.
"""

from fedcohort.selection import clustered, dp3s, fedavg, fedsae  # noqa: F401
from fedcohort.selection.base import Cohort, Need, Outcome, Selector
from fedcohort.selection.registry import (
    list_selectors,
    make_selector,
    register,
    selector_class,
)

__all__ = [
    "Cohort",
    "Need",
    "Outcome",
    "Selector",
    "list_selectors",
    "make_selector",
    "register",
    "selector_class",
]
