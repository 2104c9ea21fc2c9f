"""What a run is judged by: GEMD, rounds to target, fairness, bytes."""

from fedcohort.metrics.convergence import RoundsInterval, bootstrap_interval, rounds_to_target
from fedcohort.metrics.fairness import jain_index, participation_variation
from fedcohort.metrics.gemd import gemd, gemd_of_cohorts
from fedcohort.metrics.traffic import bytes_to_target, round_bytes, setup_bytes, vector_bytes

__all__ = [
    "RoundsInterval",
    "bootstrap_interval",
    "bytes_to_target",
    "gemd",
    "gemd_of_cohorts",
    "jain_index",
    "participation_variation",
    "round_bytes",
    "rounds_to_target",
    "setup_bytes",
    "vector_bytes",
]
