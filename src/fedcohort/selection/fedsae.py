"""Loss-based sampling and workload prediction: FedSAE.

L. Li, M. Duan, D. Liu, Y. Zhang, A. Ren, X. Chen, Y. Tan, C. Wang: FedSAE: A Novel Self-Adaptive
Federated Learning Framework in Heterogeneous Systems. IJCNN 2021.

Rule: a client's value is v_c = √n_c · loss_c; k clients are drawn without replacement with
probabilities softmax(β · v). The loss is that of the initial model until the client is first
chosen; after each round those chosen measure the new global model.

Option: the server also predicts how much each client can do (`workload`), a pair of tasks
(easy, hard) in passes over its data, from what the client completed before.

The authors' code, as published, draws uniformly (the condition for drawing by loss is never met)
and, in what it leaves unused, divides by √n_c after the first round; this is the paper's rule.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from fedcohort.parameters import Interval, OneOf, parameter
from fedcohort.selection.base import Cohort, Floats, Need, Outcome, Selector
from fedcohort.selection.registry import register
from fedcohort.selection.roster import Ids, Rows

MAX_PASSES = 15.0
FIRST_TASKS = (1.0, 2.0)
IRA_STEP = 10.0
FASSA_MEMORY = 0.95
FASSA_FAST, FASSA_SLOW = 3.0, 1.0

_DUE = "due"


@register("fedsae")
@dataclasses.dataclass(kw_only=True, eq=False)
class FedSAE(Selector):
    """Prefer clients with a high loss.

    Parameters
    ----------
    beta : float
        How strongly a high value is preferred; 0 is uniform sampling.
    workload : {None, "ira", "fassa"}
        How a client's next tasks follow from what it completed; None leaves the work to the run.

    Examples
    --------
    >>> len(FedSAE(beta=0.1).fit(clients=100).select(10, rng=np.random.default_rng(0)))
    10
    """

    beta: float = parameter(0.01, Interval(0))
    workload: str | None = parameter(None, OneOf(None, "ira", "fassa"))

    needs = frozenset({Need.LOSS})
    reported_loss = None
    # 1 took the mean loss seen in training, and let θ start at 0 and hear more than was done.
    revision = 2

    def ask(
        self,
        k: int,
        available: ArrayLike | None = None,
        *,
        rng: np.random.Generator,  # noqa: ARG002
    ) -> Mapping[Need, Ids]:
        """Ask newcomers and those chosen last for their loss."""
        rows = self._candidates(k, available)
        self._roster.define(_DUE, True, (), bool)
        due = rows[self._roster[_DUE][rows]]
        return {Need.LOSS: self._roster.ids[due]} if len(due) else {}

    def _told(self, need: Need, rows: Rows) -> None:  # noqa: ARG002
        self._roster.define(_DUE, True, (), bool)
        self._roster.put(_DUE, rows, np.zeros(len(rows), bool))

    def _choose(self, k: int, rows: Rows, rng: np.random.Generator) -> Cohort:
        value = self.beta * np.sqrt(self._roster["size"][rows]) * self._last_losses(rows)
        # The k largest of value + Gumbel noise are a draw without replacement from softmax(value).
        chosen = rows[np.argsort(-(value + rng.gumbel(size=len(rows))), kind="stable")[:k]]
        cohort = self._cohort(chosen)
        return dataclasses.replace(cohort, work=self.work_of(cohort.ids))

    def work_of(self, ids: ArrayLike) -> Floats | None:
        """Return the easy and the hard task [m, 2] of clients `ids` [m], with `workload`."""
        if self.workload is None:
            return None
        self._define_tasks()
        return self._roster["tasks"][self._roster.rows(np.asarray(ids))]

    def observe(self, outcome: Outcome) -> None:
        """Remember whom to ask for a loss and, with `workload`, set the participants' tasks."""
        rows = self._roster.rows(outcome.ids)
        self._roster.define(_DUE, True, (), bool)
        self._roster.put(_DUE, rows, np.ones(len(rows), bool))
        if self.workload is None or outcome.passes is None or outcome.capacity is None:
            return
        self._define_tasks()
        tasks = self._roster["tasks"][rows]
        if self.workload == "ira":
            # FedSAE-Ira: additive increase by the inverse of the task, multiplicative decrease.
            steps = IRA_STEP / tasks
        else:
            # Whoever did the hard task stopped there, and nobody sees what more it could have done.
            seen = np.floor(np.minimum(outcome.capacity, tasks[:, 1]))
            before = self._roster["threshold"][rows]
            faded = FASSA_MEMORY * before + (1 - FASSA_MEMORY) * seen
            threshold = np.where(np.isnan(before), seen, faded)
            self._roster.put("threshold", rows, threshold)
            # FedSAE-Fassa: fast steps below what the client could do on average, slow ones above.
            steps = np.where(threshold[:, None] <= tasks, FASSA_SLOW, FASSA_FAST)
        done = outcome.passes[:, None] >= tasks
        following = np.sort(np.where(done, tasks + steps, tasks / 2), axis=1)
        self._roster.put("tasks", rows, np.clip(following, 1.0, MAX_PASSES))

    def _define_tasks(self) -> None:
        self._roster.define("tasks", np.array(FIRST_TASKS), (2,))
        self._roster.define("threshold", np.nan)
