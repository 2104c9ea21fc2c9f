"""Write a selector and compare it."""

# %% [markdown]
# # Write a selector and compare it
#
# A selector is one class: what it needs to know of clients, its parameters, and how it chooses. This page tries the example
# of the repository, [my_selector.py](../../examples/my_selector.py), tests it, and puts it beside others. Everything that
# such a class can do is in [write your own selector](../selectors/your-own.md).
#
# ## The class
#
# Some places go to the clients that the model fits worst, the rest is uniform:

# %%
import dataclasses

import numpy as np

from fedcohort import Cohort, Need, Selector
from fedcohort.parameters import Interval, parameter


@dataclasses.dataclass(kw_only=True, eq=False)
class MySelector(Selector):
    """Take the highest losses, and fill up at random so that everybody is met."""

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


# %% [markdown]
# `needs` is a promise to clients: the selector is told nothing else of them. `asks_newcomers` lets everybody tell a loss once, before
# the first choice.
#
# ## By hand
#
# Twenty clients; client 19 has the highest loss.

# %%
selector = MySelector(share=0.5).fit(clients=20)
selector.tell(Need.LOSS, np.arange(20), np.arange(20.0))
cohort = selector.select(4, rng=np.random.default_rng(0))
cohort.ids, cohort.weights

# %% [check]
assert cohort.ids[:2].tolist() == [19, 18]

# %% [markdown]
# ## The conformance suite
#
# `check_selector` plays federations in which clients join, leave and fail. It is silent when all is well, and says what is
# wrong when it is not. Here a rule that forgets where chance must come from:

# %%
from fedcohort.testing import check_selector

check_selector(MySelector)


class Careless(MySelector):
    name = "careless"

    def _choose(self, k, rows, rng):
        return super()._choose(k, rows, np.random.default_rng())


try:
    check_selector(Careless)
except AssertionError as error:
    complaint = str(error)
print(complaint)

# %% [check]
assert "rng" in complaint or "seed" in complaint or "generator" in complaint

# %% [markdown]
# ## Beside others
#
# Selectors of your own stand among the names. An object is a pattern: every run makes its own selector with the same
# parameters.

# %%
from fedcohort import simulate

results = simulate(
    dataset="digits",
    skew="1",
    clients=50,
    selectors=[MySelector(share=0.3), MySelector(share=0.8), "match", "fedavg"],
    rounds=60,
    lr=0.5,
    seeds=range(3),
    progress=False,
)
results.summary(target=0.6)[["final_test_accuracy", "gemd", "participation_variation"]].round(3)

# %% [check]
table = results.summary(target=0.6)
assert table.gemd["match"] < table.gemd.drop("match").min()

# %%
results.plot("test_accuracy")

# %% [markdown]
# Looking for high losses does not mix cohorts: among clients of one class, a high loss says which class is neglected, and ten
# such clients are ten of the same. The larger the share of places for high losses, the higher GEMD.
#
# On the command line the same class is `fedcohort run --selector examples/my_selector.py:MySelector:share=0.3`; a package
# gives it a name with an [entry point](../selectors/your-own.md#how-a-selector-is-named).

# %% [check]
mine = table.gemd[[label for label in table.index if "worst-first" in label]]
assert mine.filter(like="0.3").iloc[0] < mine.filter(like="0.8").iloc[0]
