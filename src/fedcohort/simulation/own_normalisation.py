"""BatchNorm that stays with each client: FedBN.

X. Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR
2021. The parameters and statistics of BatchNorm layers are never sent: a client begins each round
with the global model and its own normalisation, and keeps what it made of it. Whoever has not
trained yet has that of the first model.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcohort.simulation.assignment import Assignment
from fedcohort.simulation.member import Member
from fedcohort.training.problem import Parameters


@dataclasses.dataclass(frozen=True)
class OwnNormalisation:
    """What the clients of some runs keep for themselves.

    Attributes
    ----------
    values : dict of float32 [clients of all runs, ...]
        By name, run after run.
    trained : bool [clients of all runs]
        Who has trained at least once.
    starts : dict of int
        Where the clients of each run begin, by its place.
    """

    values: Parameters
    trained: Tensor
    starts: dict[int, int]

    @classmethod
    def at_first(
        cls, stacked: Parameters, names: Sequence[str], members: Sequence[Member]
    ) -> "OwnNormalisation":
        """Give every client the normalisation called `names` of its run's first model."""
        counts = [len(member.federation) for member in members]
        run = torch.arange(len(members)).repeat_interleave(torch.tensor(counts))
        ends = np.cumsum(counts).tolist()
        starts = {m.place: end - n for m, end, n in zip(members, ends, counts, strict=True)}
        device = next(iter(stacked.values())).device
        values = {name: stacked[name][run.to(device)] for name in names}
        return cls(values, torch.zeros(len(run), dtype=torch.bool, device=device), starts)

    def rows(self, member: Member, ids: NDArray[np.int64]) -> Tensor:
        """Return where some of a run's clients stand, int64 [m]."""
        return torch.from_numpy(self.starts[member.place] + ids).to(self.trained.device)

    def rows_of(self, assigned: Iterable[tuple[Member, Assignment]]) -> Tensor:
        """Return where the clients stand that answer, int64 [M], run after run."""
        return torch.cat([self.rows(member, a.ids[a.working]) for member, a in assigned])

    def models(self, stacked: Parameters, of: Tensor, rows: Tensor) -> Parameters:
        """Return the models of M clients, float32 [M, ...].

        `of` [M] says which of the stacked global models each has, `rows` [M] where it stands.
        """
        own = self.values
        return {n: own[n][rows] if n in own else values[of] for n, values in stacked.items()}

    def keep(self, rows: Tensor, local: Parameters, used: Tensor) -> None:
        """Let clients keep what they trained; those whose model was not used, what they had."""
        for name, values in self.values.items():
            shape = (-1, *(1,) * (values.dim() - 1))
            values[rows] = torch.where(used.view(shape), local[name], values[rows])
        self.trained[rows] |= used

    def average_into(self, stacked: Parameters, member: Member) -> None:
        """Give a run's global model the mean, by size, over the clients that have trained."""
        clients = np.arange(len(member.federation))
        rows = self.rows(member, clients)
        sizes = torch.from_numpy(member.federation.sizes).to(rows.device)
        weights = torch.where(self.trained[rows], sizes, 0).double()
        if not bool(weights.any()):
            return
        weights /= weights.sum()
        for name, values in self.values.items():
            own = values[rows].double()
            shares = weights.view(-1, *(1,) * (own.dim() - 1))
            stacked[name][member.place] = (shares * own).sum(0).float()

    def state(self, member: Member) -> dict[str, NDArray[Any]]:
        """Return what a run's clients keep, by name."""
        rows = self.rows(member, np.arange(len(member.federation)))
        found = {name: values[rows].cpu().numpy() for name, values in self.values.items()}
        return found | {"trained": self.trained[rows].cpu().numpy()}

    def restore(self, member: Member, state: dict[str, NDArray[Any]]) -> None:
        """Take over what `state` returned."""
        rows = self.rows(member, np.arange(len(member.federation)))
        for name, values in self.values.items():
            values[rows] = torch.from_numpy(state[name]).to(values.device)
        self.trained[rows] = torch.from_numpy(state["trained"]).to(rows.device)
