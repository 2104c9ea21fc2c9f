"""One round of an NVFlare workflow."""

import dataclasses

import numpy as np

from fedcohort.adapters.rounds import ClientUpdate, CohortRound


@dataclasses.dataclass(eq=False, kw_only=True)
class SiteRound(CohortRound):
    """A round in progress, and the usable results of its clients so far."""

    updates: dict[int, ClientUpdate] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.clients: list[int] = np.unique(self.cohort.ids).tolist()

    def weight(self, client: int) -> float:
        """Return a client's share of the average, of all its places together."""
        return float(self.cohort.weights[self.cohort.ids == client].sum())

    def close(self) -> None:
        """Give up on those that have not answered."""
        for client in self.clients:
            if client not in self.updates:
                self.failures.setdefault(client, "it did not answer in time")
