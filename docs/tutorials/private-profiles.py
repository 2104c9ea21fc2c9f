"""Private profiles: what a promise to every sample costs."""

# %% [markdown]
# # Private profiles
#
# A profile is a mean of hidden outputs. It can promise (ε, δ)-differential privacy to each sample of a client: replacing
# that sample by any other would change the probability of what is sent by a factor of at most e^ε, but for a probability of δ. This page shows the noise, and what it does to the cohorts.
# It needs `pip install 'fedcohort[sim,privacy]'`; the full story, attacks included, is [privacy](../privacy.md).
#
# ## The noise that keeps a promise
#
# Replacing one of a client's n samples moves its profile by at most 2/n, so the noise shrinks with n.

# %%
import matplotlib.pyplot as plt
import numpy as np

from fedcohort.privacy import Promise

for epsilon in (1, 4, 8):
    noise = [Promise(epsilon, delta=1e-5).noise(n) for n in (30, 600)]
    print(f"ε = {epsilon}: σ = {noise[0]:.4f} with 30 samples, {noise[1]:.4f} with 600")

# %% [check]
assert np.isclose(noise[0] / noise[1], 20)

# %% [markdown]
# Promises that promise nothing are refused:

# %%
try:
    Promise(50)
except ValueError as error:
    refusal = str(error)
print(refusal)

# %% [check]
assert "promises nothing" in refusal

# %% [markdown]
# ## What it does to cohorts
#
# Digits, 50 clients of one class each; `reuse` lets them hold as many samples as asked for, so that the number of samples can be
# varied alone. GEMD is 0 when a cohort's label mixture is everyone's. `match` chooses by profiles and not by what comes of
# training, so nothing is trained here: 8 partitions, each with noise of its own, and 25 cohorts of 10 from each.

# %%
import torch
from torch import nn

from fedcohort import make_selector
from fedcohort.federation import build_federation, load_dataset
from fedcohort.metrics import gemd
from fedcohort.profiles import fc1_profiles, private_profiles

dataset = load_dataset("digits")
x = (torch.tensor(dataset.x_train).float() / dataset.scale - dataset.mean) / dataset.std


def mean_gemd(samples, epsilon=None, selector="match"):
    found = []
    for seed in range(8):
        federation = build_federation(
            dataset, skew="1", clients=50, seed=seed, samples_per_client=samples, reuse=True
        )
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        held = torch.tensor(federation.partition.indices), torch.tensor(federation.sizes)
        if epsilon is None:
            profiles = fc1_profiles(model, x, *held).numpy()
        else:
            # Noise from a seed, to make this page again; a client's own is unpredictable.
            rng = np.random.default_rng(seed)
            noise = lambda _, count, rng=rng: rng.standard_normal(count)
            profiles = private_profiles(model, x, *held, Promise(epsilon), noise=noise)
        chooser = make_selector(selector).fit(profiles, sizes=federation.sizes)
        for round_ in range(25):
            ids = chooser.select(10, rng=np.random.default_rng(round_)).ids
            found.append(gemd(federation.label_counts, ids))
    return np.mean(found)


sizes, epsilons = (30, 140), (0.5, 1, 2, 4, 8)
found = {n: [mean_gemd(n, epsilon) for epsilon in epsilons] for n in sizes}
clean, chance = mean_gemd(140), mean_gemd(140, selector="fedavg")
for n in sizes:
    print(f"{n} samples:", *(f"ε = {e:g}: {value:.2f};" for e, value in zip(epsilons, found[n])))
print(f"no promise: {clean:.2f}; at random: {chance:.2f}")

# %%
figure, axes = plt.subplots(figsize=(6, 3.6))
for n in sizes:
    axes.plot(epsilons, found[n], marker="o", label=f"{n} samples per client")
axes.axhline(clean, color="black", linewidth=1, label="no promise")
axes.axhline(chance, color="black", linewidth=1, linestyle="--", label="at random")
axes.set(xlabel="ε (smaller promises more)", ylabel="GEMD of match", xscale="log")
axes.legend()

# %% [check]
assert clean < 0.01
assert all(more < fewer for more, fewer in zip(found[140], found[30]))
assert found[140][-1] < 0.01
assert found[30][0] > 0.9 * chance

# %% [markdown]
# Clients with more samples pay less for the same promise: with 140 samples ε = 4 costs nothing here, with 30 even ε = 8 costs
# something. With few samples and a small ε the noise is larger than what tells clients apart, and selection is hardly better than
# chance: then use a rule that needs no profiles.
#
# On Flower the client adds the noise itself, from the operating system's entropy, before anything leaves it:
# `profile_query(app, load, epsilon=8, delta=1e-5)`.
