"""fedcohort: which clients train in each round of federated learning.

The selectors and the k-DPP need NumPy and SciPy only; the simulator (`fedcohort.simulation`) needs
PyTorch and is imported by name.
"""

from fedcohort.selection import (
    AFL,
    DP3S,
    Clustered,
    Cohort,
    DivFL,
    FedAvg,
    FedCor,
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

__version__ = "0.1.0"

__all__ = [
    "AFL",
    "DP3S",
    "Clustered",
    "Cohort",
    "DivFL",
    "FedAvg",
    "FedCor",
    "FedSAE",
    "GemdOracle",
    "HiCS",
    "KCenter",
    "Match",
    "Need",
    "Oort",
    "Outcome",
    "PowerOfChoice",
    "Selector",
    "Ward",
    "__version__",
    "list_selectors",
    "make_selector",
    "register",
    "selector_class",
]
