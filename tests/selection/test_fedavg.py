import numpy as np
from scipy.stats import chisquare

from fedcohort import make_selector


def test_every_pair_is_equally_likely():
    selector = make_selector("fedavg").fit(clients=5)
    rng = np.random.default_rng(0)
    counts = np.zeros((5, 5))
    for _ in range(4000):
        a, b = np.sort(selector.select(2, rng=rng).ids)
        counts[a, b] += 1
    # 400 expected in each of 10 cells: a pair half again as likely is found with power > 0.999.
    assert chisquare(counts[np.triu_indices(5, 1)]).pvalue > 1e-3


def test_weights_are_shares_of_the_cohorts_data():
    selector = make_selector("fedavg").fit(sizes=[1, 2, 3, 4])
    cohort = selector.select(4, rng=np.random.default_rng(0))
    assert np.allclose(cohort.weights, (cohort.ids + 1) / 10)
