"""Runs: their configuration, the round loop, studies and where they are executed, the store.

Configurations and stores can be used without PyTorch, which the rest imports.
"""

from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.store import RoundRecord, Store

__all__ = ["RoundRecord", "RunConfig", "Store"]
