"""A selector of one's own: some places for the clients that the model fits worst, the rest uniform.

fedcohort run --selector examples/my_selector.py:MySelector:share=0.3 --selector fedavg
"""

import dataclasses

import numpy as np

from fedcohort import Cohort, Need, Selector
from fedcohort.parameters import Interval, parameter


@dataclasses.dataclass(kw_only=True, eq=False)
class MySelector(Selector):
    """Take the highest losses, and fill up at random so that everybody is met.

    Parameters
    ----------
    share : float
        Share of the cohort that goes to the clients with the highest loss.
    """

    share: float = parameter(0.5, Interval(0, 1))

    name = "worst-first"
    needs = frozenset({Need.LOSS})
    asks_newcomers = Need.LOSS

    def _choose(self, k: int, rows: np.ndarray, rng: np.random.Generator) -> Cohort:
        # Looked at in a random order, clients with equal losses are taken at random.
        order = rng.permutation(rows)
        worst_first = order[np.argsort(-self._last_losses(order), kind="stable")]
        count = int(self.share * k)
        others = rng.choice(worst_first[count:], k - count, replace=False)
        return self._cohort(np.concatenate([worst_first[:count], others]))
