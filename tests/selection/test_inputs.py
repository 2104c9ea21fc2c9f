"""What cannot be a profile, a size or a source of chance is refused in one sentence."""

import numpy as np
import pytest

from fedcohort import make_selector
from fedcohort.errors import InvalidInputError, InvalidProfilesError

PROFILES = np.arange(10.0).reshape(5, 2)


@pytest.mark.parametrize(
    ("what", "given"),
    [
        ("profiles", {"profiles": [[1, 2], [3]]}),
        ("profiles", {"profiles": {0: [1, 2]}}),
        ("profiles", {"profiles": np.ones((5, 2)) * 1j}),
        ("sizes", {"profiles": PROFILES, "sizes": ["1", "2", "3", "4", "5"]}),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(what, given):
    with pytest.raises(InvalidProfilesError, match=f"^{what} must be an array of numbers: "):
        make_selector("match").fit(**given)


def test_lengths_that_differ_are_named():
    with pytest.raises(
        InvalidInputError, match=r"profiles has shape \[5, 2\] and sizes has shape \[4\]\.$"
    ):
        make_selector("match").fit(PROFILES, sizes=np.ones(4))
    with pytest.raises(InvalidInputError, match=r"sizes has shape \[4\] and clients is 5\.$"):
        make_selector("fedavg").fit(sizes=np.ones(4), clients=5)


@pytest.mark.parametrize("rng", [0, None, np.random.RandomState(0)])
def test_chance_is_a_generator_of_numpy(rng):
    selector = make_selector("dp3s").fit(PROFILES)
    with pytest.raises(InvalidInputError, match=r"such as np\.random\.default_rng\(0\), not"):
        selector.select(2, rng=rng)


def test_whole_numbers_and_lists_are_profiles_too():
    chosen = [
        make_selector("match").fit(p).select(2, rng=np.random.default_rng(0)).ids.tolist()
        for p in (PROFILES, PROFILES.tolist(), PROFILES.astype(int), PROFILES.astype(object))
    ]
    assert chosen[1:] == chosen[:1] * 3
