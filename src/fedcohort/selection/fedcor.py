"""Clients whose losses move together: FedCor.

M. Tang, X. Ning, Y. Wang, J. Sun, Y. Wang, H. Li, Y. Chen: FedCor: Correlation-Based Active Client
Selection Strategy for Heterogeneous Federated Learning. CVPR 2022.

Rule: the changes of all clients' losses in one round are a Gaussian vector with covariance
Σ = X Xᵀ + s² I, where X has `rank` columns. Samples of it are gathered in the `warmup` first rounds
and in every `interval`-th round after them: in these rounds the cohort is uniform and all
available clients tell their loss before and after. In the other rounds, with p_i = n_i / Σ n, each
place goes to the client

    argmax_c  α_c · Σ_i p_i Σ_ic / √Σ_cc,

the one whose own improvement by one (scaled) standard deviation lets all losses fall most; then Σ
is conditioned on that client's change. α_c starts at 1 with every new sample and is multiplied by
β whenever c is chosen. Weights n_c / Σ n_c.

A sample weighs γ times one of the next round. Parameters are those of the authors' command for
Fashion-MNIST.

Where this differs from the authors' code: X and s² are the maximum of the likelihood in closed
form (M. E. Tipping, C. M. Bishop: Probabilistic Principal Component Analysis, 1999) and not a few
steps of gradient ascent from their last value; the samples after the warm-up are rounds of the
training, not trial rounds whose model is thrown away; and models are averaged by size, not plainly.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.parameters import Interval, parameter
from fedcohort.selection.base import Cohort, Floats, Need
from fedcohort.selection.counting import RoundSelector
from fedcohort.selection.registry import register
from fedcohort.selection.roster import Ids, Rows

# The least share of the mean variance that is noise: with few samples none would be left over.
NOISE_FLOOR = 0.01

_BEFORE, _HEARD, _CHANGES, _PICKS = "before", "heard", "changes", "picks"


@register("fedcor")
@dataclasses.dataclass(kw_only=True, eq=False)
class FedCor(RoundSelector):
    """Choose clients whose improvement goes with everyone's.

    Parameters
    ----------
    warmup : int
        Rounds at the beginning with uniform cohorts, in which everyone is asked for its loss.
    interval : int
        Rounds from one such round to the next after that.
    history : int
        Samples kept.
    gamma : float
        What a sample weighs beside one of the next round.
    rank : int
        Columns of X.
    beta : float
        What is left of α_c each time c is chosen, until the next sample.

    Examples
    --------
    >>> len(FedCor(warmup=5).fit(clients=100).select(10, rng=np.random.default_rng(0)))
    10
    """

    warmup: int = parameter(15, Interval(0, integral=True))
    interval: int = parameter(10, Interval(2, integral=True))
    history: int = parameter(20, Interval(2, integral=True))
    gamma: float = parameter(0.95, Interval(0, 1, closed="right"))
    rank: int = parameter(15, Interval(1, integral=True))
    beta: float = parameter(0.95, Interval(0, 1, closed="right"))

    needs = frozenset({Need.LOSS})
    # Losses seen in training do not compare with those of a global model.
    reported_loss = None
    # 1 let a sample fade with each newer sample, and a choice by 0.9.
    revision = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._forget()

    def ask(
        self,
        k: int,
        available: ArrayLike | None = None,
        *,
        rng: np.random.Generator,  # noqa: ARG002
    ) -> Mapping[Need, Ids]:
        """Ask for everyone's loss before and after each round that is a sample."""
        rows = self._candidates(k, available)
        if self._is_sample(self._round + 1) or self._is_sample(self._round):
            return {Need.LOSS: self._roster.ids[rows]}
        return {}

    def _is_sample(self, round_: int) -> bool:
        after = round_ - self.warmup
        return round_ > 0 and (after <= 0 or after % self.interval == 0)

    def _told(self, need: Need, rows: Rows) -> None:  # noqa: ARG002
        self._define()
        losses = self._roster[Need.LOSS.value][rows]
        lately = self._roster[_HEARD][rows] == self._round
        if self._is_sample(self._round) and lately.any():
            changes = losses - self._roster[_BEFORE][rows]
            self._record(rows[lately], changes[lately])
        self._roster.put(_BEFORE, rows, losses)
        # What is told now is known at the start of the coming round.
        self._roster.put(_HEARD, rows, np.full(len(rows), self._round + 1.0))

    def _record(self, rows: Rows, changes: Floats) -> None:
        """Keep the changes that the last round made, in place of the oldest sample."""
        table = self._roster[_CHANGES].copy()
        if self._round in self._sampled:
            place = int(np.argmax(self._sampled == self._round))
        else:
            place = int(np.argmin(self._sampled))
            table[:, place] = np.nan
            self._roster.put(_PICKS, np.arange(len(table)), np.zeros(len(table)))
        table[rows, place] = changes
        self._roster.put(_CHANGES, np.arange(len(table)), table)
        self._sampled[place] = self._round

    def _choose(self, k: int, rows: Rows, rng: np.random.Generator) -> Cohort:
        self._define()
        self._round += 1
        kept = np.flatnonzero(self._sampled)
        factor, noise = np.zeros((len(self._roster), 0)), 0.0
        if len(kept) > 1 and not self._is_sample(self._round):
            newest_first = kept[np.argsort(-self._sampled[kept])]
            samples = self._roster[_CHANGES][:, newest_first]
            ages = self._sampled[newest_first[0]] - self._sampled[newest_first]
            weights = np.float64(self.gamma) ** ages
            factor, noise = covariance(samples, weights, self.rank)
        if not factor.any():
            return self._cohort(rng.choice(rows, k, replace=False))
        sizes = self._roster["size"]
        alpha = self.beta ** self._roster[_PICKS]
        # Looked at in a random order, the first of several maxima is a random one of them.
        order = rng.permutation(rows)
        chosen = greedy(factor, noise, sizes / sizes.sum(), alpha, k, order)
        self._roster.put(_PICKS, chosen, self._roster[_PICKS][chosen] + 1)
        return self._cohort(chosen)

    def _define(self) -> None:
        self._roster.define(_BEFORE, np.nan)
        self._roster.define(_HEARD, 0.0)
        self._roster.define(_CHANGES, np.nan, (self.history,))
        self._roster.define(_PICKS, 0.0)

    def _forget(self) -> None:
        super()._forget()
        if not self._round:
            # The round that each column of changes is a sample of; 0 where there is none yet.
            self._sampled = np.zeros(self.history, np.int64)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the roster, the round and which rounds the samples are of."""
        return super().state() | {
            "fedcor.sampled": self._sampled.copy(),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue in the same round with the same samples."""
        super().restore(state)
        self._sampled = state["fedcor.sampled"].copy()


def covariance(samples: Floats, weights: Floats, rank: int) -> tuple[Floats, float]:
    """Return X [C, r] and s² of the most likely covariance X Xᵀ + s² I.

    Parameters
    ----------
    samples : float64 [C, M]
        Loss changes, one column per sample; NaN where a client was not there, which then counts as
        its mean.
    weights : float64 [M]
        What each sample counts.
    rank : int
        Columns of X at most.
    """
    known = ~np.isnan(samples)
    counted = known * weights
    totals = np.maximum(counted.sum(axis=1, keepdims=True), 1e-300)
    means = (np.nan_to_num(samples) * counted).sum(axis=1, keepdims=True) / totals
    scaled = np.where(known, samples - means, 0.0) * np.sqrt(weights / weights.sum())
    # The covariance is scaled @ scaled.T: its eigenvectors come from the small Gram matrix.
    values, vectors = np.linalg.eigh(scaled.T @ scaled)
    top = np.argsort(-values)[: min(rank, len(values))]
    clients = len(samples)
    total = max(float(values.sum()), 1e-300)
    rest = max(total - float(values[top].sum()), 0.0) / max(clients - len(top), 1)
    noise = max(rest, NOISE_FLOOR * total / clients)
    shrink = np.sqrt(1 - noise / np.maximum(values[top], noise))
    return scaled @ vectors[:, top] * shrink, noise


def greedy(
    factor: Floats, noise: float, shares: Floats, alpha: Floats, k: int, candidates: Rows
) -> Rows:
    """Return the k of `candidates` that lower all losses most, one after the other.

    Parameters
    ----------
    factor : float64 [C, r]
        X, with the covariance X Xᵀ + noise · I.
    noise : float
        s².
    shares : float64 [C]
        Each client's share of the data.
    alpha : float64 [C]
        By how many standard deviations each client is expected to improve.
    k : int
        How many to choose.
    candidates : intp [m]
        Rows to choose among; of equal ones the first is taken.

    Returns
    -------
    intp [k]
    """
    towards_all = factor @ (factor.T @ shares) + noise * shares
    variances = np.einsum("cr,cr->c", factor, factor) + noise
    # The covariance given the changes of those chosen is the first one less seen @ seen.T.
    seen = np.empty((len(factor), k))
    left = candidates
    chosen = np.empty(k, np.intp)
    for place in range(k):
        best = left[np.argmax(alpha[left] * towards_all[left] / np.sqrt(variances[left]))]
        column = factor @ factor[best] - seen[:, :place] @ seen[best, :place]
        column[best] += noise
        column /= np.sqrt(variances[best])
        towards_all -= column * (column @ shares)
        variances = np.maximum(variances - column**2, NOISE_FLOOR * noise)
        seen[:, place] = column
        chosen[place] = best
        left = left[left != best]
    return chosen
