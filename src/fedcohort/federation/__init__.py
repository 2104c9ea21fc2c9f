"""Who holds which data: data sets, downloads, partitions, federations."""

from fedcohort.federation.dataset import Dataset
from fedcohort.federation.datasets import DATASETS, load_dataset
from fedcohort.federation.download import Progress, fetch
from fedcohort.federation.federation import Federation, brings_clients, build_federation
from fedcohort.federation.npz import load_npz
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
from fedcohort.federation.sources import SOURCES, Source, user_cache

__all__ = [
    "DATASETS",
    "SOURCES",
    "Dataset",
    "Federation",
    "Partition",
    "PartitionSpec",
    "Progress",
    "Source",
    "brings_clients",
    "build_federation",
    "fetch",
    "load_dataset",
    "load_npz",
    "lognormal_sizes",
    "parse_skew",
    "partition_by_skew",
    "partition_dirichlet",
    "partition_iid",
    "partition_shards",
    "user_cache",
]
