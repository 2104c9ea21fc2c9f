import dataclasses

import numpy as np
import pytest
from running import lockstep_of

from fedcohort.errors import InvalidParameterError
from fedcohort.federation import build_federation, load_dataset
from fedcohort.privacy import Promise
from fedcohort.simulation import RunConfig
from fedcohort.simulation.materials import Materials

PRIVATE = RunConfig(clients=20, cohort=5, rounds=1, selector="dp3s", profile_epsilon=2.0)


def _profiles(config):
    (arrays,) = lockstep_of(config).federations()
    return arrays["profiles"].astype(np.float64)


def test_profiles_are_noised_by_the_promise_and_drawn_by_the_seed():
    noised = _profiles(PRIVATE)
    np.testing.assert_array_equal(noised, _profiles(PRIVATE))
    weaker = _profiles(dataclasses.replace(PRIVATE, profile_epsilon=8.0))
    sizes = build_federation(load_dataset("digits"), skew="1", clients=20, seed=0).sizes
    scales = [[Promise(epsilon).noise(int(n)) for n in sizes] for epsilon in (2.0, 8.0)]
    # The same draw, scaled by each promise.
    drawn = (noised - weaker) / np.subtract(*scales)[:, None]
    assert drawn.std() == pytest.approx(1, abs=0.1)
    assert abs(drawn.mean()) < 0.1
    assert np.abs(np.corrcoef(drawn)[~np.eye(20, dtype=bool)]).max() < 0.8


def test_a_delta_too_weak_for_the_largest_client_is_refused():
    weak = dataclasses.replace(PRIVATE, profile_delta=0.1)
    with pytest.raises(InvalidParameterError, match="promises nothing to a client with"):
        Materials().federation(weak)


def test_a_client_as_a_whole_is_hidden_by_noise_that_does_not_depend_on_its_size():
    promised = dataclasses.replace(PRIVATE, profile_protects="client")
    assert promised.key != PRIVATE.key
    sizes = build_federation(load_dataset("digits"), skew="1", clients=20, seed=0).sizes
    by_sample = [Promise(2.0).noise(int(n)) for n in sizes]
    scale = Promise(2.0, protects="client").noise(1)
    drawn = (_profiles(promised) - _profiles(PRIVATE)) / (scale - np.array(by_sample))[:, None]
    assert drawn.std() == pytest.approx(1, abs=0.1)
    weak = dataclasses.replace(promised, profile_delta=0.05)
    with pytest.raises(InvalidParameterError, match="nothing to one of 20 clients"):
        Materials().federation(weak)
    with pytest.raises(InvalidParameterError, match="profile_protects of the run belongs to"):
        dataclasses.replace(promised, profile_epsilon=None)
