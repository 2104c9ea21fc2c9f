import pytest

from fedcohort.errors import InvalidInputError
from fedcohort.metrics import (
    bytes_to_target,
    jain_index,
    participation_variation,
    round_bytes,
    setup_bytes,
    vector_bytes,
)


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


def test_bytes_by_hand():
    model, profile = vector_bytes(1000), vector_bytes(10, bytes_per_value=8)
    assert (model, profile) == (4000, 80)
    assert round_bytes(model, cohort=10) == 80_000
    assert round_bytes(model, cohort=10, report_bytes=4) == 80_040
    assert setup_bytes(profile, clients=100) == 8_000
    assert setup_bytes(profile, clients=100, model_bytes=model) == 408_000


def test_bytes_to_target_counts_the_setup_and_every_round_up_to_it():
    assert bytes_to_target(100, 7, 3) == 307
    assert bytes_to_target([100, 200, 300], 7, 2) == 307
    assert bytes_to_target([100, 200, 300], 7, 0) == 7
    assert bytes_to_target(100, 7, None) is None
    with pytest.raises(InvalidInputError, match="Round 4 lies outside the 3 rounds"):
        bytes_to_target([100, 200, 300], 7, 4)
