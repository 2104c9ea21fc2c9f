"""Shards of the samples sorted by class.

References
----------
McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS
2017, section 3.
"""

import numpy as np
import numpy.typing as npt

from fedcohort.errors import InvalidParameterError, PartitionError
from fedcohort.federation.partitions.demand import check_clients, label_array
from fedcohort.federation.partitions.partition import Partition, offsets_of


def partition_shards(
    labels: npt.ArrayLike, clients: int, shards_per_client: int, *, rng: np.random.Generator
) -> Partition:
    """Sort the samples by class, cut them into equal shards and deal the shards at random.

    Parameters
    ----------
    labels : int array, shape [total samples]
        The class of every sample.
    clients : int
        The number of clients C.
    shards_per_client : int
        Shards a client. Where C·shards does not divide the total, random samples are left out, so
        that all shards have one size.
    rng : numpy.random.Generator
        Where every random choice comes from.

    Raises
    ------
    PartitionError
        When there are fewer samples than shards.

    Examples
    --------
    >>> partition_shards(np.arange(100) % 10, 5, 2, rng=np.random.default_rng(0)).sizes
    array([20, 20, 20, 20, 20])
    """
    shards_per_client = check_shards(shards_per_client)
    array = label_array(labels)
    clients = check_clients(clients)
    shards = clients * shards_per_client
    shard_size = len(array) // shards
    if shard_size == 0:
        raise PartitionError(
            f"{len(array)} samples cannot be cut into {shards} shards "
            f"({clients} clients × {shards_per_client}): use fewer clients or shards."
        )
    kept = rng.permutation(len(array))[: shards * shard_size]
    by_label = kept[np.argsort(array[kept], kind="stable")].reshape(shards, shard_size)
    dealt = by_label[rng.permutation(shards)].reshape(clients, -1)
    shuffled = rng.permuted(dealt, axis=1)
    return Partition(shuffled.ravel(), offsets_of(np.full(clients, shuffled.shape[1])))


def check_shards(count: float) -> int:
    """Return the shards a client as an int, having checked that it is whole and at least 1."""
    if count != int(count) or count < 1:
        raise InvalidParameterError(
            f"Shards a client must be a whole number of at least 1, not {count}."
        )
    return int(count)
