"""Label skew drawn from a Dirichlet distribution.

References
----------
Shares of a class over the clients: Yurochkin et al., "Bayesian Nonparametric Federated Learning of
Neural Networks", ICML 2019. Shares of a client over the classes: Hsu et al., "Measuring the Effects
of Non-Identical Data Distribution for Federated Visual Classification", 2019.
"""

import math

import numpy as np
import numpy.typing as npt

from fedcohort.errors import InvalidParameterError, PartitionError
from fedcohort.federation.partitions.demand import (
    ClassPools,
    check_clients,
    check_total,
    draw,
    wanted_sizes,
)
from fedcohort.federation.partitions.partition import IntArray, Partition
from fedcohort.federation.partitions.sizes import FloatArray, apportion, normalised_exp


def partition_dirichlet(
    labels: npt.ArrayLike,
    clients: int,
    alpha: float,
    *,
    rng: np.random.Generator,
    samples_per_client: int | None = None,
    sizes: npt.ArrayLike | None = None,
    minimum: int = 1,
    reuse: bool = False,
) -> Partition:
    """Draw the clients' class shares from a Dirichlet distribution.

    Two variants are in use, and the size arguments choose between them:

    - no size argument: each class's samples are divided over the clients by one draw of Dir(α) of
      dimension C. All samples are used and the clients' sizes come out unequal. Clients left
      with fewer than `minimum` samples are topped up with random samples of the largest client.
    - `samples_per_client` or `sizes`: each client's class shares are one draw of Dir(α·p), where
      p is the class distribution of the data. A class that runs out is left out of the clients
      that follow (in random order), unless `reuse`.

    Parameters
    ----------
    labels : int array, shape [total samples]
        The class of every sample.
    clients : int
        The number of clients C.
    alpha : float
        The concentration α > 0; small is skewed, large is IID.
    rng : numpy.random.Generator
        Where every random choice comes from.
    samples_per_client, sizes, reuse
        As in `partition_by_skew`.
    minimum : int, default 1
        The least size of a client.

    Raises
    ------
    PartitionError
        When there are too few samples.

    Examples
    --------
    >>> parts = partition_dirichlet(np.arange(100) % 10, 5, 0.5, rng=np.random.default_rng(0))
    >>> int(parts.sizes.sum())
    100
    """
    alpha = check_alpha(alpha)
    pools = ClassPools.of(labels)
    supply = pools.supply
    total = int(supply.sum())
    clients = check_clients(clients)
    wanted = wanted_sizes(clients, samples_per_client, sizes, minimum)
    if wanted is None:
        if total < clients * minimum:
            raise PartitionError(
                f"{total} samples are too few to give {clients} clients at least "
                f"{minimum} each: use at most {total // minimum} clients."
            )
        demand = _class_split(supply, clients, alpha, minimum, rng)
    else:
        check_total(wanted, total, reuse)
        demand = _client_mixtures(wanted, supply, alpha, reuse, rng)
    return draw(demand, pools.members, rng)


def check_alpha(alpha: float) -> float:
    """Return α, having checked that it is above 0 and finite."""
    # Below 1e-300 the logarithms of the gamma draws leave the range of a float.
    if not (math.isfinite(alpha) and alpha >= 1e-300):
        raise InvalidParameterError(
            f"The α of skew dirichlet:α must be above 0 and finite, not {alpha}."
        )
    return float(alpha)


def _class_split(
    supply: IntArray, clients: int, alpha: float, minimum: int, rng: np.random.Generator
) -> IntArray:
    """Divide every class over the clients by a draw of Dir(α), shape [C, N]."""
    demand = np.empty((clients, len(supply)), dtype=np.int64)
    for column, available in enumerate(supply):
        demand[:, column] = apportion(int(available), _dirichlet(np.full(clients, alpha), rng))
    sizes = demand.sum(axis=1)
    for poor in np.flatnonzero(sizes < minimum):
        while sizes[poor] < minimum:
            rich = int(np.argmax(sizes))
            given = int(rng.choice(len(supply), p=demand[rich] / sizes[rich]))
            demand[rich, given] -= 1
            demand[poor, given] += 1
            sizes[rich] -= 1
            sizes[poor] += 1
    return demand


def _client_mixtures(
    sizes: IntArray, supply: IntArray, alpha: float, reuse: bool, rng: np.random.Generator
) -> IntArray:
    """Draw every client's class counts from its own Dirichlet shares, shape [C, N]."""
    prior = supply / supply.sum()
    left = supply.copy()
    demand = np.zeros((len(sizes), len(supply)), dtype=np.int64)
    for client in rng.permutation(len(sizes)):
        shares = _dirichlet(alpha * prior, rng)
        if reuse:
            demand[client] = rng.multinomial(sizes[client], shares)
            continue
        missing = int(sizes[client])
        while missing:
            open_shares = np.where(left > 0, shares, 0.0)
            if open_shares.sum() == 0:
                open_shares = left.astype(np.float64)
            drawn = rng.multinomial(missing, open_shares / open_shares.sum())
            taken = np.minimum(drawn, left)
            demand[client] += taken
            left -= taken
            missing -= int(taken.sum())
    return demand


def _dirichlet(concentration: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Draw from a Dirichlet in the log domain, where tiny concentrations do not underflow."""
    # Gamma(a) has the law of Gamma(a + 1) · U^(1/a), and −log U is exponential.
    logs = np.log(rng.standard_gamma(concentration + 1.0))
    logs -= rng.standard_exponential(len(concentration)) / concentration
    return normalised_exp(logs)
