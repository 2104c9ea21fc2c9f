"""Selectors: one file an algorithm.

Importing this package registers fedcohort's own selectors.
"""

from fedcohort.selection import (  # noqa: F401
    afl,
    clustered,
    divfl,
    dp3s,
    fedavg,
    fedcor,
    fedsae,
    gemd_oracle,
    hics,
    kcenter,
    match,
    oort,
    powd,
    ward,
)
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
