import pytest

from fedcohort.cli.parsing import one_of
from fedcohort.errors import InvalidParameterError


def test_a_word_that_is_none_of_a_few_is_refused_with_all_of_them():
    one_of("--engine", "ray", ("local", "ray"))
    with pytest.raises(InvalidParameterError, match="--engine must be local or ray, not 'spark'"):
        one_of("--engine", "spark", ("local", "ray"))
