"""Simulate with data and a model of one's own."""

# %% [markdown]
# # Simulate with your own data and model
#
# You have a table, images or texts, you know who holds which sample, and you have a PyTorch model. This page brings both
# into `simulate`. Runs in under a minute on two cores.
#
# ## The data
#
# A `Dataset` is arrays. Here: a table of 12 measurements from 30 hospitals; the four diagnoses are not equally common in all
# of them. Any array does; what the shapes mean is in [your own data](../datasets/your-own.md).

# %%
import numpy as np

from fedcohort.federation import Dataset

rng = np.random.default_rng(0)
hospitals, per_hospital, features, diagnoses = 30, 60, 12, 4
centres = rng.normal(size=(diagnoses, features))


def patients(labels):
    return (centres[labels] + 1.5 * rng.normal(size=(len(labels), features))).astype(np.float32)


hospital = np.repeat(np.arange(hospitals), per_hospital)
shares = rng.dirichlet(np.full(diagnoses, 0.1), size=hospitals)
y = np.concatenate([rng.choice(diagnoses, per_hospital, p=share) for share in shares])
y_test = rng.integers(diagnoses, size=800)
data = Dataset(
    "hospitals",
    patients(y),
    y,
    patients(y_test),
    y_test,
    classes=diagnoses,
    client=hospital,
    client_names=tuple(f"hospital {n}" for n in range(hospitals)),
)
data.x_train.shape, data.inputs, data.task

# %% [check]
assert (data.inputs, data.task) == ("table", "classification")

# %% [markdown]
# `client` says who holds each sample. Without it, `skew=` divides the data: see the [settings](../settings.md).
#
# ## The model
#
# A model is a function of the shape of a sample and the number of outputs that returns an `nn.Module`. Its first
# weights are a function of the run's seed.

# %%
from torch import nn


def network(input_shape, classes):
    return nn.Sequential(
        nn.Linear(input_shape[0], 32),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(32, classes),
    )


# %% [markdown]
# ## The comparison

# %%
from fedcohort import simulate

results = simulate(
    dataset=data,
    model=network,
    selectors=["match", "clustered", "fedavg"],
    cohort=5,
    rounds=40,
    epochs=3,
    batch_size=20,
    lr=0.05,
    momentum=0.9,
    seeds=range(3),
    progress=False,
)
results.summary(target=0.6)[["final_test_accuracy", "gemd", "participation_variation"]].round(3)

# %% [check]
table = results.summary(target=0.6)
assert table.gemd["match"] < table.gemd["fedavg"]
assert table.final_test_accuracy["match"] > 0.5

# %%
results.plot("test_accuracy")

# %% [markdown]
# ## What can be kept
#
# `rounds` is a pandas DataFrame with one row per run and round; `models` has the final weights; `report` writes one HTML file
# with all of it. With `out="folder"` results stay, what was interrupted resumes, and what is there is not done again.

# %%
weights = results.models["match", 0]
{name: tuple(values.shape) for name, values in weights.items()}

# %% [check]
assert tuple(weights["0.weight"].shape) == (32, 12)

# %%
results.rounds[["selector", "seed", "round", "test_accuracy", "gemd"]].tail(3)

# %% [markdown]
# ## What is refused
#
# Data with clients of their own cannot be divided again. A setting that does not apply is refused, in one sentence:

# %%
try:
    simulate(dataset=data, model=network, selectors=["fedavg"], skew="iid", progress=False)
except ValueError as error:
    refusal = str(error)
print(refusal)

# %% [check]
assert "clients" in refusal

# %% [markdown]
# Next: [write a selector](write-a-selector.md).
