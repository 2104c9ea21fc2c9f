"""The selectors in real federations: an adapter for Flower (needs ``flwr``).

On the server, `CohortStrategy` wraps any Flower strategy and decides which nodes it sees. On the
client, `profile_query` answers from a PyTorch model and its data, `answer_queries` from anything.
"""

from fedcohort.flower.client import answer_queries
from fedcohort.flower.privacy import protected
from fedcohort.flower.strategy import CohortStrategy, RoundSummary
from fedcohort.flower.torch_client import profile_query

__all__ = ["CohortStrategy", "RoundSummary", "answer_queries", "profile_query", "protected"]
