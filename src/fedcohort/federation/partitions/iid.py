"""Samples dealt at random: every client's data look like everyone's."""

import numpy as np
import numpy.typing as npt

from fedcohort.errors import PartitionError
from fedcohort.federation.partitions.demand import (
    check_clients,
    check_total,
    draw,
    label_array,
    wanted_sizes,
)
from fedcohort.federation.partitions.partition import Partition


def partition_iid(
    labels: npt.ArrayLike,
    clients: int,
    *,
    rng: np.random.Generator,
    samples_per_client: int | None = None,
    sizes: npt.ArrayLike | None = None,
    reuse: bool = False,
) -> Partition:
    """Deal the samples at random, whatever their class.

    Without a size argument every client gets ⌊total / C⌋ samples.

    Parameters
    ----------
    labels, clients, rng, samples_per_client, sizes, reuse
        As in `partition_by_skew`.

    Raises
    ------
    PartitionError
        When more samples are asked for than there are.

    Examples
    --------
    >>> partition_iid(np.arange(100) % 10, 5, rng=np.random.default_rng(0)).sizes
    array([20, 20, 20, 20, 20])
    """
    total = len(label_array(labels))
    clients = check_clients(clients)
    wanted = wanted_sizes(clients, samples_per_client, sizes, minimum=1)
    if wanted is None:
        wanted = np.full(clients, total // clients)
        if total < clients:
            raise PartitionError(
                f"{total} samples are too few for {clients} clients: use at most {total} clients."
            )
    check_total(wanted, total, reuse)
    return draw(wanted[:, None], [np.arange(total)], rng)
