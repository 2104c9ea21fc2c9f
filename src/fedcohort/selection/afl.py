"""Active federated learning: AFL.

J. Goetz, K. Malik, D. Bui, S. Moon, H. Liu, A. Kumar: Active Federated Learning. 2019
(arXiv:1909.12641), Algorithm 1.

Rule: a client's value is v_c = √n_c · loss_c, with the loss of the model it last received, before
it trained (of the initial model until then). The share α1 of the clients with the lowest values is
set aside; (1 − α3) · k clients are drawn without replacement from the others with probabilities
proportional to exp(α2 · v_c); the rest of the cohort is drawn uniformly from all clients that are
left, those set aside among them. Weights n_c / Σ n_c.

Where the paper is silent: a fractional α3 · k is rounded up or down at random so that its mean
is kept, and never so many clients are set aside that too few are left to draw.
"""

import dataclasses

import numpy as np

from fedcohort.parameters import Interval, parameter
from fedcohort.selection.base import Cohort, Need, Selector
from fedcohort.selection.registry import register
from fedcohort.selection.roster import Rows


@register("afl")
@dataclasses.dataclass(kw_only=True, eq=False)
class AFL(Selector):
    """Prefer clients with a high loss, and keep some places for chance.

    Parameters
    ----------
    alpha1 : float
        Share of the clients, those with the lowest values, that are set aside.
    alpha2 : float
        How strongly a high value is preferred among the others.
    alpha3 : float
        Share of the cohort that is drawn uniformly.

    Examples
    --------
    >>> selector = AFL(alpha3=0.2).fit(clients=100)
    >>> sorted(need.value for need in selector.ask(10, rng=np.random.default_rng(0)))
    ['loss']
    """

    alpha1: float = parameter(0.75, Interval(0, 1))
    alpha2: float = parameter(0.01, Interval(0))
    alpha3: float = parameter(0.1, Interval(0, 1))

    needs = frozenset({Need.LOSS})
    asks_newcomers = Need.LOSS
    reported_loss = "received"
    # 1 took the mean loss seen in training.
    revision = 2

    def _choose(self, k: int, rows: Rows, rng: np.random.Generator) -> Cohort:
        values = np.sqrt(self._roster["size"][rows]) * self._last_losses(rows)
        uniform = int(np.floor(self.alpha3 * k + rng.random()))
        valued = k - min(uniform, k)
        aside = min(int(self.alpha1 * len(rows)), len(rows) - valued)
        kept = np.lexsort((rng.random(len(rows)), values))[aside:]
        # The largest of value + Gumbel noise are a draw without replacement from softmax(value).
        noisy = self.alpha2 * values[kept] + rng.gumbel(size=len(kept))
        chosen = kept[np.argsort(-noisy, kind="stable")[:valued]]
        left = np.setdiff1d(np.arange(len(rows)), chosen)
        others = rng.choice(left, k - valued, replace=False)
        return self._cohort(rows[np.concatenate([chosen, others])])
