"""Selectors: one file per algorithm.

Importing this package registers fedcohort's own selectors.
"""

from fedcohort.selection.afl import AFL
from fedcohort.selection.base import Cohort, Need, Outcome, Selector
from fedcohort.selection.clustered import Clustered
from fedcohort.selection.delta import Delta
from fedcohort.selection.divfl import DivFL
from fedcohort.selection.dp3s import DP3S
from fedcohort.selection.fedavg import FedAvg
from fedcohort.selection.fedcbs import FedCBS
from fedcohort.selection.fedcor import FedCor
from fedcohort.selection.fedgs import FedGS
from fedcohort.selection.fedsae import FedSAE
from fedcohort.selection.gemd_oracle import GemdOracle
from fedcohort.selection.hics import HiCS
from fedcohort.selection.kcenter import KCenter
from fedcohort.selection.match import Match
from fedcohort.selection.oort import Oort
from fedcohort.selection.powd import PowerOfChoice
from fedcohort.selection.refl import REFL
from fedcohort.selection.registry import (
    list_selectors,
    make_selector,
    register,
    selector_class,
)
from fedcohort.selection.sizes import bounded_sizes
from fedcohort.selection.ward import Ward
from fedcohort.selection.wrappers import always, only

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
    "Selector",
    "Ward",
    "always",
    "bounded_sizes",
    "list_selectors",
    "make_selector",
    "only",
    "register",
    "selector_class",
]
