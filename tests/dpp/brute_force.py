"""What the tests hold the samplers against: enumeration of all cohorts."""

import itertools

import numpy as np


def all_cohorts(clients, k):
    return np.array(list(itertools.combinations(range(clients), k)))


def kernel_of(profiles):
    """The paper's kernel, written as in the paper."""
    s0 = np.linalg.norm(profiles[:, None, :] - profiles[None, :, :], axis=2)
    s = 1 - (s0 - s0.min()) / (s0.max() - s0.min())
    return s.T @ s


def cohort_probabilities(kernel, k):
    """Every cohort's probability, in the order of `all_cohorts`."""
    cohorts = all_cohorts(len(kernel), k)
    determinants = np.array([np.linalg.det(kernel[np.ix_(y, y)]) for y in cohorts])
    return determinants / determinants.sum()


def inclusion(probabilities, clients, k):
    result = np.zeros(clients)
    for cohort, probability in zip(all_cohorts(clients, k), probabilities, strict=True):
        result[cohort] += probability
    return result


def counts(draws, clients):
    """How often each cohort was drawn, in the order of `all_cohorts`."""
    k = draws.shape[1]
    place = clients ** np.arange(k)
    seen = np.bincount(draws @ place, minlength=clients**k)
    return seen[all_cohorts(clients, k) @ place]


def clustered_profiles(clients, features=20, groups=10, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((groups, features))
    return centres[np.arange(clients) % groups] + noise * rng.standard_normal((clients, features))
