"""Runs: their configuration, the engine, the store.

Configurations and stores can be used without PyTorch, which the engine alone imports.
"""

from typing import TYPE_CHECKING, Any

from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.store import RoundRecord, Store

if TYPE_CHECKING:
    from fedcohort.simulation.engine import Lockstep, simulate

__all__ = ["Lockstep", "RoundRecord", "RunConfig", "Store", "simulate"]


def __getattr__(name: str) -> Any:
    if name in ("Lockstep", "simulate"):
        from fedcohort.simulation import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
