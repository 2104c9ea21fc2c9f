"""From simulation to a Flower deployment."""

# %% [markdown]
# # From simulation to Flower
#
# The simulator and the Flower adapter are two engines around the same selectors: for the same profiles, sizes and seed they choose
# the same cohorts. This page goes as far as one process can: it looks at the gain in simulation, makes the cohorts by hand as a
# server would, and builds both ends of a [Flower](https://flower.ai) app. It needs `pip install 'fedcohort[sim,flower]'`.
#
# ## 1. Is it worth it?

# %%
from fedcohort import simulate

settings = dict(dataset="digits", skew="1", clients=20, cohort=5, rounds=30, lr=0.5)
results = simulate(selectors=["match", "fedavg"], seeds=range(3), progress=False, **settings)
results.summary(target=0.5)[["final_test_accuracy", "gemd"]].round(3)

# %% [check]
table = results.summary(target=0.5)
assert table.gemd["match"] < table.gemd["fedavg"]

# %% [markdown]
# ## 2. What a client sends
#
# Under Flower each client answers one query with its profile, measured with the server's first model. The line on the client is
# `profile_query`: it is told where the model and the training batches come from.

# %%
import torch
from flwr.app import Context
from flwr.clientapp import ClientApp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedcohort.federation import build_federation, load_dataset
from fedcohort.flower import profile_query

dataset = load_dataset("digits")
federation = build_federation(dataset, skew="1", clients=20, seed=0)
x = (torch.tensor(dataset.x_train).float() / dataset.scale - dataset.mean) / dataset.std
y = torch.tensor(dataset.y_train)


def first_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load(context: Context):
    mine = federation.partition.of(int(context.node_config["partition-id"]))
    return first_model(), DataLoader(TensorDataset(x[mine], y[mine]), batch_size=10)


client_app = ClientApp()
profile_query(client_app, load)

# %% [markdown]
# ## 3. What the server does with it
#
# The profiles that these twenty clients would send, and the cohort that any engine chooses from them:

# %%
import numpy as np

from fedcohort import make_selector
from fedcohort.metrics import gemd
from fedcohort.profiles import fc1_profiles

profiles = fc1_profiles(
    first_model(),
    x,
    torch.tensor(federation.partition.indices),
    torch.tensor(federation.sizes),
)
selector = make_selector("match").fit(profiles.numpy(), sizes=federation.sizes)
cohort = selector.select(5, rng=np.random.default_rng(0))
print("cohort", cohort.ids, "GEMD", round(gemd(federation.label_counts, cohort.ids), 3))

# %% [check]
assert profiles.shape == (20, 32)
digits = federation.label_counts[cohort.ids].argmax(axis=1)
assert len(set(digits.tolist())) == 5

# %% [markdown]
# Five clients with five different digits: the best that five clients of one class can do.
#
# ## 4. The server
#
# Wrap the strategy you have. The selector is named as in the simulation, with parameters if you like.

# %%
from flwr.serverapp.strategy import FedAvg

from fedcohort.flower import CohortStrategy

strategy = CohortStrategy(
    FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2),
    selector="match:guard=profiles",
    cohort=5,
    seed=0,
    deadline=60.0,
)
strategy.selector, strategy.cohort

# %% [markdown]
# What cannot work is said at once, not after the first round. A strategy that would wait for more nodes than it is ever shown:

# %%
try:
    CohortStrategy(FedAvg(min_train_nodes=8, min_available_nodes=8), selector="match", cohort=5)
except ValueError as error:
    refusal = str(error)
print(refusal)

# %% [check]
assert "8" in refusal

# %% [markdown]
# ## 5. Run it
#
# The rest needs processes: `flwr run .` in an app with these two ends, simulated or deployed. A complete one is
# [examples/flower-mnist](../../examples/flower-mnist), and [Flower](../flower.md) says what happens when clients come late, die
# or lie, with TLS and many machines.
