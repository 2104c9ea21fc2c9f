"""A short, seeded run of every target; `make fuzz` is the long one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from targets import TARGETS, run

CASES = 150


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_but_answers_and_refusals(target):
    @settings(max_examples=CASES, deadline=None, derandomize=True, database=None)
    @given(st.binary(min_size=8, max_size=400))
    def case(data):
        run(target, data)

    case()
