import numpy as np
import pytest

from fedcohort import make_selector
from fedcohort.errors import InvalidInputError


@pytest.mark.parametrize("size", [0.0, -1.0, np.nan, np.inf, 1e300])
def test_a_size_that_no_client_can_have_is_refused(size):
    with pytest.raises(InvalidInputError, match="Client 1 has size"):
        make_selector("fedavg").fit(sizes=[10, size, 20])


def test_weights_of_the_largest_sizes_still_sum_to_one():
    weights = (
        make_selector("fedavg")
        .fit(sizes=np.full(50, 1e15))
        .select(20, rng=np.random.default_rng(0))
    )
    assert weights.weights.sum() == pytest.approx(1)
