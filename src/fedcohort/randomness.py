"""Every random draw is a function of (seed, purpose, round, client, ...).

Nothing here is shared state: two draws with different keys are independent, and the same key
gives the same draw whatever else was drawn before. That is why a run has one result alone, in a
batch, resumed, or on another engine.
"""

import functools
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import InvalidInputError


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """Return the generator of one purpose, such as ``"selection"`` or ``"partition"``.

    The seed is the run's, 0 or more; `key` tells draws of one purpose apart: the round, the client.
    """
    spawn_key = (zlib.crc32(purpose.encode()), *key)
    return np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=spawn_key))


def check_generator(rng: Any) -> None:
    """Refuse a source of chance that is no generator of NumPy, such as a seed."""
    if not isinstance(rng, np.random.Generator):
        raise InvalidInputError(
            f"rng must be a generator of NumPy, such as np.random.default_rng(0), not {rng!r}."
        )


@functools.lru_cache(maxsize=1024)
def derived_seed(seed: int, purpose: str, *key: int) -> int:
    """Return a 63-bit seed for libraries that take an integer instead of a generator."""
    return int(generator(seed, purpose, *key).integers(2**63 - 1))


def hashed_keys(seed: int, purpose: str, *key: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 64-bit keys for many draws at once, for generators that hash instead of step.

    As in `generator`, but parts of the key may be arrays, which are broadcast: int64 [...], one key
    a draw, SplitMix64 (Steele et al., OOPSLA 2014) folded over the parts.
    """
    state = np.asarray(derived_seed(seed, purpose), np.uint64)
    with np.errstate(over="ignore"):
        for part in key:
            z = (state ^ np.asarray(part).astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = z ^ (z >> np.uint64(31))
    return state.astype(np.int64)
