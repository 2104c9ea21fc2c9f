"""Unbiased sampling of diverse clients: DELTA.

L. Wang, Y. Guo, T. Lin, X. Tang: DELTA: Diverse Client Sampling for Fasting Federated Learning.
NeurIPS 2023, the practical version, which hears participants only.

Rule: client c has the probability p_c, at first the same for all. k draws with replacement; a draw
of c weighs (n_c / n) / (k p_c), so that the weighted sum of updates is on average that of all
available clients, whose data are n. After a round, with g_c the update of participant c, ḡ their
plain mean and n_A the participants' data,

    p_c  ∝  n_c / n_A · (diversity · ‖g_c − ḡ‖ + (1 − diversity) · ‖g_c‖)

shares out among the participants the probability that they had together; nobody else's changes.

The paper's p_c ∝ √(α₁ ‖g_c − ḡ‖² + α₂ σ_c²) also hears the variance σ_c² of a client's batch
gradients. The authors' practical code does without it and has the rule above, which is taken from
it. It draws without replacement, which the weights do not fit, and lets probabilities fall to 0.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from fedcohort.parameters import Interval, parameter
from fedcohort.selection.base import Cohort, Floats, Need, Outcome, Selector
from fedcohort.selection.columns import sum_over_columns
from fedcohort.selection.registry import register
from fedcohort.selection.roster import Rows

# In units of the mean of all clients, so that a newcomer is an average one.
_PROBABILITY = "probability"


@register("delta")
@dataclasses.dataclass(kw_only=True, eq=False)
class Delta(Selector):
    """Draw clients whose updates differ from the others' more often, and weigh them less.

    Parameters
    ----------
    diversity : float
        How much an update's distance from the mean counts, rather than its length.
    least : float
        The share of an equal chance that every client keeps; it bounds the weights. 0 lets
        probabilities fall as the updates say.

    Examples
    --------
    >>> len(Delta().fit(clients=100).select(10, rng=np.random.default_rng(0)))
    10
    """

    diversity: float = parameter(0.5, Interval(0, 1))
    least: float = parameter(0.1, Interval(0, 1))

    needs = frozenset({Need.UPDATE})
    forgets_updates = True
    repeats = True

    def _choose(self, k: int, rows: Rows, rng: np.random.Generator) -> Cohort:
        self._roster.define(_PROBABILITY, 1.0)
        even = np.full(len(rows), 1 / len(rows))
        known = self._roster[_PROBABILITY][rows]
        chances = known / known.sum() if known.any() else even
        chances = (1 - self.least) * chances + self.least * even
        drawn = rng.choice(len(rows), k, p=chances / chances.sum())
        sizes = self._roster["size"][rows]
        shares = sizes / sizes.sum()
        return self._cohort(rows[drawn], shares[drawn] / (k * chances[drawn]))

    def observe(self, outcome: Outcome) -> None:
        """Share out anew the probability of those who trained; their updates are not kept."""
        if outcome.updates is None or not outcome.trained.any():
            return
        self._roster.define(_PROBABILITY, 1.0)
        rows = self._roster.rows(outcome.ids[outcome.trained])
        importance = importances(
            outcome.updates[outcome.trained], self._roster["size"][rows], self.diversity
        )
        # A lone participant, or equal updates, say nothing; nor does a diverging model.
        if 0 < importance.sum() < np.inf:
            together = self._roster[_PROBABILITY][rows].sum()
            self._roster.put(_PROBABILITY, rows, together * importance / importance.sum())


def importances(updates: NDArray[np.floating], sizes: Floats, diversity: float) -> Floats:
    """Return what the probabilities of a round's participants are proportional to.

    Parameters
    ----------
    updates : float [m, d]
        Local minus global parameters.
    sizes : float64 [m]
        Samples of each participant.
    diversity : float
        How much the distance from the mean counts, rather than the length.

    Returns
    -------
    float64 [m]
    """

    def part(columns: slice) -> Floats:
        gradients = updates[:, columns].astype(np.float64)
        apart = gradients - gradients.mean(axis=0)
        return np.array([np.einsum("md,md->m", each, each) for each in (apart, gradients)])

    with np.errstate(over="ignore", invalid="ignore"):
        apart, lengths = np.sqrt(sum_over_columns(part, updates.shape[1]))
        importance: Floats = sizes / sizes.sum() * (diversity * apart + (1 - diversity) * lengths)
    return importance
