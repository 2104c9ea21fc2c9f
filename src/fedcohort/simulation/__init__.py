"""Runs: their configuration, the engine, the store (PyTorch)."""

from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.engine import Lockstep, simulate
from fedcohort.simulation.store import RoundRecord, Store

__all__ = ["Lockstep", "RoundRecord", "RunConfig", "Store", "simulate"]
