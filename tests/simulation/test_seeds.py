import pytest

from fedcohort.errors import InvalidParameterError
from fedcohort.simulation.seeds import parse_seeds


def test_seeds_are_ranges_and_lists_without_doubles():
    assert parse_seeds("0..3", "--seeds") == [0, 1, 2, 3]
    assert parse_seeds("7", "--seeds") == [7]
    assert parse_seeds("5, 0..2,1", "--seeds") == [5, 0, 1, 2]


@pytest.mark.parametrize("text", ["", "a", "0-3", "3..", "1,,2", "-1"])
def test_seeds_that_cannot_be_read_are_refused(text):
    with pytest.raises(InvalidParameterError, match=r"--seeds .* 0\.\.9"):
        parse_seeds(text, "--seeds")


def test_seeds_that_run_backwards_are_refused():
    with pytest.raises(InvalidParameterError, match="backwards"):
        parse_seeds("5..2", "--seeds")


def test_more_seeds_than_anybody_means_are_refused():
    with pytest.raises(InvalidParameterError, match=r"more than 100000 seeds at '5\.\.9+'"):
        parse_seeds("1,5..99999999999", "--seeds")
