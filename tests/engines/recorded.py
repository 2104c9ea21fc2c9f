"""A run of the simulator as other engines can replay it: profiles, sizes, updates and cohorts."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort import simulate
from fedcohort.selection import Cohort, Need, Outcome, Selector, registry, selector_class

CLIENTS, COHORT, ROUNDS, SEED = 12, 4, 5, 3
SELECTORS = ("fedavg", "dp3s", "match", "clustered")


@dataclasses.dataclass
class Recording:
    """What a selector heard and chose.

    Attributes
    ----------
    profiles : float [C, Q]
        What clients sent on joining; zeros [C, 1] where the selector needs none.
    sizes : float64 [C]
        Samples they hold.
    cohorts : list of tuple of int
        Who was chosen, by round.
    updates : dict of float32 [d]
        What training changed, by (round, client).
    """

    profiles: NDArray[Any] = dataclasses.field(default_factory=lambda: np.zeros((0, 1)))
    sizes: NDArray[np.float64] = dataclasses.field(default_factory=lambda: np.zeros(0))
    cohorts: list[tuple[int, ...]] = dataclasses.field(default_factory=list)
    updates: dict[tuple[int, int], NDArray[np.float32]] = dataclasses.field(default_factory=dict)

    def change(self, round_: int, client: int) -> NDArray[np.float32]:
        """Return what a client's training changed."""
        if not self.updates:
            return np.full(3, client, np.float32)
        return self.updates[round_, client]


def record(selector: str) -> Recording:
    """Run the simulator with a selector that notes everything."""
    kept = Recording()
    base: type[Selector] = selector_class(selector)

    def join(self: Any, ids: Any, profiles: Any = None, *, sizes: Any = None, **more: Any) -> None:
        kept.profiles = np.zeros((len(ids), 1)) if profiles is None else np.array(profiles)
        kept.sizes = np.array(sizes, float)
        base.join(self, ids, profiles, sizes=sizes, **more)

    def select(self: Any, *given: Any, **named: Any) -> Cohort:
        cohort = base.select(self, *given, **named)
        kept.cohorts.append(tuple(cohort.ids.tolist()))
        return cohort

    def observe(self: Any, outcome: Outcome) -> None:
        if Need.UPDATE in self.needs and outcome.updates is not None:
            for client, change in zip(outcome.ids.tolist(), outcome.updates, strict=True):
                kept.updates[len(kept.cohorts), client] = np.array(change)
        base.observe(self, outcome)

    body = {"join": join, "select": select, "observe": observe}
    kind = dataclasses.dataclass(kw_only=True, eq=False)(
        type(f"Recorded{base.__name__}", (base,), {**body, "__module__": __name__})
    )
    try:
        _run(kind)
    finally:
        # `simulate` knows a class by its name from then on; other tests list all names.
        registry._registered.pop(kind.name, None)
    return kept


def _run(kind: type[Selector]) -> None:
    simulate(
        selectors=[kind],
        seeds=[SEED],
        clients=CLIENTS,
        cohort=COHORT,
        rounds=ROUNDS,
        model="mlp",
        size_spread=0.5,
        device="cpu",
        progress=False,
    )
