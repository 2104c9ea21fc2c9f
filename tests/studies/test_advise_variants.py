import types

import numpy as np
import pytest
from advise_variants import VARIANTS, Errors, correlations, errors_of

from fedcohort.simulation import RunConfig
from fedcohort.simulation.materials import Materials


def test_errors_of_clients_of_one_class_each_are_those_of_a_draw(tmp_path):
    config = RunConfig(dataset="digits", skew="1", clients=50, cohort=10, selector="match", lr=0.5)
    errors, (uniform, left) = errors_of(config, tmp_path, Materials(), "cpu")
    # 10 of 50 clients, drawn without replacement, of ten classes: each is off by √0.9.
    drawn = np.sqrt(0.9 * (1 / 10 - 1 / 50) * 50 / 49)
    assert errors["labels"].uniform == pytest.approx(drawn, rel=0.05)
    assert errors["labels"].match < 0.3 * drawn
    assert uniform == pytest.approx(drawn / np.sqrt(0.9), rel=0.05)
    assert left < 0.3
    # The output layer is a part of the whole.
    assert errors["output"].uniform < errors["gradient"].uniform
    # Clients of one class each take one full step: it goes along their gradient.
    ratios = [errors[kind].uniform / errors[kind].clients for kind in ("gradient", "trained")]
    assert ratios[0] == pytest.approx(ratios[1], rel=0.01)
    again, _ = errors_of(config, tmp_path, Materials(), "cpu")
    assert again == errors


def test_a_variant_that_says_the_gain_correlates():
    rng = np.random.default_rng(0)
    found, errors = [], []
    for place, felt in enumerate(np.geomspace(0.05, 0.8, 12)):
        condition = types.SimpleNamespace(
            config=types.SimpleNamespace(dataset=("digits", "mnist", "cifar-10")[place % 3])
        )
        doublings = np.log2((0.2**2 + felt**2) / (0.2**2 + (0.1 * felt) ** 2)) * np.ones(3)
        found.append(types.SimpleNamespace(condition=condition, doublings=doublings))
        useless = rng.uniform(0.1, 1)
        kinds = {
            kind: Errors(useless, 0.1 * useless, 1.0, 1.0)
            for kind in ("profile", "gradient", "output", "trained")
        }
        labels = Errors(felt, 0.1 * felt, 1.0, 1.0)
        errors.append((kinds | {"labels": labels}, (felt, 0.1)))
    rows = {row["variant"]: row for row in correlations(found, errors)}
    assert len(rows) == len(VARIANTS) + 1
    assert rows["label mixtures, as if the server knew all labels"]["all"] == 1
    assert rows["agreements; of what `match` leaves, profiles"]["missed"] == pytest.approx(1)
    assert rows["gradients, over everyone's"]["all"] < 0.6
    assert rows["gradients, over everyone's"]["missed"] > 1.1
