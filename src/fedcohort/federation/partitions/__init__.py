"""Partitions of a data set over clients, one file an algorithm."""

from fedcohort.federation.partitions.dirichlet import partition_dirichlet
from fedcohort.federation.partitions.iid import partition_iid
from fedcohort.federation.partitions.partition import Partition
from fedcohort.federation.partitions.shards import partition_shards
from fedcohort.federation.partitions.sizes import lognormal_sizes
from fedcohort.federation.partitions.skew import partition_by_skew
from fedcohort.federation.partitions.spec import PartitionSpec, parse_skew

__all__ = [
    "Partition",
    "PartitionSpec",
    "lognormal_sizes",
    "parse_skew",
    "partition_by_skew",
    "partition_dirichlet",
    "partition_iid",
    "partition_shards",
]
