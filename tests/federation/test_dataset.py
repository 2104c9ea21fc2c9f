import dataclasses

import numpy as np
import pytest

from fedcohort.errors import InvalidInputError, PartitionError
from fedcohort.federation import Dataset, build_federation, load_dataset


def made(x, y=None, **fields):
    x = np.asarray(x)
    y = np.zeros(len(x), dtype=np.int64) if y is None else np.asarray(y)
    values = {"classes": 1, **fields}
    return Dataset("made", x, y, x[:0], y[:0], **values)


@pytest.mark.parametrize(
    ("x", "kind"),
    [
        (np.zeros((2, 3, 4, 4), np.uint8), "image"),
        (np.zeros((2, 5), np.float32), "table"),
        (np.zeros((2, 5), np.uint8), "table"),
        (np.zeros((2, 5), np.int32), "tokens"),
        (np.zeros((2, 5), np.int64), "tokens"),
    ],
)
def test_what_samples_are_is_told_from_shape_and_type(x, kind):
    assert made(x).inputs == kind


def test_bytes_are_tokens_when_the_data_set_says_so():
    data = made(np.array([[0, 7], [3, 2]], np.uint8), inputs="tokens")
    assert data.x_train.dtype == np.uint8
    assert data.standardisation() is None
    assert data.vocabulary == 8
    assert made(np.zeros((2, 3), np.float32)).vocabulary == 0


def test_columns_are_standardised_one_by_one_and_constant_ones_survive():
    rng = np.random.default_rng(0)
    x = rng.normal([5, -2000, 1e-6, 0], [0.01, 300, 1e-7, 0], (500, 4)).astype(np.float32)
    mean, std = made(x).standardisation()
    assert mean.shape == std.shape == (4,)
    assert mean.dtype == std.dtype == np.float32
    assert mean == pytest.approx(x.mean(axis=0, dtype=float), rel=1e-6)
    assert std[:3] == pytest.approx(x.std(axis=0, dtype=float)[:3], rel=1e-6)
    assert std[3] == 1


def test_a_small_deviation_far_from_zero_is_not_lost():
    column = np.array([[1e7], [1e7 + 1], [1e7 + 2]], np.float32)
    mean, std = made(column).standardisation()
    assert mean.item() == 1e7 + 1
    assert std.item() == pytest.approx(np.sqrt(2 / 3))


def test_constant_columns_of_bytes_survive_whatever_rounding_leaves_of_their_variance():
    _, std = made(np.tile(np.arange(256, dtype=np.uint8), (7, 1)), scale=255.0).standardisation()
    assert np.all(std == 1)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_images_are_standardised_by_channel(dtype):
    x = np.random.default_rng(1).integers(0, 256, (700, 3, 8, 8)).astype(dtype)
    x[:, 2] = 9
    data = made(x, scale=255.0)
    mean, std = data.standardisation()
    assert mean.shape == std.shape == (3, 1, 1)
    scaled = x.astype(float) / 255
    assert mean.ravel() == pytest.approx(scaled.mean(axis=(0, 2, 3)), rel=1e-6)
    assert std.ravel()[:2] == pytest.approx(scaled.std(axis=(0, 2, 3))[:2], rel=1e-6)
    assert std.ravel()[2] == 1


# Made by the formula of one global mean, before there were channels: results must stay.
DIGITS = ("0x1.3925077a200b6p-2", "0x1.8173b9f91afdep-2")
MNIST = ("0x1.0b97b843ceb93p-3", "0x1.3b809cb4d2d4dp-2")


def test_one_channel_keeps_its_numbers_to_the_last_bit(mnist):
    for data, numbers in ((load_dataset("digits"), DIGITS), (mnist, MNIST)):
        assert (data.mean.hex(), data.std.hex()) == numbers
        mean, std = data.standardisation()
        assert (mean.item(), std.item()) == (np.float32(data.mean), np.float32(data.std))


def test_label_groups_of_classes_are_the_classes():
    data = made(np.zeros((3, 2), np.float32), [2, 0, 2], classes=4)
    assert data.label_groups.tolist() == [2, 0, 2]
    assert data.groups == 4


def test_label_groups_of_a_regression_are_tenths():
    y = np.random.default_rng(0).permutation(1000).astype(np.float32)
    for shape in ((1000,), (1000, 1)):
        data = made(np.zeros((1000, 2), np.float32), y.reshape(shape), task="regression")
        assert data.groups == 10
        assert np.array_equal(data.label_groups, y // 100)
    exact = made(np.zeros((11, 2), np.float32), np.arange(11, dtype=np.float32), task="regression")
    assert exact.label_groups.tolist() == [*range(10), 9], "a value on an edge belongs above it"
    assert build_federation(data, skew="dirichlet:0.1", clients=5).label_counts.shape == (5, 10)


def test_label_groups_of_next_tokens_are_the_last_targets():
    x = np.zeros((2, 3), np.int64)
    data = made(x, [[1, 2, 3], [4, 5, 0]], classes=6, task="next-token")
    assert data.label_groups.tolist() == [3, 0]
    assert data.groups == data.vocabulary == 6
    assert made(x, [5, 1], classes=6, task="next-token").label_groups.tolist() == [5, 1]


def test_label_groups_of_several_labels_are_their_sets():
    x = np.zeros((4, 2), np.float32)
    y = np.array([[1, 0], [1, 1], [1, 0], [0, 0]], np.uint8)
    data = made(x, y, classes=2, task="multilabel")
    groups = data.label_groups
    assert groups[0] == groups[2]
    assert len(set(groups.tolist())) == data.groups == 3


def test_without_label_groups_only_iid_divides():
    x = np.zeros((200, 1), np.float32)
    y = np.unpackbits(np.arange(200, dtype=np.uint8)[:, None], axis=1)
    data = made(x, y, classes=8, task="multilabel")
    assert data.label_groups is None
    assert data.groups == 0
    assert build_federation(data, skew="iid", clients=4).label_counts.shape == (4, 0)
    with pytest.raises(PartitionError, match=r"made has no classes .*: take the skew iid"):
        build_federation(data, skew="1", clients=4)
    several = made(x, np.zeros((200, 2), np.float32), classes=2, task="regression")
    assert several.label_groups is None


TABLE = np.zeros((3, 2), np.float32)
NAN = np.full((3, 2), np.nan, np.float32)
WRONG = {
    "x_train is a list: it must be an array": {"x_train": [[0.0, 1.0]]},
    "client is a tuple": {"client": (0, 1, 2)},
    "classes is 2.0": {"classes": 2.0},
    "the scale is 0": {"scale": 0.0},
    "the scale is nan": {"scale": float("nan")},
    "x_train has NaN in row 0: remove or fill": {"x_train": NAN},
    "x_test has an infinite value .* in row 1": {
        "x_test": np.array([[0, 0], [np.inf, 0]], np.float32),
        "y_test": np.zeros(2, np.int64),
    },
    "y_train has NaN in row 0": {
        "task": "regression",
        "y_train": NAN,
        "y_test": NAN[:0],
        "classes": 2,
    },
    "y_train has the value 7: several labels": {
        "task": "multilabel",
        "y_train": np.full((3, 2), 7, np.uint8),
        "y_test": np.zeros((0, 2), np.uint8),
        "classes": 2,
    },
    "the task is 'guess'": {"task": "guess"},
    "inputs is 'sound'": {"inputs": "sound"},
    "there are 3 classes: the task binary has 2": {"task": "binary", "classes": 3},
    r"x_train has shape \(3, 2, 2\)": {"x_train": np.zeros((3, 2, 2), np.float32)},
    "x_train has shape .* type float64": {"x_train": np.zeros((3, 2))},
    r"x_test has samples of shape \(3,\)": {"x_test": np.zeros((0, 3), np.float32)},
    r"samples have shape \(8, 9, 3\), which reads as height × width": {
        "x_train": np.zeros((3, 8, 9, 3), np.uint8),
        "x_test": np.zeros((0, 8, 9, 3), np.uint8),
    },
    "y_train has shape .* type float32": {"y_train": np.zeros(3, np.float32)},
    r"y_train has shape \(2,\)": {"y_train": np.zeros(2, np.int64)},
    "y_train runs from 0 to 4: classes must lie between 0 and 1": {
        "y_train": np.array([0, 4, 1]),
        "classes": 2,
    },
    "y_train has 2 columns but classes is 1": {
        "y_train": TABLE,
        "y_test": TABLE[:0],
        "task": "regression",
    },
    r"client has shape \(2,\)": {"client": np.zeros(2, np.int64), "client_names": ("a",)},
    "test_client has type|test_client has shape": {"test_client": np.zeros(2, np.int64)},
    "client runs from 0 to 1: it must point into the 1 names in client_names": {
        "client": np.array([0, 1, 0]),
        "client_names": ("a",),
    },
}


@pytest.mark.parametrize("sentence", WRONG)
def test_a_wrong_data_set_is_refused_in_one_sentence(sentence):
    right = {
        "name": "made",
        "x_train": TABLE,
        "y_train": np.zeros(3, np.int64),
        "x_test": TABLE[:0],
        "y_test": np.zeros(0, np.int64),
        "classes": 1,
    }
    with pytest.raises(InvalidInputError, match=f"In the data set made, .*{sentence}"):
        Dataset(**{**right, **WRONG[sentence]})


@pytest.mark.parametrize("shape", [(2, 3, 8, 3), (2, 5, 6, 7), (2, 8, 3, 3), (2, 1, 9, 4)])
def test_shapes_that_could_be_channels_first_are_taken_so(shape):
    assert made(np.zeros(shape, np.uint8)).inputs == "image"


def test_a_test_part_may_be_left_out():
    for data in (
        Dataset("made", TABLE, np.zeros(3, np.int64), None, None, classes=1),
        Dataset("made", TABLE, np.zeros(3, np.int64), classes=1),
    ):
        assert data.x_test.shape == (0, 2)
        assert data.y_test.shape == (0,)
    with pytest.raises(InvalidInputError, match=r"y_test has shape .* for 3 samples"):
        Dataset("made", TABLE, np.zeros(3, np.int64), TABLE, classes=1)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (
            made(np.zeros((1234, 3, 8, 9), np.uint8), classes=10),
            "made: 1,234 samples and no test part, images of 3 × 8 × 9, classification with 10 "
            "classes, no clients of its own",
        ),
        (
            Dataset(
                *("made", TABLE, TABLE[:, :1], TABLE[:1], TABLE[:1, :1]),
                classes=1,
                task="regression",
                client=np.zeros(3, np.int64),
                client_names=("a",),
            ),
            "made: 3 samples and 1 for testing, 2 columns, regression with 1 target, 1 client",
        ),
        (
            made(np.zeros((1, 80), np.int64), classes=65, task="next-token"),
            "made: 1 sample and no test part, texts of 80 tokens, next-token with 65 tokens, no "
            "clients of its own",
        ),
    ],
)
def test_a_data_set_shows_itself_in_one_line(data, line):
    assert repr(data) == line


def test_a_changed_copy_is_checked_again():
    data = made(TABLE)
    with pytest.raises(InvalidInputError, match="y_train has shape"):
        dataclasses.replace(data, y_train=np.zeros(9, np.int64))
