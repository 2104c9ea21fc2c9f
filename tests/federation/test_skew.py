import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcohort.errors import InvalidParameterError, PartitionError
from fedcohort.federation import partition_by_skew


def labels_of(class_sizes, seed=0):
    labels = np.repeat(np.arange(len(class_sizes)), class_sizes)
    return np.random.default_rng(seed).permutation(labels)


def counts_of(labels, partition, classes=10):
    return partition.label_counts(labels, classes)


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("skew", [0.0, 0.1, 0.5, 0.8, 1.0])
def test_every_client_has_the_share_of_its_main_class_and_the_rest_is_even(skew):
    labels = labels_of([1000] * 10)
    counts = counts_of(labels, partition_by_skew(labels, 100, skew, rng=rng()))
    assert np.all(counts.sum(axis=1) == 100)
    main_count = round(skew * 100)
    for row in counts:
        assert main_count in row
        others = np.delete(row, list(row).index(main_count))
        assert others.max() - others.min() <= 1
        assert others.sum() == 100 - main_count


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("clients", "least", "most"), [(100, 10, 10), (103, 10, 11), (7, 0, 1)])
def test_each_class_is_the_main_one_of_equally_many_clients(skew, clients, least, most):
    labels = labels_of([900] * 10)
    partition = partition_by_skew(labels, clients, skew, rng=rng(), samples_per_client=45)
    counts = counts_of(labels, partition)
    mains = counts.argmax(axis=1) if skew else counts.argmin(axis=1)
    times = np.bincount(mains, minlength=10)
    assert times.min() == least
    assert times.max() == most


def test_half_up_rounding_of_the_main_share_and_balanced_remainders():
    labels = labels_of([1000] * 10)
    counts = counts_of(
        labels, partition_by_skew(labels, 100, 0.5, rng=rng(), samples_per_client=15)
    )
    assert np.all(counts.max(axis=1) == 8)
    # 7 samples over 9 other classes, 100 clients: 700 in all, and no class is favoured.
    others = counts.sum(axis=0) - 8 * np.bincount(counts.argmax(axis=1), minlength=10)
    assert others.max() - others.min() <= 2


def test_h_gives_two_classes_half_each_and_uses_every_class_equally_often():
    labels = labels_of([1000] * 10)
    counts = counts_of(labels, partition_by_skew(labels, 100, "H", rng=rng()))
    assert np.all(np.sort(counts, axis=1)[:, -2:] == 50)
    assert np.all((counts > 0).sum(axis=1) == 2)
    assert np.all((counts > 0).sum(axis=0) == 20)


def test_h_pairs_are_random_and_cover_many_combinations():
    labels = labels_of([1000] * 10)
    pairs = [
        {tuple(np.flatnonzero(row)) for row in counts_of(labels, partition)}
        for partition in (partition_by_skew(labels, 100, "H", rng=rng(seed)) for seed in (0, 1))
    ]
    assert pairs[0] != pairs[1]
    assert min(len(seen) for seen in pairs) > 30


def test_h_gives_the_odd_sample_to_one_of_the_two_classes():
    labels = labels_of([400] * 4)
    partition = partition_by_skew(labels, 20, "H", rng=rng(), samples_per_client=7)
    counts = counts_of(labels, partition, 4)
    assert all(sorted(row) == [0, 0, 3, 4] for row in counts.tolist())


def test_h_with_two_classes_pairs_them_always():
    labels = labels_of([40, 40])
    counts = counts_of(labels, partition_by_skew(labels, 8, "H", rng=rng()), 2)
    assert np.all(counts == 5)


@settings(max_examples=150, deadline=None)
@given(
    class_sizes=st.lists(st.integers(5, 120), min_size=2, max_size=12),
    clients=st.integers(1, 30),
    skew=st.one_of(st.floats(0, 1), st.just("H")),
    spread=st.sampled_from([None, 0.7]),
    seed=st.integers(0, 2**32),
)
def test_no_sample_twice_whatever_the_class_sizes(class_sizes, clients, skew, spread, seed):
    labels = labels_of(class_sizes)
    proportions = None if spread is None else np.exp(spread * rng(seed).standard_normal(clients))
    try:
        partition = partition_by_skew(labels, clients, skew, rng=rng(seed), proportions=proportions)
    except PartitionError:
        # A refusal is right only where not even the least size fits: then asking for it fails too.
        least = 2 if skew == "H" else 1
        if proportions is None:
            with pytest.raises(PartitionError):
                partition_by_skew(labels, clients, skew, rng=rng(seed), samples_per_client=least)
        return
    assert len(partition) == clients
    assert partition.sizes.min() >= 1
    assert len(np.unique(partition.indices)) == len(partition.indices)
    counts = counts_of(labels, partition, len(class_sizes))
    assert np.array_equal(counts.sum(axis=1), partition.sizes)
    if proportions is None:
        assert len(set(partition.sizes.tolist())) == 1


@settings(max_examples=80, deadline=None)
@given(
    class_sizes=st.lists(st.integers(1, 400), min_size=2, max_size=6),
    clients=st.integers(1, 12),
    skew=st.one_of(st.floats(0, 1), st.just("H")),
)
def test_the_default_size_is_the_largest_feasible_one(class_sizes, clients, skew):
    labels = labels_of(class_sizes)
    step = 2 if skew == "H" else 1
    feasible = []
    for size in range(step, len(labels) // clients + 1, step):
        try:
            partition_by_skew(labels, clients, skew, rng=rng(), samples_per_client=size)
        except PartitionError:
            continue
        feasible.append(size)
    if feasible:
        partition = partition_by_skew(labels, clients, skew, rng=rng())
        assert partition.sizes[0] == feasible[-1]
    else:
        with pytest.raises(PartitionError, match="too few"):
            partition_by_skew(labels, clients, skew, rng=rng())


@pytest.mark.parametrize("skew", [1.0, 0.8, 0.5, "H"])
def test_the_default_size_does_not_depend_on_the_seed(skew):
    labels = labels_of([97, 80, 133, 90, 101])
    sizes = {int(partition_by_skew(labels, 13, skew, rng=rng(seed)).sizes[0]) for seed in range(20)}
    assert len(sizes) == 1


def test_same_seed_same_partition_and_another_seed_another():
    labels = labels_of([100] * 5)
    first, again, other = (partition_by_skew(labels, 10, 0.8, rng=rng(seed)) for seed in (3, 3, 4))
    assert np.array_equal(first.indices, again.indices)
    assert not np.array_equal(first.indices, other.indices)


def test_unequal_sizes_are_kept_and_have_their_shares():
    labels = labels_of([500] * 5)
    sizes = np.array([10, 200, 40, 90, 5, 60, 100, 30, 20, 70])
    partition = partition_by_skew(labels, 10, 0.8, rng=rng(), sizes=sizes)
    assert np.array_equal(partition.sizes, sizes)
    assert np.array_equal(counts_of(labels, partition, 5).max(axis=1), sizes * 8 // 10)
    assert len(np.unique(partition.indices)) == sizes.sum()


def test_proportions_are_scaled_to_what_fits():
    labels = labels_of([100, 100, 50])
    weights = np.array([1.0, 1.0, 2.0, 1.0, 1.0, 2.0])
    partition = partition_by_skew(labels, 6, 1.0, rng=rng(), proportions=weights)
    sizes = partition.sizes
    # The two heavy clients go to the two large classes, so that the small one limits nobody much.
    assert sizes.sum() >= 190
    assert np.all(np.abs(sizes[[2, 5]] - 2 * sizes[0]) <= 2)


def test_infeasible_sizes_name_the_class_and_the_largest_feasible_size():
    labels = labels_of([100, 100, 52])
    with pytest.raises(PartitionError, match=r"class 2, which has 52: ask for at most 26 samples"):
        partition_by_skew(labels, 6, 1.0, rng=rng(), samples_per_client=30)
    partition = partition_by_skew(labels, 6, 1.0, rng=rng(), samples_per_client=26)
    assert np.all(partition.sizes == 26)


def test_infeasible_unequal_sizes_name_a_total_that_is_feasible():
    labels = labels_of([50, 50])
    sizes = np.array([60, 30, 30, 20])
    with pytest.raises(PartitionError, match=r"at most (\d+) samples in all") as caught:
        partition_by_skew(labels, 4, 1.0, rng=rng(), sizes=sizes)
    total = int(str(caught.value).split("at most ")[1].split()[0])
    assert 70 <= total <= 100


def test_reuse_draws_again_only_from_the_class_that_runs_out():
    labels = labels_of([100, 100, 40])
    partition = partition_by_skew(labels, 6, 1.0, rng=rng(), samples_per_client=30, reuse=True)
    times = np.bincount(partition.indices, minlength=len(labels))
    assert times[labels != 2].max() == 1
    assert set(times[labels == 2]) == {1, 2}


def test_a_class_that_does_not_occur_takes_no_part():
    labels = np.repeat([0, 3, 7], 20)
    counts = counts_of(labels, partition_by_skew(labels, 6, 1.0, rng=rng()), 8)
    assert np.array_equal(np.flatnonzero(counts.sum(axis=0)), [0, 3, 7])
    assert np.all(counts.max(axis=1) == 10)


def test_samples_of_a_client_are_not_sorted_by_class():
    labels = labels_of([1000] * 10)
    held = labels[partition_by_skew(labels, 5, 0.1, rng=rng()).of(0)]
    assert np.any(np.diff(held[:50]) < 0)


@pytest.mark.parametrize("skew", [-0.1, 1.5, float("nan"), "h2", "0.8"])
def test_a_wrong_skew_is_refused(skew):
    with pytest.raises(InvalidParameterError, match=r"skew must lie in \[0, 1\] or be H"):
        partition_by_skew([0, 1], 1, skew, rng=rng())


@pytest.mark.parametrize(
    ("labels", "clients", "options", "sentence"),
    [
        ([0, 1], 0, {}, "at least 1 client"),
        ([0, 1], 3, {}, "too few"),
        ([], 3, {}, "non-empty row of integers"),
        ([0.5, 1.0], 1, {}, "row of integers"),
        ([0, 1, 0, 1], 2, {"sizes": [1, 1, 1]}, "2 whole numbers"),
        ([0, 1, 0, 1], 2, {"sizes": [2, 0]}, "at least 1 samples"),
        ([0, 1, 0, 1], 2, {"samples_per_client": 0}, "at least 1 samples"),
        ([0, 1, 0, 1], 2, {"proportions": [1.0, -1.0]}, "numbers above 0"),
        ([0, 1, 0, 1], 2, {"samples_per_client": 1, "sizes": [1, 1]}, "only one of"),
    ],
)
def test_wrong_requests_are_refused(labels, clients, options, sentence):
    with pytest.raises(PartitionError, match=sentence):
        partition_by_skew(labels, clients, 1.0, rng=rng(), **options)


def test_one_class_allows_only_full_skew():
    assert np.all(partition_by_skew([4] * 6, 3, 1.0, rng=rng()).sizes == 2)
    with pytest.raises(PartitionError, match="at least 2 classes"):
        partition_by_skew([4] * 6, 3, 0.5, rng=rng())


def test_h_needs_two_samples_a_client():
    with pytest.raises(PartitionError, match="at least 2 samples"):
        partition_by_skew([0, 1] * 5, 2, "H", rng=rng(), samples_per_client=1)


def test_mnist_at_full_skew_gives_542_samples_a_client(mnist):
    labels = mnist.y_train
    assert np.bincount(labels)[5] == 5421
    partition = partition_by_skew(labels, 100, 1.0, rng=rng())
    counts = counts_of(labels, partition)
    assert np.all(partition.sizes == 542)
    assert np.all(counts.max(axis=1) == 542)
    assert len(np.unique(partition.indices)) == 54200
    with pytest.raises(PartitionError, match=r"class 5, which has 5421: ask for at most 542 "):
        partition_by_skew(labels, 100, 1.0, rng=rng(), samples_per_client=600)


@pytest.mark.parametrize("skew", [0.8, 0.5, "H"])
def test_mnist_at_the_papers_other_skews(mnist, skew):
    partition = partition_by_skew(mnist.y_train, 100, skew, rng=rng())
    counts = counts_of(mnist.y_train, partition)
    size = partition.sizes[0]
    assert np.all(partition.sizes == 542)
    share = 0.5 if skew == "H" else skew
    assert np.all(counts.max(axis=1) == np.floor(share * size + 0.5))
