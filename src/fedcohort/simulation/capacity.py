"""How much work clients can afford: the system model of FedSAE.

L. Li et al.: FedSAE. IJCNN 2021. Client c can afford Ẽ ~ N(μ_c, σ_c²) passes over its data in a
round, not less than 0, with μ_c ~ U(5, 10) and σ_c ~ U(μ_c/4, μ_c/2) drawn once.
"""

import numpy as np
import scipy  # its parts are loaded when they are used
from numpy.typing import NDArray

from fedcohort.randomness import generator


def affordable_passes(seed: int, round_: int, clients: NDArray[np.int64]) -> NDArray[np.float64]:
    """Draw what each of m clients can afford in this round, float64 [m]."""
    if len(clients) == 0:
        return np.empty(0)
    own = [generator(seed, "capacity", client) for client in clients]
    mean = np.array([draw.uniform(5, 10) for draw in own])
    spread = np.array([draw.uniform(m / 4, m / 2) for draw, m in zip(own, mean, strict=True)])
    drawn = [generator(seed, "affordable", round_, client).random() for client in clients]
    # The quantiles of a normal distribution that is cut off at 0.
    above = (1 - np.array(drawn)) * scipy.special.ndtr(mean / spread)
    return np.asarray(mean - spread * scipy.special.ndtri(above), np.float64)


def completed_passes(
    tasks: NDArray[np.float64], afforded: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return what clients complete [m] of their easy and hard `tasks` [m, 2].

    The hard task where it can be `afforded` [m], else the easy one, else 0: dropped out.
    """
    easy, hard = tasks.T
    return np.where(afforded >= hard, hard, np.where(afforded >= easy, easy, 0.0))
