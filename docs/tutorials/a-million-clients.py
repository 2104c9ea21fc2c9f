"""A million clients: selection alone."""

# %% [markdown]
# # A million clients
#
# Selectors need NumPy and SciPy only (`pip install fedcohort`), and the same object serves a hundred clients and a million.
# This page chooses among 1,000,000 with profiles of 16 numbers; no training. It needs about 1 GB of memory.

# %%
import time

import numpy as np

from fedcohort import make_selector

rng = np.random.default_rng(0)
clients, kinds, numbers = 1_000_000, 10, 16
centres = rng.normal(size=(kinds, numbers)).astype(np.float32)
kind = rng.integers(kinds, size=clients)
profiles = centres[kind] + 0.1 * rng.normal(size=(clients, numbers)).astype(np.float32)
sizes = rng.integers(20, 200, size=clients)
profiles.shape

# %% [markdown]
# ## Fit once, then choose
#
# `match` looks at a few candidates each round, whatever the number of clients.


# %%
def timed(act):
    began = time.perf_counter()
    value = act()
    return value, time.perf_counter() - began


match, fitting = timed(lambda: make_selector("match").fit(profiles, sizes=sizes))
cohorts, choosing = timed(
    lambda: [match.select(100, rng=np.random.default_rng(round_)) for round_ in range(10)]
)
print(f"fit: {fitting:.1f} s; one cohort of 100: {choosing / 10 * 1000:.0f} ms")

# %% [markdown]
# (Times are of the machine that made this page.) Do the cohorts look like everyone? The weighted mean profile of each, against
# that of random cohorts:

# %%
everyone = np.average(profiles, axis=0, weights=sizes)


def distance(cohort):
    return np.linalg.norm(cohort.weights @ profiles[cohort.ids] - everyone)


fedavg = make_selector("fedavg").fit(sizes=sizes)
at_random = [fedavg.select(100, rng=np.random.default_rng(round_)) for round_ in range(10)]
matched, random = (np.mean([distance(c) for c in each]) for each in (cohorts, at_random))
print(f"distance to everyone's mean profile: match {matched:.4f}, at random {random:.4f}")

# %% [check]
assert matched < random / 5
assert all(len(set(cohort.ids.tolist())) == 100 for cohort in cohorts)

# %% [markdown]
# ## The paper's rule
#
# `dp3s` draws from a k-DPP, whose exact kernel has clients × clients numbers. Beyond a few thousand clients it works with
# landmarks, which `rank` sets ([how](../kdpp.md)). Here for 100,000:

# %%
from fedcohort.dpp import KDPP

dpp, making = timed(lambda: KDPP.from_profiles(profiles[:100_000], k=10, rank=32))
ids, drawing = timed(lambda: dpp.sample(np.random.default_rng(0), size=20))
print(f"make: {making:.1f} s; one draw: {drawing / 20 * 1000:.1f} ms")
kinds_met = [len(set(kind[row])) for row in ids]
print(f"kinds of clients in a cohort of 10: {np.mean(kinds_met):.1f} of 10")

# %% [check]
by_chance = np.mean([len(set(rng.choice(kind, 10))) for _ in range(2000)])
assert np.mean(kinds_met) > by_chance + 1

# %% [markdown]
# ## Clients come and go
#
# Nothing is fitted again when some join or leave, or are away for a round.

# %%
match.leave(np.arange(1000))
match.join(np.arange(clients, clients + 5), profiles=profiles[:5], sizes=sizes[:5])
awake = np.arange(500_000, 600_000)
cohort = match.select(100, awake, rng=np.random.default_rng(0))
print(cohort.ids.min(), "to", cohort.ids.max())

# %% [check]
assert set(cohort.ids.tolist()) <= set(awake.tolist())
