"""Cohorts of balanced classes, drawn place by place: Fed-CBS.

J. Zhang, A. Li, M. Tang, J. Sun, X. Chen, F. Zhang, C. Chen, Y. Chen, H. Li: Fed-CBS: A
Heterogeneity-Aware Client Sampling Mechanism for Federated Learning via Class-Imbalance Reduction.
ICML 2023.

Rule: the class imbalance of a set M of clients is the squared distance between the label mixture of
their joint data and N equal classes,

    QCID(M) = Σ_{m,n∈M} x_m·x_n / (Σ_{n∈M} |x_n|)² − 1/N,

with x_c the label counts of client c. In round R the places are filled one after the other: the
first client c with probability proportional to 1 / QCID({c}) + λ √(3 ln R / (2 T_c)), where T_c
counts how often c was chosen; the m-th, given those before it, proportionally to
1 / QCID(M ∪ {c})^m. (The paper writes these conditional probabilities with factors that are the
same for every candidate.) Weights n_c / Σ n_c.

The rule needs only the inner products x_m·x_n. The authors compute them under homomorphic
encryption, so that no server sees label counts; here clients tell the counts themselves.
"""

import dataclasses

import numpy as np

from fedcohort.parameters import Interval, parameter
from fedcohort.selection.base import Cohort, Floats, Need, Outcome
from fedcohort.selection.counting import RoundSelector, take_back
from fedcohort.selection.registry import register
from fedcohort.selection.roster import Rows

# A balanced cohort has QCID 0, and is to be had almost surely, but not with 1 / 0.
_LEAST_QCID = 1e-9

_CHOSEN = "chosen"


@register("fed-cbs")
@dataclasses.dataclass(kw_only=True, eq=False)
class FedCBS(RoundSelector):
    """Draw cohorts whose classes are balanced; leaks label counts.

    Parameters
    ----------
    exploration : float
        The λ that clients chosen seldom gain by as first of a cohort; 0 leaves balance alone.

    Examples
    --------
    >>> counts = np.repeat(np.eye(10), 2, axis=0)
    >>> cohort = FedCBS().fit(label_counts=counts).select(10, rng=np.random.default_rng(0))
    >>> len(cohort)
    10
    """

    exploration: float = parameter(10.0, Interval(0))

    needs = frozenset({Need.LABEL_COUNTS})

    def _choose(self, k: int, rows: Rows, rng: np.random.Generator) -> Cohort:
        self._roster.define(_CHOSEN, 0.0)
        self._round += 1
        counts = self._roster[Need.LABEL_COUNTS.value][rows]
        # Nobody was ever chosen 0 times, as in public code: the paper's term would be infinite.
        times = self._roster[_CHOSEN][rows] + 1
        bonus = self.exploration * np.sqrt(1.5 * np.log(self._round) / times)
        held = np.zeros(counts.shape[1])
        left = np.ones(len(rows), bool)
        places = []
        for place in range(1, k + 1):
            imbalance = np.maximum(qcid(held + counts), _LEAST_QCID)
            # Relative to the best one, since high powers of small numbers are out of range.
            weights = (imbalance[left].min() / imbalance) ** place
            if place == 1:
                weights = 1 / imbalance + bonus
            weights = np.where(left, weights, 0.0)
            chosen = int(rng.choice(len(rows), p=weights / weights.sum()))
            places.append(chosen)
            held += counts[chosen]
            left[chosen] = False
        self._roster.put(_CHOSEN, rows[places], times[places])
        return self._cohort(rows[places])

    def observe(self, outcome: Outcome) -> None:
        """Do not count clients that were chosen but did not train."""
        take_back(self._roster, _CHOSEN, outcome)


def qcid(counts: Floats) -> Floats:
    """Return the quadratic class-imbalance degree of label counts.

    Parameters
    ----------
    counts : float64 [..., N]
        Samples of each of N classes.

    Returns
    -------
    float64 [...]
        From 0, all classes equal, to 1 − 1/N, one class alone.
    """
    totals = np.maximum(counts.sum(axis=-1, keepdims=True), 1e-300)
    imbalance: Floats = np.square(counts / totals - 1 / counts.shape[-1]).sum(axis=-1)
    return imbalance
