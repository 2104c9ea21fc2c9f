"""Who holds which data: data sets, downloads, partitions, federations."""

from fedcohort.federation.array_folder import load_array_folder
from fedcohort.federation.dataset import INPUTS, TASKS, Dataset
from fedcohort.federation.datasets import (
    DATASETS,
    NamedDataset,
    fetch,
    has_own_clients,
    load_dataset,
)
from fedcohort.federation.federation import Federation, build_federation
from fedcohort.federation.huggingface import from_partitions, load_huggingface
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
from fedcohort.federation.sources import Source, user_cache
from fedcohort.federation.table_files import load_table
from fedcohort.federation.transfer import Progress

__all__ = [
    "DATASETS",
    "INPUTS",
    "TASKS",
    "Dataset",
    "Federation",
    "NamedDataset",
    "Partition",
    "PartitionSpec",
    "Progress",
    "Source",
    "build_federation",
    "fetch",
    "from_partitions",
    "has_own_clients",
    "load_array_folder",
    "load_dataset",
    "load_huggingface",
    "load_npz",
    "load_table",
    "lognormal_sizes",
    "parse_skew",
    "partition_by_skew",
    "partition_dirichlet",
    "partition_iid",
    "partition_shards",
    "user_cache",
]
