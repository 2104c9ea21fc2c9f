import pytest

from fedcohort.cli.parsing import count_or_all, seed_list
from fedcohort.errors import InvalidParameterError


def test_seeds_are_ranges_and_lists_without_doubles():
    assert seed_list("0..3") == [0, 1, 2, 3]
    assert seed_list("7") == [7]
    assert seed_list("5, 0..2,1") == [5, 0, 1, 2]


@pytest.mark.parametrize("text", ["", "a", "0-3", "3..", "1,,2", "-1"])
def test_seeds_that_cannot_be_read_are_refused(text):
    with pytest.raises(InvalidParameterError, match=r"0\.\.9"):
        seed_list(text)


def test_seeds_that_run_backwards_are_refused():
    with pytest.raises(InvalidParameterError, match="backwards"):
        seed_list("5..2")


def test_counts_or_a_word_for_everything():
    assert count_or_all("--batch-size", "full", "full") is None
    assert count_or_all("--batch-size", "32", "full") == 32
    with pytest.raises(InvalidParameterError, match="--batch-size must be a whole number or full"):
        count_or_all("--batch-size", "half", "full")
