import numpy as np
import pytest

from fedcohort.errors import InvalidParameterError, PartitionError, UnknownNameError
from fedcohort.federation import build_federation, load_dataset


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits")


def test_digits_are_split_once_and_stratified(digits):
    again = load_dataset("digits")
    assert np.array_equal(digits.x_test, again.x_test)
    assert digits.x_train.shape == (1438, 1, 8, 8)
    assert digits.x_test.shape == (359, 1, 8, 8)
    assert digits.x_train.dtype == np.uint8
    assert digits.scale == digits.x_train.max() == 16
    train, test = np.bincount(digits.y_train), np.bincount(digits.y_test)
    assert np.all(np.abs(test / (train + test) - 0.2) < 0.01)
    rows = {x.tobytes() + bytes([y]) for x, y in zip(digits.x_train, digits.y_train, strict=True)}
    overlap = sum(
        x.tobytes() + bytes([y]) in rows for x, y in zip(digits.x_test, digits.y_test, strict=True)
    )
    assert overlap == 0


def test_mean_and_std_are_those_of_the_scaled_pixels(digits):
    pixels = digits.x_train / 16
    assert digits.mean == pytest.approx(pixels.mean())
    assert digits.std == pytest.approx(pixels.std())


def test_mnist_as_it_is_known(mnist):
    assert mnist.x_train.shape == (60000, 1, 28, 28)
    assert mnist.x_test.shape == (10000, 1, 28, 28)
    assert mnist.x_train.dtype == np.uint8
    assert mnist.y_train[:5].tolist() == [5, 0, 4, 1, 9]
    assert mnist.mean == pytest.approx(0.1307, abs=5e-5)
    assert mnist.std == pytest.approx(0.3081, abs=5e-5)


def test_an_unknown_data_set_gets_the_nearest_name():
    with pytest.raises(UnknownNameError, match="did you mean 'fashion-mnist'"):
        load_dataset("fashionmnist")


def test_a_federation_is_a_function_of_its_seed(digits):
    first, again, other = (
        build_federation(digits, skew="0.8", clients=20, seed=seed) for seed in (0, 0, 1)
    )
    assert np.array_equal(first.partition.indices, again.partition.indices)
    assert not np.array_equal(first.partition.indices, other.partition.indices)
    assert np.array_equal(first.sizes, other.sizes)
    assert first.client_names[:2] == ("0", "1")


@pytest.mark.parametrize("skew", ["1", "0.5", "H", "iid", "dirichlet:0.3", "shards:2"])
def test_every_kind_of_partition_can_be_asked_for(digits, skew):
    federation = build_federation(digits, skew=skew, clients=20, seed=0)
    assert len(federation) == 20
    assert np.array_equal(federation.label_counts.sum(axis=1), federation.sizes)
    assert len(np.unique(federation.partition.indices)) == federation.sizes.sum()


@pytest.mark.parametrize("skew", ["1", "0.5", "H", "iid", "dirichlet:0.3"])
def test_sizes_spread_around_their_mean(digits, skew):
    free = build_federation(digits, skew=skew, clients=20, seed=0, size_spread=0.8)
    fixed = build_federation(
        digits, skew=skew, clients=20, seed=0, size_spread=0.8, samples_per_client=10
    )
    assert fixed.sizes.sum() == 200
    for federation in (free, fixed):
        assert federation.sizes.max() > 2 * federation.sizes.min()
        assert len(np.unique(federation.partition.indices)) == federation.sizes.sum()


def test_samples_per_client_and_reuse_reach_the_partition(digits):
    with pytest.raises(PartitionError, match="ask for at most"):
        build_federation(digits, skew="1", clients=20, seed=0, samples_per_client=100)
    federation = build_federation(
        digits, skew="1", clients=20, seed=0, samples_per_client=100, reuse=True
    )
    assert np.all(federation.sizes == 100)


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"skew": "natural"}, PartitionError, "digits has no clients of its own"),
        ({"skew": "1", "clients": None}, PartitionError, "over how many clients digits"),
        ({"skew": "2"}, InvalidParameterError, r"skew must lie in \[0, 1\] or be H"),
        ({"skew": "1", "clients": 0}, PartitionError, "at least 1 client"),
        ({"skew": "1", "size_spread": -1.0}, InvalidParameterError, "size spread"),
        ({"skew": "shards:2", "samples_per_client": 5}, PartitionError, "Shards fix"),
        ({"skew": "shards:2", "reuse": True}, PartitionError, "Shards fix"),
    ],
)
def test_wrong_federations_are_refused(digits, options, error, sentence):
    with pytest.raises(error, match=sentence):
        build_federation(digits, **{"clients": 10, "seed": 0, **options})
