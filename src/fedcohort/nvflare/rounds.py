"""One round of an NVFlare workflow."""

import dataclasses
import functools

import numpy as np

from fedcohort.adapters.rounds import ClientUpdate, CohortRound


@dataclasses.dataclass(eq=False, kw_only=True)
class SiteRound(CohortRound):
    """A round in progress, and the usable results of its clients so far.

    Attributes
    ----------
    least : int
        Usable results that the round needs, or as many as it asked.
    updates : dict of ClientUpdate
        The usable results, by client.
    """

    least: int
    updates: dict[int, ClientUpdate] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.clients: list[int] = np.unique(self.cohort.ids).tolist()

    @functools.cached_property
    def makes_a_model(self) -> bool:
        """Whether there are enough usable results; to be asked when all are in."""
        return self.can_average(self.updates, min(self.least, len(self.clients)))

    def close(self) -> None:
        """Give up on those that have not answered."""
        for client in self.clients:
            if client not in self.updates:
                self.failures.setdefault(client, "it did not answer in time")
