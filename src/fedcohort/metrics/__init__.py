"""What a run is judged by: GEMD, rounds to target, stability, fairness."""

from fedcohort.metrics.convergence import (
    RoundsInterval,
    bootstrap_interval,
    drop_after_peak,
    rounds_to_target,
)
from fedcohort.metrics.fairness import jain_index, participation_variation, worst_share
from fedcohort.metrics.gemd import gemd, gemd_from, gemd_of_cohorts

__all__ = [
    "RoundsInterval",
    "bootstrap_interval",
    "drop_after_peak",
    "gemd",
    "gemd_from",
    "gemd_of_cohorts",
    "jain_index",
    "participation_variation",
    "rounds_to_target",
    "worst_share",
]
