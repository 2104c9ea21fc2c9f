"""What several rules count."""

import numpy as np
import pytest

from fedcohort.selection import make_selector
from fedcohort.selection.base import Need
from fedcohort.selection.counting import RoundSelector

COUNTING = ["fed-cbs", "fedcor", "hics", "oort", "refl"]


def after_three_rounds(name):
    rng = np.random.default_rng(0)
    selector = make_selector(name)
    assert isinstance(selector, RoundSelector)
    selector.fit(sizes=np.full(12, 30), label_counts=rng.multinomial(30, np.full(5, 0.2), size=12))
    for seed in range(3):
        for need, ids in selector.ask(3, rng=np.random.default_rng(seed)).items():
            shape = {Need.LOSS: (), Need.DURATION: ()}.get(need, (5,))
            selector.tell(need, ids, rng.random((len(ids), *shape)))
        selector.select(3, rng=np.random.default_rng(seed))
    return selector


@pytest.mark.parametrize("name", COUNTING)
def test_new_sizes_do_not_start_the_rounds_again(name):
    selector = after_three_rounds(name)
    before = selector.state()
    selector.resize([0], [31])
    after = selector.state()
    assert before.keys() == after.keys()
    assert selector._round == 3
    for key in before:
        if "size" not in key:
            np.testing.assert_array_equal(before[key], after[key], err_msg=key)


@pytest.mark.parametrize("name", COUNTING)
def test_another_federation_starts_the_rounds_again(name):
    selector = after_three_rounds(name)
    selector.fit(sizes=np.full(12, 30), label_counts=np.full((12, 5), 6))
    assert selector._round == 0
