"""Every random draw is a function of (seed, purpose, round, client, ...).

Nothing here is shared state: two draws with different keys are independent, and the same key
gives the same draw whatever else was drawn before. That is why a run has one result alone, in a
batch, resumed, or on another engine.
"""

import zlib

import numpy as np


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """Return the generator of one purpose.

    Parameters
    ----------
    seed : int
        The run's seed, 0 or more.
    purpose : str
        What the draw is for, such as ``"selection"`` or ``"partition"``.
    *key : int
        What tells draws of one purpose apart: the round, the client.
    """
    spawn_key = (zlib.crc32(purpose.encode()), *key)
    return np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=spawn_key))


def derived_seed(seed: int, purpose: str, *key: int) -> int:
    """Return a 63-bit seed for libraries that take an integer instead of a generator."""
    return int(generator(seed, purpose, *key).integers(2**63 - 1))
