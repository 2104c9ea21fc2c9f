"""Power-of-choice: of a few candidates, those with the highest loss.

Y. J. Cho, J. Wang, G. Joshi: Towards Understanding Biased Client Selection in Federated Learning.
AISTATS 2022 (first as: Client Selection in Federated Learning: Convergence Analysis and
Power-of-Choice Selection Strategies, 2020).

Rule: d candidates are drawn without replacement with probabilities proportional to n_c; the k of
them with the highest loss train, ties at random. Every model weighs 1/k, since the draw has
counted the sizes already.

Variants: ``pow-d`` asks the candidates for the loss of the current model on all their data;
``cpow-d`` asks the same, and the client answers from one mini-batch; ``rpow-d`` asks nothing and
takes the loss known from each client's last training, infinite before the first.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from fedcohort.parameters import Interval, OneOf, Optional, parameter
from fedcohort.selection.base import Cohort, Floats, Need, Selector
from fedcohort.selection.registry import register
from fedcohort.selection.roster import Ids, Rows

_CANDIDATE = "candidate"


@register("pow-d")
@dataclasses.dataclass(kw_only=True, eq=False)
class PowerOfChoice(Selector):
    """Keep the candidates with the highest loss.

    Parameters
    ----------
    d : int, optional
        Candidates per round, never fewer than the cohort; twice the cohort if None.
    variant : {"pow-d", "cpow-d", "rpow-d"}
        Where the candidates' losses come from.

    Examples
    --------
    >>> asked = PowerOfChoice(d=20).fit(clients=100).ask(10, rng=np.random.default_rng(0))
    >>> {need.value: len(ids) for need, ids in asked.items()}
    {'loss': 20}
    """

    d: int | None = parameter(None, Optional(Interval(1, integral=True)))
    variant: str = parameter("pow-d", OneOf("pow-d", "cpow-d", "rpow-d"))

    needs = frozenset({Need.LOSS})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant != "rpow-d":
            # Losses seen in training do not compare with those of the current model.
            self.reported_loss = None  # type: ignore[misc]

    def ask(
        self, k: int, available: ArrayLike | None = None, *, rng: np.random.Generator
    ) -> Mapping[Need, Ids]:
        """Draw the candidates of the next `select` and ask their losses; rpow-d asks nothing."""
        rows = self._candidates(k, available)
        if self.variant == "rpow-d":
            return {}
        self._roster.drop(_CANDIDATE)
        drawn = np.sort(self._draw(self._count(k, rows), rows, rng))
        self._roster.define(_CANDIDATE, False, (), bool)
        self._roster.put(_CANDIDATE, drawn, np.ones(len(drawn), bool))
        return {Need.LOSS: self._roster.ids[drawn]}

    def _choose(self, k: int, rows: Rows, rng: np.random.Generator) -> Cohort:
        drawn = self._drawn(k, rows, rng)
        losses = self._losses(drawn)
        highest = np.lexsort((rng.random(len(drawn)), -losses))[:k]
        return self._cohort(drawn[highest], np.full(k, 1 / k))

    def _count(self, k: int, rows: Rows) -> int:
        return min(len(rows), max(k, 2 * k if self.d is None else self.d))

    def _draw(self, count: int, rows: Rows, rng: np.random.Generator) -> Rows:
        sizes = self._roster["size"][rows]
        return rng.choice(rows, count, replace=False, p=sizes / sizes.sum())

    def _drawn(self, k: int, rows: Rows, rng: np.random.Generator) -> Rows:
        """Return the candidates that `ask` drew; draw those that are missing."""
        asked = rows[:0]
        if _CANDIDATE in self._roster:
            asked = rows[self._roster[_CANDIDATE][rows]]
            self._roster.drop(_CANDIDATE)
        if len(asked) >= k:
            return asked
        missing = self._count(k, rows) - len(asked)
        return np.concatenate([asked, self._draw(missing, np.setdiff1d(rows, asked), rng)])

    def _losses(self, rows: Rows) -> Floats:
        losses = self._last_losses(rows)
        if self.variant == "rpow-d":
            return np.where(np.isnan(self._roster[Need.LOSS.value][rows]), np.inf, losses)
        return losses
