"""How much work clients can afford: the system model of FedSAE.

L. Li et al.: FedSAE. IJCNN 2021. Client c can afford Ẽ ~ N(μ_c, σ_c²) passes over its data in a
round, not less than 0, with μ_c ~ U(5, 10) and σ_c ~ U(μ_c/4, μ_c/2) drawn once.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import truncnorm

from fedcohort.randomness import generator


def affordable_passes(seed: int, round_: int, clients: NDArray[np.int64]) -> NDArray[np.float64]:
    """Draw what each of m clients can afford in this round, float64 [m]."""
    afforded = np.empty(len(clients))
    for place, client in enumerate(clients):
        own = generator(seed, "capacity", client)
        mean = own.uniform(5, 10)
        spread = own.uniform(mean / 4, mean / 2)
        draw = generator(seed, "affordable", round_, client)
        afforded[place] = truncnorm.rvs(
            -mean / spread, np.inf, loc=mean, scale=spread, random_state=draw
        )
    return afforded


def completed_passes(
    tasks: NDArray[np.float64], afforded: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return what clients complete of their tasks.

    Parameters
    ----------
    tasks : float64 [m, 2]
        The easy and the hard task.
    afforded : float64 [m]
        What each client can do.

    Returns
    -------
    float64 [m]
        The hard task where it can be afforded, else the easy one, else 0: dropped out.
    """
    easy, hard = tasks.T
    return np.where(afforded >= hard, hard, np.where(afforded >= easy, easy, 0.0))
