import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcohort.errors import InvalidParameterError, PartitionError
from fedcohort.federation import (
    Partition,
    PartitionSpec,
    lognormal_sizes,
    parse_skew,
    partition_dirichlet,
    partition_iid,
    partition_shards,
)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_a_partition_counts_labels_and_gives_each_client_its_rows():
    partition = Partition(np.array([3, 1, 0]), np.array([0, 2, 2, 3]))
    assert len(partition) == 3
    assert partition.sizes.tolist() == [2, 0, 1]
    assert partition.of(0).tolist() == [3, 1]
    assert partition.of(1).tolist() == []
    assert partition.label_counts([2, 0, 0, 2], 3).tolist() == [[1, 0, 1], [0, 0, 0], [0, 0, 1]]


def test_a_partition_from_owners_keeps_the_order_of_samples():
    partition = Partition.from_owners([1, 0, 1, 3], 4)
    assert partition.sizes.tolist() == [1, 2, 0, 1]
    assert [partition.of(c).tolist() for c in range(4)] == [[1], [0, 2], [], [3]]


def test_iid_gives_equal_sizes_without_repeats_and_a_fair_mixture():
    labels = np.repeat(np.arange(10), 1003)
    partition = partition_iid(labels, 20, rng=rng())
    assert np.all(partition.sizes == 501)
    assert len(np.unique(partition.indices)) == 20 * 501
    counts = partition.label_counts(labels, 10)
    # Hypergeometric with mean 50.1 and standard deviation 6.6: five of them to either side.
    assert counts.min() > 17
    assert counts.max() < 84


def test_iid_keeps_sizes_and_refuses_more_than_there_is():
    labels = np.zeros(10, dtype=int)
    assert partition_iid(labels, 3, rng=rng(), sizes=[5, 1, 4]).sizes.tolist() == [5, 1, 4]
    with pytest.raises(PartitionError, match="at most 5 a client"):
        partition_iid(labels, 2, rng=rng(), samples_per_client=6)
    with pytest.raises(PartitionError, match="at most 10 clients"):
        partition_iid(labels, 11, rng=rng())
    reused = partition_iid(labels, 2, rng=rng(), samples_per_client=6, reuse=True)
    assert set(np.bincount(reused.indices)) == {1, 2}


@settings(max_examples=60, deadline=None)
@given(
    class_sizes=st.lists(st.integers(1, 80), min_size=1, max_size=8),
    clients=st.integers(1, 25),
    alpha=st.floats(1e-4, 1e4),
    seed=st.integers(0, 2**32),
)
def test_dirichlet_by_class_uses_every_sample_once(class_sizes, clients, alpha, seed):
    labels = np.repeat(np.arange(len(class_sizes)), class_sizes)
    if len(labels) < clients:
        with pytest.raises(PartitionError, match="too few"):
            partition_dirichlet(labels, clients, alpha, rng=rng(seed))
        return
    partition = partition_dirichlet(labels, clients, alpha, rng=rng(seed))
    assert np.array_equal(np.sort(partition.indices), np.arange(len(labels)))
    assert partition.sizes.min() >= 1


@settings(max_examples=60, deadline=None)
@given(
    class_sizes=st.lists(st.integers(1, 80), min_size=1, max_size=8),
    alpha=st.floats(1e-4, 1e4),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_dirichlet_with_sizes_respects_sizes_and_supplies(class_sizes, alpha, seed, data):
    labels = np.repeat(np.arange(len(class_sizes)), class_sizes)
    clients = data.draw(st.integers(1, len(labels)))
    size = data.draw(st.integers(1, len(labels) // clients))
    partition = partition_dirichlet(labels, clients, alpha, rng=rng(seed), samples_per_client=size)
    assert np.all(partition.sizes == size)
    assert len(np.unique(partition.indices)) == clients * size


@pytest.mark.parametrize("sizes", [None, np.full(50, 100)])
def test_a_small_alpha_is_skewed_and_a_large_one_is_not(sizes):
    labels = np.repeat(np.arange(10), 1000)

    def mean_largest_share(alpha):
        partition = partition_dirichlet(labels, 50, alpha, rng=rng(), sizes=sizes)
        counts = partition.label_counts(labels, 10)
        return np.mean(counts.max(axis=1) / counts.sum(axis=1))

    assert mean_largest_share(0.05) > 0.6
    assert mean_largest_share(1000.0) < 0.2


def test_dirichlet_class_shares_have_the_right_spread():
    # One class over two clients: the share is Beta(α, α) with variance 1 / (4(2α + 1)).
    labels = np.zeros(10_000, dtype=int)
    shares = [
        partition_dirichlet(labels, 2, 2.0, rng=rng(seed)).sizes[0] / 10_000 for seed in range(600)
    ]
    # 600 draws: the sample variance is within 20 % (its standard error is about 5 %).
    assert np.var(shares) == pytest.approx(1 / 20, rel=0.2)


def test_dirichlet_keeps_a_minimum_even_at_a_tiny_alpha():
    labels = np.repeat(np.arange(3), 100)
    partition = partition_dirichlet(labels, 30, 1e-300, rng=rng(), minimum=5)
    assert partition.sizes.min() == 5
    assert np.array_equal(np.sort(partition.indices), np.arange(300))


def test_dirichlet_with_reuse_may_exceed_a_class():
    labels = np.repeat([0, 1], [5, 95])
    partition = partition_dirichlet(labels, 10, 1.0, rng=rng(), samples_per_client=50, reuse=True)
    assert np.all(partition.sizes == 50)
    with pytest.raises(PartitionError, match="at most 10 a client"):
        partition_dirichlet(labels, 10, 1.0, rng=rng(), samples_per_client=50)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf"), float("nan")])
def test_a_wrong_alpha_is_refused(alpha):
    with pytest.raises(InvalidParameterError, match="above 0 and finite"):
        partition_dirichlet([0, 1], 1, alpha, rng=rng())


def test_shards_are_pure_where_they_divide_the_classes():
    labels = rng().permutation(np.repeat(np.arange(10), 600))
    partition = partition_shards(labels, 100, 2, rng=rng())
    counts = partition.label_counts(labels, 10)
    assert np.all(partition.sizes == 60)
    assert np.all(np.isin(counts, [0, 30, 60]))
    assert len(np.unique(partition.indices)) == 6000


def test_shards_leave_out_random_samples_that_do_not_divide():
    labels = np.repeat([0, 1], 53)
    left_out = set()
    for seed in range(10):
        partition = partition_shards(labels, 5, 2, rng=rng(seed))
        assert np.all(partition.sizes == 20)
        left_out |= set(labels[np.setdiff1d(np.arange(106), partition.indices)].tolist())
    assert left_out == {0, 1}


def test_wrong_shards_are_refused():
    with pytest.raises(PartitionError, match="cannot be cut into 6 shards"):
        partition_shards([0, 1, 2], 3, 2, rng=rng())
    for count in (0, 1.5):
        with pytest.raises(InvalidParameterError, match="whole number of at least 1"):
            partition_shards([0, 1, 2], 3, count, rng=rng())


@settings(max_examples=60, deadline=None)
@given(
    clients=st.integers(1, 50),
    per_client=st.integers(3, 40),
    sigma=st.floats(0, 5),
    seed=st.integers(0, 2**32),
)
def test_lognormal_sizes_sum_to_the_total_and_keep_the_minimum(clients, per_client, sigma, seed):
    total = clients * per_client
    sizes = lognormal_sizes(clients, total, sigma, rng(seed), minimum=3)
    assert sizes.sum() == total
    assert sizes.min() >= 3


def test_lognormal_sizes_have_the_asked_spread():
    assert set(lognormal_sizes(7, 700, 0.0, rng())) == {100}
    sizes = lognormal_sizes(4000, 4_000_000, 0.8, rng())
    # The standard error of a standard deviation of 4000 draws is about 1 %.
    assert np.std(np.log(sizes)) == pytest.approx(0.8, rel=0.05)
    with pytest.raises(PartitionError, match="too few"):
        lognormal_sizes(7, 6, 0.5, rng())
    with pytest.raises(InvalidParameterError, match="size spread"):
        lognormal_sizes(7, 70, -1.0, rng())


@pytest.mark.parametrize(
    ("text", "spec", "canonical"),
    [
        ("1", PartitionSpec("skew", 1.0), "1"),
        ("0.80", PartitionSpec("skew", 0.8), "0.8"),
        (" H ", PartitionSpec("skew", "H"), "H"),
        ("h", PartitionSpec("skew", "H"), "H"),
        ("IID", PartitionSpec("iid"), "iid"),
        ("natural", PartitionSpec("natural"), "natural"),
        ("dirichlet:0.1", PartitionSpec("dirichlet", 0.1), "dirichlet:0.1"),
        ("shards:2", PartitionSpec("shards", 2), "shards:2"),
    ],
)
def test_partitions_are_read_from_text(text, spec, canonical):
    assert parse_skew(text) == spec
    assert str(spec) == canonical
    assert parse_skew(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1.2", r"skew must lie in \[0, 1\] or be H, not 1.2"),
        ("-0.1", r"skew must lie in \[0, 1\]"),
        ("nan", r"skew must lie in \[0, 1\]"),
        ("K", r"H, iid, dirichlet:ALPHA, shards:COUNT or natural, not 'K'"),
        ("", "not ''"),
        ("iid:2", "not 'iid:2'"),
        ("dirichlet", "not 'dirichlet'"),
        ("dirichlet:-1", "above 0"),
        ("shards:1.5", "whole number"),
        ("shards:inf", "not 'shards:inf'"),
    ],
)
def test_wrong_text_is_refused_in_one_sentence(text, sentence):
    with pytest.raises(InvalidParameterError, match=sentence):
        parse_skew(text)
