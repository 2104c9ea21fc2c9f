import pytest

from fedcohort.errors import InvalidInputError
from fedcohort.metrics import jain_index, participation_variation


def test_equal_participation_is_perfectly_fair():
    assert participation_variation([3, 3, 3]) == 0
    assert jain_index([3, 3, 3]) == pytest.approx(1.0)


def test_one_client_doing_everything_is_least_fair():
    assert jain_index([5, 0, 0, 0]) == pytest.approx(0.25)
    assert participation_variation([4, 0, 0, 0]) == pytest.approx(3**0.5)


def test_jain_follows_from_the_coefficient_of_variation():
    counts = [1, 4, 2, 9, 0]
    assert jain_index(counts) == pytest.approx(1 / (1 + participation_variation(counts) ** 2))


@pytest.mark.parametrize("counts", [[], [0, 0], [-1, 2], [[1, 2]]])
def test_counts_without_a_meaning_are_refused(counts):
    for measure in (participation_variation, jain_index):
        with pytest.raises(InvalidInputError):
            measure(counts)
