"""Mean GEMD on MNIST at the paper's setting, against the numbers that are known.

C=100, K=10, client size 542, FC-1 profiles of the untrained CNN. 150 cohorts have a standard error
below .015 for uniform sampling and .005 for the others; the tolerances are wider than
three times that.
"""

import numpy as np
import pytest
from running import lockstep_of

from fedcohort import make_selector
from fedcohort.metrics import gemd
from fedcohort.simulation import RunConfig


@pytest.fixture(scope="module", params=["1", "H"])
def federation(request, mnist):
    config = RunConfig(dataset="mnist", skew=request.param, selector="dp3s")
    (arrays,) = lockstep_of(config, dataset=mnist).federations()
    return request.param, arrays["profiles"], arrays["label_counts"]


@pytest.mark.parametrize(
    ("name", "known", "tolerance"),
    [
        ("dp3s", {"1": 0.015, "H": 0.37}, 0.02),
        ("fedavg", {"1": 0.66, "H": 0.46}, 0.05),
        ("match", {"1": 0.0, "H": 0.0}, 0.01),
    ],
)
def test_mean_gemd_is_the_known_one(federation, name, known, tolerance):
    skew, profiles, counts = federation
    selector = make_selector(name).fit(profiles)
    rng = np.random.default_rng(0)
    found = np.mean([gemd(counts, selector.select(10, rng=rng).ids) for _ in range(150)])
    assert found == pytest.approx(known[skew], abs=tolerance)
