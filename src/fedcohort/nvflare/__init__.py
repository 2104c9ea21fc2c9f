"""The selectors in real federations: an adapter for NVIDIA FLARE (needs ``nvflare``).

On the server, `CohortFedAvg` is NVFlare's FedAvg whose cohorts a selector chooses, and
`CohortSelection` does the same to other workflows. On the clients, a `QueryExecutor` answers what
the selector asks.
"""

import importlib.util

if importlib.util.find_spec("nvflare") is None:
    raise ImportError(
        "fedcohort.nvflare needs NVIDIA FLARE, which is not installed: pip install"
        " 'fedcohort[nvflare]'."
    )

from fedcohort.adapters.rounds import RoundSummary
from fedcohort.nvflare.controller import CohortFedAvg, CohortSelection
from fedcohort.nvflare.executor import QueryExecutor, TorchQueryExecutor
from fedcohort.nvflare.messages import LOSS_TASK, PROFILE_TASK, QUERY_TASKS

__all__ = [
    "LOSS_TASK",
    "PROFILE_TASK",
    "QUERY_TASKS",
    "CohortFedAvg",
    "CohortSelection",
    "QueryExecutor",
    "RoundSummary",
    "TorchQueryExecutor",
]
