"""A federation: a data set and who holds which part of it."""

import dataclasses
import math
from typing import Any

import numpy as np

from fedcohort.errors import InvalidParameterError, PartitionError
from fedcohort.federation.dataset import Dataset, IntArray
from fedcohort.federation.partitions import (
    Partition,
    PartitionSpec,
    lognormal_sizes,
    parse_skew,
    partition_by_skew,
    partition_dirichlet,
    partition_iid,
    partition_shards,
)
from fedcohort.randomness import generator


@dataclasses.dataclass(frozen=True, eq=False)
class Federation:
    """A data set divided over clients.

    Parameters
    ----------
    dataset : Dataset
        The samples of all clients, and the test samples.
    partition : Partition
        Which training samples each client holds.
    label_counts : int64 array, shape [C, N]
        Each client's samples by class, or by label group where targets are not classes (see
        `Dataset.label_groups`); N is 0 where there are none.

    Examples
    --------
    >>> from fedcohort.federation import build_federation, load_dataset
    >>> federation = build_federation(load_dataset("digits"), skew="1", clients=50, seed=0)
    >>> len(federation), federation.label_counts.shape
    (50, (50, 10))
    """

    dataset: Dataset
    partition: Partition
    label_counts: IntArray

    def __len__(self) -> int:
        """Return the number of clients C."""
        return len(self.partition)

    @property
    def sizes(self) -> IntArray:
        """Samples held by each client, shape [C]."""
        return self.partition.sizes

    @property
    def client_names(self) -> tuple[str, ...]:
        """The clients' names: those of the data set's file, or their numbers."""
        return self.dataset.client_names or tuple(str(client) for client in range(len(self)))


def build_federation(
    dataset: Dataset,
    *,
    skew: str | None = None,
    clients: int | None = None,
    seed: int = 0,
    samples_per_client: int | None = None,
    size_spread: float = 0.0,
    reuse: bool = False,
) -> Federation:
    """Divide a data set over clients.

    A data set that already says who holds what (a user's ``.npz``) keeps its own clients:
    everything but the seed, which is then not used, is refused.

    Parameters
    ----------
    dataset : Dataset
        What to divide.
    skew : str, optional
        As `parse_skew` reads it: ``"1"``, ``"H"``, ``"iid"``, ``"dirichlet:0.1"``, ``"shards:2"``,
        or ``"natural"``, the default, for the data set's own clients.
    clients : int, optional
        The number of clients C; needed unless the data set has its own.
    seed : int, default 0
        The run's seed.
    samples_per_client : int, optional
        The (mean) size of a client; by default the largest that is feasible.
    size_spread : float, default 0
        Standard deviation of the logarithm of the clients' sizes; 0 makes them equal.
    reuse : bool, default False
        Whether a class that runs out may be drawn from again.

    Raises
    ------
    PartitionError
        When the data cannot satisfy the request.

    Examples
    --------
    >>> from fedcohort.federation import load_dataset
    >>> len(build_federation(load_dataset("digits"), skew="dirichlet:0.5", clients=20))
    20
    """
    spec = parse_skew("natural" if skew is None else skew)
    if dataset.client is not None:
        given = {
            f"skew {spec}": spec.kind != "natural",
            f"clients {clients}": clients is not None,
            f"samples per client {samples_per_client}": samples_per_client is not None,
            f"size spread {size_spread:g}": size_spread != 0,
            "reuse": reuse,
        }
        if refused := [setting for setting, there in given.items() if there]:
            raise PartitionError(
                f"{dataset.name} has clients of its own, so that it cannot be divided another way:"
                f" leave out {' and '.join(refused)}."
            )
        partition = Partition.from_owners(dataset.client, len(dataset.client_names))
    elif spec.kind == "natural":
        raise PartitionError(
            f"{dataset.name} has no clients of its own: choose a skew such as 1, 0.8, H or iid."
        )
    elif clients is None:
        raise PartitionError(f"Say over how many clients {dataset.name} is to be divided.")
    else:
        labels, rng = _labels_to_divide(dataset, spec), generator(seed, "partition")
        partition = _divide(labels, clients, spec, rng, samples_per_client, size_spread, reuse)
    return Federation(dataset, partition, _label_counts(dataset, partition))


def _label_counts(dataset: Dataset, partition: Partition) -> IntArray:
    if dataset.label_groups is None:
        return np.zeros((len(partition), 0), dtype=np.int64)
    return partition.label_counts(dataset.label_groups, dataset.groups)


def _labels_to_divide(dataset: Dataset, spec: PartitionSpec) -> IntArray:
    if dataset.label_groups is not None:
        return dataset.label_groups
    if spec.kind != "iid":
        raise PartitionError(
            f"{dataset.name} has no classes that clients could differ by: take the skew iid."
        )
    return np.zeros(len(dataset.x_train), dtype=np.int64)


def _divide(
    labels: IntArray,
    clients: int,
    spec: PartitionSpec,
    rng: np.random.Generator,
    samples_per_client: int | None,
    size_spread: float,
    reuse: bool,
) -> Partition:
    if not (math.isfinite(size_spread) and size_spread >= 0):
        raise InvalidParameterError(
            f"The size spread must be a number of at least 0, not {size_spread}."
        )
    if spec.kind == "shards":
        if samples_per_client is not None or size_spread or reuse:
            raise PartitionError(
                "Shards fix the clients' sizes: leave out the samples per client, the spread and"
                " the reuse."
            )
        assert spec.value is not None
        return partition_shards(labels, clients, int(spec.value), rng=rng)

    how: dict[str, Any] = {"rng": rng, "reuse": reuse}
    if not size_spread:
        how["samples_per_client"] = samples_per_client
    elif samples_per_client is not None:
        least = 2 if spec.value == "H" else 1
        total = clients * samples_per_client
        how["sizes"] = lognormal_sizes(clients, total, size_spread, rng, minimum=least)
    elif spec.kind == "skew":
        how["proportions"] = np.exp(size_spread * rng.standard_normal(clients))
    else:
        how["sizes"] = lognormal_sizes(clients, len(labels), size_spread, rng)
    if spec.kind == "iid":
        return partition_iid(labels, clients, **how)
    assert spec.value is not None
    if spec.kind == "dirichlet":
        return partition_dirichlet(labels, clients, float(spec.value), **how)
    return partition_by_skew(labels, clients, spec.value, **how)
