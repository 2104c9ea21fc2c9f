import dataclasses

import numpy as np
import torch

from fedcohort.federation import load_dataset
from fedcohort.simulation import RunConfig
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.packing import packer

CPU = torch.device("cpu")


def test_groups_hold_whole_seeds_and_keep_within_the_limits():
    runs = [
        RunConfig(clients=10, cohort=3, rounds=50, selector=selector, seed=seed)
        for selector in ("dp3s", "fedavg", "clustered")
        for seed in range(20)
    ]
    packs = packer(Materials(), CPU)(runs)
    assert [len(pack.configs) for pack in packs] == [32, 28]
    assert sorted(c.seed for c in packs[0].configs) == [s // 3 for s in range(32)]
    # Selectors that compare updates come last.
    assert [c.selector == "clustered" for c in packs[0].configs] == [False] * 22 + [True] * 10
    assert packer(Materials(), CPU)(runs) == packs


def test_large_states_make_small_groups():
    big = RunConfig(clients=1000, cohort=10, dataset="digits", model="cnn", selector="clustered")
    images = np.zeros((2000, 1, 28, 28), np.float32)
    dataset = dataclasses.replace(
        load_dataset("digits"),
        x_train=images,
        y_train=np.arange(2000) % 10,
        x_test=images[:0],
        y_test=np.zeros(0, np.int64),
    )
    pack = packer(Materials({"digits": dataset}), CPU)
    packs = pack([dataclasses.replace(big, seed=s) for s in range(3)])
    assert [len(pack.configs) for pack in packs] == [1, 1, 1]
