"""Why cohorts matter: digits, one class per client."""

# %% [markdown]
# # Why cohorts matter
#
# In federated learning a server sends its model to a few clients, they train it on data that never leave them, and the
# server averages what comes back. This page shows what happens when those few do not look like everyone, and what a
# chosen *cohort* changes. It runs in under a minute on two cores: `pip install 'fedcohort[sim]'`.
#
# ## A federation in which nobody has seen everything
#
# The 1,438 training digits of scikit-learn, divided over 50 clients so that each holds one digit only
# (skew ξ = 1, the hardest setting of the FL-DP³S paper).

# %%
import matplotlib.pyplot as plt
import numpy as np

from fedcohort.federation import build_federation, load_dataset

federation = build_federation(load_dataset("digits"), skew="1", clients=50, seed=0)
classes_per_client = np.count_nonzero(federation.label_counts, axis=1)
print(f"{len(federation)} clients, {federation.sizes.min()} samples each")
print("classes per client:", classes_per_client.min(), "to", classes_per_client.max())

# %% [check]
assert len(federation) == 50
assert classes_per_client.max() == 1

# %% [markdown]
# ## Ten clients at random
#
# Ten clients drawn at random hold six or seven of the ten digits. GEMD measures it: the distance between the label
# mixture of a cohort and everyone's, 0 when they are the same.

# %%
from fedcohort.metrics import gemd

rng = np.random.default_rng(0)
cohorts = [rng.choice(50, 10, replace=False) for _ in range(1000)]
digits = [np.count_nonzero(federation.label_counts[ids].sum(axis=0)) for ids in cohorts]
print(f"digits in a random cohort: {np.mean(digits):.1f} on average")
print(
    f"GEMD of a random cohort:   {np.mean([gemd(federation.label_counts, ids) for ids in cohorts]):.2f}"
)

# %% [check]
assert 6 < np.mean(digits) < 7

# %% [markdown]
# ## Ten clients chosen
#
# `match` and `dp3s` choose from *profiles*: each client sends, once, the mean output of the initial model's first fully
# connected layer on its data. No label is sent. `fedavg` draws at random. The same federation, the same first model, the
# same seeds:

# %%
from fedcohort import simulate

results = simulate(
    dataset="digits",
    skew="1",
    clients=50,
    cohort=10,
    selectors=["match", "dp3s", "fedavg"],
    rounds=80,
    lr=0.5,
    seeds=range(3),
    progress=False,
)
results.rounds.groupby("selector").gemd.mean().round(3)

# %% [check]
mixture = results.rounds.groupby("selector").gemd.mean()
assert mixture["match"] < 0.1
assert mixture["dp3s"] < mixture["fedavg"] / 2

# %% [markdown]
# The cohorts of `match` have nearly everyone's mixture, those of `dp3s` come nearer to it than chance does. What that is worth is seen
# in the accuracy: the mean of the seeds, and their range.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
results.plot("test_accuracy", ax=left)
left.set_title("Test accuracy")
results.plot("gemd", ax=right)
right.set_title("GEMD of the cohorts")

# %%
results.summary(target=0.8)[["rounds_to_target", "final_test_accuracy", "gemd"]].round(3)

# %% [check]
accuracy = results.summary(target=0.8).final_test_accuracy
assert accuracy["match"] > accuracy["fedavg"]

# %% [markdown]
# `rounds_to_target` counts the rounds until the mean *training* accuracy reaches the target. Three seeds are enough to see
# the effect and too few to rank rules: the [leaderboard](../results/leaderboard.md) has all selectors over five or ten seeds in
# 31 conditions, also those in which selection is worth little.
#
# Next: [your own data and model](your-own-data-and-model.md).
