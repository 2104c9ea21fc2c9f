"""The selectors in real federations: an adapter for Flower (needs ``flwr``).

On the server, `CohortStrategy` wraps any Flower strategy and decides which nodes it sees. On the
client, `profile_query` answers from a PyTorch model and its data, `answer_queries` from anything.
"""

import importlib.util

if importlib.util.find_spec("flwr") is None:
    raise ImportError(
        "fedcohort.flower needs Flower, which is not installed: pip install 'fedcohort[flower]'."
    )

from fedcohort.adapters.introductions import Limits
from fedcohort.adapters.rounds import RoundSummary
from fedcohort.flower.client import answer_queries
from fedcohort.flower.privacy import protected
from fedcohort.flower.secure import SecureAggregation, secure_mods
from fedcohort.flower.strategy import CohortStrategy
from fedcohort.flower.torch_client import profile_query

__all__ = [
    "CohortStrategy",
    "Limits",
    "RoundSummary",
    "SecureAggregation",
    "answer_queries",
    "profile_query",
    "protected",
    "secure_mods",
]
