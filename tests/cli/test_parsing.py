import pytest

from fedcohort.cli.parsing import count_or_all
from fedcohort.errors import InvalidParameterError


def test_counts_or_a_word_for_everything():
    assert count_or_all("--batch-size", "full", "full") is None
    assert count_or_all("--batch-size", "32", "full") == 32
    with pytest.raises(InvalidParameterError, match="--batch-size must be a whole number or full"):
        count_or_all("--batch-size", "half", "full")
