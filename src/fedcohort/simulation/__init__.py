"""Runs: their configuration, the engine, what drives it, the store.

Configurations and stores can be used without PyTorch, which the engine alone imports.
"""

from typing import TYPE_CHECKING, Any

from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.store import RoundRecord, Store

if TYPE_CHECKING:
    from fedcohort.simulation.driver import simulate
    from fedcohort.simulation.engine import Lockstep

__all__ = ["Lockstep", "RoundRecord", "RunConfig", "Store", "simulate"]


def __getattr__(name: str) -> Any:
    if name == "Lockstep":
        from fedcohort.simulation.engine import Lockstep

        return Lockstep
    if name == "simulate":
        from fedcohort.simulation.driver import simulate

        return simulate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
