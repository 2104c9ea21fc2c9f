"""What an executor is given to do, and what all executors do alike."""

import dataclasses
import math
from collections.abc import Callable
from typing import Protocol

from fedcohort.simulation.claims import Claim, Claims
from fedcohort.simulation.group_training import Chunk
from fedcohort.simulation.kept_models import keep_models
from fedcohort.simulation.logs import Log
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.progress import Progress
from fedcohort.simulation.scores import score_of
from fedcohort.simulation.store import Store


@dataclasses.dataclass(frozen=True)
class Work:
    """Groups of a store that are to be finished.

    Attributes
    ----------
    store : Store
        Where they are.
    names : frozenset of str
        Which of its groups.
    materials : Materials
        What their runs start from.
    device : {"auto", "cpu", "cuda"}
        Where to train.
    report : callable
        Hears the progress, after every round or every now and then.
    stop : callable
        Asked after every round; True saves everything and ends.
    deadline : float
        Of the monotonic clock: no round is begun that could not be saved before it.
    logs : tuple of str
        Where rounds are logged to besides; see `open_logs`.
    keep_models : bool
        Whether the last model of each run is kept beside the store.
    """

    store: Store
    names: frozenset[str]
    materials: Materials
    device: str = "auto"
    report: Callable[[Progress], None] = lambda _: None
    stop: Callable[[], bool] = lambda: False
    deadline: float = math.inf
    logs: tuple[str, ...] = ()
    keep_models: bool = False


class Executor(Protocol):
    """Does work, somewhere."""

    def __call__(self, work: Work) -> bool:
        """Work on groups until all are finished, and tell whether they are."""
        ...


def save_chunk(work: Work, claims: Claims, claim: Claim, chunk: Chunk, log: Log) -> None:
    """Save what came of some rounds of a group, and log it."""
    if work.keep_models:
        keep_models(claims.store.folder, chunk.models)
    claims.save(claim, chunk.records, chunk.states, chunk.seconds, chunk.scores)
    score = score_of(claims.store.facts(claim.configs[0].key))
    for config in claim.configs:
        log(config, chunk.records[config.key], score)
