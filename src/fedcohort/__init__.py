"""fedcohort: which clients train in each round of federated learning.

The selectors and the k-DPP need NumPy and SciPy only; `simulate` and its `Results` need the
simulator's packages (``pip install 'fedcohort[sim]'``) and import them when first used.
"""

from typing import TYPE_CHECKING, Any

from fedcohort.selection import (
    AFL,
    DP3S,
    REFL,
    Clustered,
    Cohort,
    Delta,
    DivFL,
    FedAvg,
    FedCBS,
    FedCor,
    FedGS,
    FedSAE,
    GemdOracle,
    HiCS,
    KCenter,
    Match,
    Need,
    Oort,
    Outcome,
    PowerOfChoice,
    Selector,
    Ward,
    list_selectors,
    make_selector,
    register,
    selector_class,
)

if TYPE_CHECKING:
    from fedcohort.api import Results, simulate

__version__ = "0.2.0"

__all__ = [
    "AFL",
    "DP3S",
    "REFL",
    "Clustered",
    "Cohort",
    "Delta",
    "DivFL",
    "FedAvg",
    "FedCBS",
    "FedCor",
    "FedGS",
    "FedSAE",
    "GemdOracle",
    "HiCS",
    "KCenter",
    "Match",
    "Need",
    "Oort",
    "Outcome",
    "PowerOfChoice",
    "Results",
    "Selector",
    "Ward",
    "__version__",
    "list_selectors",
    "make_selector",
    "register",
    "selector_class",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name in ("Results", "simulate"):
        from fedcohort import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
