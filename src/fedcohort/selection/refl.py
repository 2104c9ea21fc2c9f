"""Those who are least likely to be there next time, first: the selection of REFL.

A. M. Abdelmoniem, A. N. Sahu, M. Canini, S. A. Fahmy: REFL: Resource-Efficient Federated Learning.
EuroSys 2023, intelligent participant selection.

Rule: of the available clients those come first that are least likely to be available in the next
round, ties at random; who took part in one of the last `hold_off` − 1 rounds comes after all
others. Weights n_c / Σ n_c.

In the paper each client foretells its own availability and sends the server a probability. Here the
server learns it from whom it saw in each round, with nothing asked. a_c is how often client c, when
it was there, was also there in the next round, counted with one success and one failure added. If
the next round is the hour h of a day of `period` rounds, and c was there in s of the r rounds of
that hour until now,

    P(c is there) = (s + a_c) / (r + 1).

REFL's other half, staleness-aware aggregation, is not a matter of who is chosen and is not here.
"""

import dataclasses

import numpy as np

from fedcohort.parameters import Interval, parameter
from fedcohort.selection.base import Cohort, Floats, Outcome
from fedcohort.selection.counting import RoundSelector
from fedcohort.selection.registry import register
from fedcohort.selection.roster import Rows

_THERE = "there"
# The round in which each took part last, and the one before it was chosen.
_LAST, _BEFORE = "last", "before_that"
_SEEN, _ROUNDS = "seen", "rounds"
_STAYED, _LEFT = "stayed", "left"


@register("refl")
@dataclasses.dataclass(kw_only=True, eq=False)
class REFL(RoundSelector):
    """Prefer clients that will soon be away.

    Parameters
    ----------
    hold_off : int
        Rounds from one participation of a client to the next, if others can be had; 1 lets it take
        part in every round.
    period : int
        Rounds in a day; 1 leaves the hour out of the prediction.

    Examples
    --------
    >>> len(REFL().fit(clients=100).select(10, rng=np.random.default_rng(0)))
    10
    """

    hold_off: int = parameter(5, Interval(1, integral=True))
    period: int = parameter(24, Interval(1, integral=True))

    def _choose(self, k: int, rows: Rows, rng: np.random.Generator) -> Cohort:
        self._define()
        self._round += 1
        self._see(rows)
        resting = self._round - self._roster[_LAST][rows] < self.hold_off
        # Sorted from a random order, equal ones stay in it.
        order = rng.permutation(len(rows))
        best = np.lexsort((self._predicted(rows)[order], resting[order]))[:k]
        chosen = rows[order[best]]
        self._roster.put(_BEFORE, chosen, self._roster[_LAST][chosen])
        self._roster.put(_LAST, chosen, np.full(k, float(self._round)))
        return self._cohort(chosen)

    def observe(self, outcome: Outcome) -> None:
        """Let clients that were chosen but did not train be chosen as if they had not been."""
        self._define()
        rows = self._roster.rows(outcome.ids[~outcome.trained])
        self._roster.put(_LAST, rows, self._roster[_BEFORE][rows])

    def _see(self, rows: Rows) -> None:
        """Remember that `rows`, and nobody else, are there in this round."""
        there = np.zeros(len(self._roster))
        there[rows] = 1.0
        before = self._roster[_THERE] > 0
        everyone = np.arange(len(self._roster))
        self._roster.put(_STAYED, everyone, self._roster[_STAYED] + (before & (there > 0)))
        self._roster.put(_LEFT, everyone, self._roster[_LEFT] + (before & (there == 0)))
        self._roster.put(_THERE, everyone, there)
        hour = np.zeros(self.period)
        hour[self._round % self.period] = 1.0
        self._roster.put(_SEEN, everyone, self._roster[_SEEN] + there[:, None] * hour)
        self._roster.put(_ROUNDS, everyone, self._roster[_ROUNDS] + hour)

    def _predicted(self, rows: Rows) -> Floats:
        """Return how likely each of `rows` is to be there in the next round."""
        stayed, left = self._roster[_STAYED][rows], self._roster[_LEFT][rows]
        staying: Floats = (stayed + 1) / (stayed + left + 2)
        if self.period == 1:
            return staying
        hour = (self._round + 1) % self.period
        seen, rounds = self._roster[_SEEN][rows, hour], self._roster[_ROUNDS][rows, hour]
        predicted: Floats = (seen + staying) / (rounds + 1)
        return predicted

    def _define(self) -> None:
        for name in (_LAST, _BEFORE):
            self._roster.define(name, -np.inf)
        for name in (_THERE, _STAYED, _LEFT):
            self._roster.define(name, 0.0)
        for name in (_SEEN, _ROUNDS):
            self._roster.define(name, 0.0, (self.period,))
