"""Guided participant selection: Oort.

F. Lai, X. Zhu, H. V. Madhyastha, M. Chowdhury: Oort: Efficient Federated Learning via Guided
Participant Selection. OSDI 2021, Algorithm 1.

Rule, in round R = 1, 2, …: a client is explored once it has trained, last in round L_c. Its
utility is

    U_c = (min(u_c, the clip quantile of u) − min u) / (max u − min u) + √(0.1 · ln R / L_c)

with u_c = n_c · loss_c (brought to [0, 1] as in the authors' code, else the second term would not
count),

times (T / t_c)^α if its last duration t_c exceeds the preferred duration T. A share
ε = max(ε_min, ε_0 · decay^(R−1)) of the cohort is drawn from the clients never explored: of the
five times as many that promise most, proportionally to the promise n_c, times the same factor where
t_c is known. The other places are drawn without replacement, with probabilities proportional to U,
from the explored clients whose utility is at least `cutoff` times that of the last one that would
fit. Either part fills up from the other where it is short. Weights n_c / Σ n_c.

The pacer: T is a quantile of the known durations. Every W rounds, if the summed n_c · loss_c of the
cohorts was lower in the last W rounds than in the W before, T moves up by one step.

The client's mean loss, the only loss that a client tells, stands in for √(mean of squared sample
losses). Without durations all clients count as equally fast. Parameters are those of the code that
the authors maintain (SymbioticLab/FedScale); the pacer is the paper's.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.parameters import Interval, parameter
from fedcohort.selection.base import Cohort, Floats, Need, Outcome
from fedcohort.selection.counting import RoundSelector
from fedcohort.selection.registry import register
from fedcohort.selection.roster import Rows

STALENESS = 0.1
EXPLORATION_WINDOW = 5
_LEAST_SPAN = 1e-4
# What a client tells can be any number; sums of these stay finite.
_LARGEST = 1e250
_SHORTEST = 1e-9

_LAST = "last"


@register("oort")
@dataclasses.dataclass(kw_only=True, eq=False)
class Oort(RoundSelector):
    """Prefer useful and fast clients, and explore the unknown ones.

    Parameters
    ----------
    exploration, exploration_min, exploration_decay : float
        The share of the cohort that is new: where it starts, where it ends, its factor per round.
    cutoff : float
        How far below the last client that would fit the utility may be.
    clip : float
        The quantile of n_c · loss_c above which a client's is capped.
    penalty : float
        The exponent α for clients slower than preferred; 0 ignores durations.
    preferred, pacer_step : float
        The quantile of the durations that T starts at, and by how much it moves up.
    pacer_window : int
        The W rounds that the pacer compares.

    Examples
    --------
    >>> len(Oort(exploration=0.5).fit(clients=100).select(10, rng=np.random.default_rng(0)))
    10
    """

    exploration: float = parameter(0.9, Interval(0, 1))
    exploration_min: float = parameter(0.3, Interval(0, 1))
    exploration_decay: float = parameter(0.98, Interval(0, 1, closed="right"))
    cutoff: float = parameter(0.05, Interval(0, 1))
    clip: float = parameter(0.9, Interval(0, 1))
    penalty: float = parameter(2.0, Interval(0))
    preferred: float = parameter(0.3, Interval(0, 1))
    pacer_step: float = parameter(0.05, Interval(0, 1))
    pacer_window: int = parameter(20, Interval(1, integral=True))

    needs = frozenset({Need.LOSS, Need.DURATION})
    # 1 had a cut-off and a clip of 0.95, and explored by speed alone.
    revision = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._pace = self.preferred
        self._history: list[float] = []

    def _choose(self, k: int, rows: Rows, rng: np.random.Generator) -> Cohort:
        self._define()
        self._round += 1
        tried = self._roster[_LAST][rows] > 0
        explored, new = rows[tried], rows[~tried]
        share = max(
            self.exploration_min, self.exploration * self.exploration_decay ** (self._round - 1)
        )
        exploring = int(np.clip(round(share * k), k - len(explored), len(new)))
        chosen = [
            self._exploit(k - exploring, explored, rng),
            self._explore(exploring, new, rng),
        ]
        return self._cohort(np.concatenate(chosen))

    def _exploit(self, count: int, rows: Rows, rng: np.random.Generator) -> Rows:
        if count == 0:
            return rows[:0]
        utilities = self._utilities(rows)
        admitted = utilities >= self.cutoff * np.partition(utilities, -count)[-count]
        return _draw(count, rows[admitted], utilities[admitted], rng)

    def _explore(self, count: int, rows: Rows, rng: np.random.Generator) -> Rows:
        """Draw clients never explored by size, less those known to be slow."""
        promises = self._roster["size"][rows] * self._slowness(rows)
        best = np.lexsort((rng.random(len(rows)), -promises))[: EXPLORATION_WINDOW * count]
        return _draw(count, rows[best], promises[best], rng)

    def _utilities(self, rows: Rows) -> Floats:
        statistical = self._statistical(rows)
        capped = np.minimum(statistical, np.quantile(statistical, self.clip))
        # A little below the least, so that no utility is 0: as the authors have it.
        low = 0.999 * statistical.min()
        span = max(statistical.max() - low, _LEAST_SPAN)
        staleness = np.sqrt(STALENESS * np.log(self._round) / self._roster[_LAST][rows])
        utilities: Floats = ((capped - low) / span + staleness) * self._slowness(rows)
        return utilities

    def _slowness(self, rows: Rows) -> Floats:
        """Return (T / t_c)^α for clients slower than preferred, 1 for the others."""
        durations = np.maximum(self._roster[Need.DURATION.value], _SHORTEST)
        known = durations[~np.isnan(durations)]
        if len(known) == 0:
            return np.ones(len(rows))
        preferred = np.quantile(known, self._pace)
        # Unknown durations compare false: they are not penalised.
        slow = durations[rows] > preferred
        factors = np.divide(preferred, durations[rows], out=np.ones(len(rows)), where=slow)
        slowness: Floats = factors**self.penalty
        return slowness

    def _statistical(self, rows: Rows) -> Floats:
        """Return n_c · loss_c, with the average loss where a client told none."""
        with np.errstate(over="ignore"):
            values: Floats = self._roster["size"][rows] * self._last_losses(rows)
        return np.clip(values, 0.0, _LARGEST)

    def observe(self, outcome: Outcome) -> None:
        """Remember losses, durations and the round, and let the pacer look back."""
        super().observe(outcome)
        self._define()
        rows = self._roster.rows(outcome.ids[outcome.trained])
        self._roster.put(_LAST, rows, np.full(len(rows), max(self._round, 1)))
        self._history.append(float(self._statistical(rows).sum()) if len(rows) else 0.0)
        window = self.pacer_window
        if len(self._history) == 2 * window:
            if sum(self._history[:window]) > sum(self._history[window:]):
                self._pace = min(1.0, self._pace + self.pacer_step)
            self._history = self._history[window:]

    def describe(self) -> dict[str, Any]:
        """Say which quantile of the durations is preferred by now."""
        return {"preferred_duration_quantile": self._pace}

    def _define(self) -> None:
        self._roster.define(Need.LOSS.value, np.nan)
        self._roster.define(Need.DURATION.value, np.nan)
        self._roster.define(_LAST, 0.0)

    def _forget(self) -> None:
        super()._forget()
        if not self._round:
            self._pace = self.preferred
            self._history = []

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the roster, the round and the pacer."""
        return super().state() | {
            "oort.pace": np.asarray(self._pace),
            "oort.history": np.asarray(self._history, np.float64),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue in the same round, at the same pace."""
        super().restore(state)
        self._pace = float(state["oort.pace"])
        self._history = state["oort.history"].tolist()


def _draw(count: int, rows: Rows, weights: Floats, rng: np.random.Generator) -> Rows:
    """Draw without replacement, proportionally to `weights`; those of weight 0 come last."""
    # The largest of log-weight + Gumbel noise are such a draw.
    keys = np.log(np.maximum(weights, 1e-300)) + rng.gumbel(size=len(rows))
    return rows[np.argsort(-keys, kind="stable")[:count]]
