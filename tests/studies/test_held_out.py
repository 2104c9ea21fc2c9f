import numpy as np
import pytest
from held_out import (
    TABLE,
    both_ways,
    by_others,
    conditions_of,
    doublings,
    exceeded,
    fit,
    in_worlds,
    main,
    of_others,
    read_table,
)
from scipy.stats import rankdata

DATASETS = np.repeat(["a", "b", "c", "d", "e"], 6)


@pytest.fixture(scope="module")
def conditions():
    rng = np.random.default_rng(0)
    return DATASETS, rng.uniform(0.02, 0.4, len(DATASETS)), rng.uniform(0.05, 0.7, len(DATASETS))


def test_the_constant_that_made_the_gains_is_found(conditions):
    _, spread, left = conditions
    assert fit(spread, left, doublings(0.15, spread, left)) == pytest.approx(0.15, rel=1e-3)


def test_with_one_constant_for_all_ranks_are_those_of_the_gains(conditions):
    datasets, spread, left = conditions
    measured = doublings(0.15, spread, left)
    assert exceeded(datasets, spread, left, measured).tolist() == (rankdata(measured) - 1).tolist()
    assert both_ways(datasets, spread, left, measured) == pytest.approx((1, 1))


def test_what_a_data_set_is_predicted_by_does_not_know_it(conditions):
    datasets, spread, left = conditions
    measured = doublings(np.where(datasets == "e", 0.05, 0.2), spread, left)
    constants = of_others(datasets, spread, left, measured)
    assert constants["e"] == pytest.approx(0.2, rel=1e-3)
    assert max(constants[name] for name in "abcd") < 0.19


def test_equal_predictions_are_halves():
    same = np.full(4, 0.2)
    assert exceeded(np.array(["a", "a", "b", "c"]), same, same, same).tolist() == [1.5] * 4


@pytest.mark.parametrize(("third", "first_exceeds"), [(0.02, True), (1.0, False)])
def test_two_data_sets_are_compared_by_what_a_third_says(third, first_exceeds):
    datasets = np.array(["a", "b", "c", "c"])
    # With a small constant the first gains more than the second, with a large one less. The third's
    # own gains are next to nothing, so both exceed them.
    spread, left = np.array([0.1, 0.4, 0.5, 0.3]), np.array([0.05, 0.5, 0.99, 0.98])
    ones = np.array([0.15, 0.15, third, third])
    ranks = exceeded(datasets, spread, left, doublings(ones, spread, left))
    assert ranks[:2].tolist() == ([3, 2] if first_exceeds else [2, 3])


def test_a_data_set_with_large_gains_is_predicted_lower_than_the_others_predict_theirs(conditions):
    datasets, spread, left = conditions
    spread, left = np.tile(spread[:6], 5), np.tile(left[:6], 5)
    # The same clients gain more on one data set: pooling says less, pairs say as much.
    measured = doublings(np.where(datasets == "e", 0.05, 0.2), spread, left)
    pooled = by_others(datasets, spread, left, measured)
    assert (pooled[datasets == "e"] < 0.9 * pooled[datasets == "a"]).all()
    ranks = exceeded(datasets, spread, left, measured)
    assert ranks[datasets == "e"].tolist() == ranks[datasets == "a"].tolist()


def test_pairs_are_right_about_worlds_whose_truth_is_known_and_pooling_is_not(conditions):
    found = in_worlds(*conditions, other=0.15, differ=0.4, noise=0.1, worlds=60)
    true, pooled, pairwise = found.mean(0)
    # Standard errors of the differences are about .01 and .006.
    assert abs(pairwise - true) < 0.03
    assert pooled < true - 0.05


def test_the_published_table_is_ranked(capsys):
    main(["--worlds", "2"])
    pooled, pairwise = both_ways(*conditions_of(read_table(TABLE)))
    said = capsys.readouterr().out
    assert f"31 conditions: pooled {pooled:.3f}, pairwise {pairwise:.3f}" in said
