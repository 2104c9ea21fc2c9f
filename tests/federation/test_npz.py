import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedcohort.errors import CorruptFileError, InvalidInputError, PartitionError
from fedcohort.federation import build_federation, has_own_clients, load_dataset
from fedcohort.federation.memory import available_bytes


def arrays(**changes):
    rng = np.random.default_rng(0)
    whole = {
        "x": rng.standard_normal((6, 4)),
        "y": np.array([10, 30, 10, 20, 30, 30]),
        "client": np.array(["b", "a", "b", "c", "a", "a"]),
    }
    whole.update(changes)
    return {name: value for name, value in whole.items() if value is not None}


def saved(tmp_path, **changes):
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays(**changes))
    return str(path)


def test_labels_and_clients_become_numbers_and_keep_their_names(tmp_path):
    data = load_dataset(saved(tmp_path))
    assert data.x_train.dtype == np.float32
    assert data.x_train.shape == (6, 4)
    assert data.y_train.tolist() == [0, 2, 0, 1, 2, 2]
    assert data.class_names == ("10", "20", "30")
    assert data.classes == 3
    assert data.client.tolist() == [1, 0, 1, 2, 0, 0]
    assert data.client_names == ("a", "b", "c")
    assert data.scale == 1.0
    assert len(data.x_test) == len(data.y_test) == 0


def test_a_path_may_be_a_path(tmp_path):
    path = Path(saved(tmp_path))
    assert len(load_dataset(path).y_train) == 6
    assert load_dataset(path).name == str(path)
    assert has_own_clients(path)


def test_the_federation_is_the_files_own(tmp_path):
    data = load_dataset(saved(tmp_path))
    for skew in ("natural", None):
        federation = build_federation(data, skew=skew, seed=3)
        assert len(federation) == 3
        assert federation.client_names == ("a", "b", "c")
        assert federation.partition.of(0).tolist() == [1, 4, 5]
        assert federation.label_counts.tolist() == [[0, 0, 3], [2, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"skew": "1"}, "leave out skew 1"),
        ({"clients": 3}, "leave out clients 3"),
        ({"samples_per_client": 2}, "leave out samples per client 2"),
        ({"size_spread": 0.5}, "leave out size spread 0.5"),
        ({"reuse": True}, "leave out reuse"),
        ({"skew": "iid", "clients": 7}, "leave out skew iid and clients 7"),
    ],
)
def test_a_file_with_clients_is_not_divided_another_way(tmp_path, given, named):
    data = load_dataset(saved(tmp_path))
    with pytest.raises(PartitionError, match=rf"mine\.npz has clients of its own.*{named}\.$"):
        build_federation(data, **given)


def test_integer_clients_with_gaps_are_fine_and_sorted_as_numbers(tmp_path):
    data = load_dataset(saved(tmp_path, client=np.array([10, 9, 10, 200, 9, 9])))
    assert data.client_names == ("9", "10", "200")
    assert data.client.tolist() == [1, 0, 1, 2, 0, 0]


def test_listed_clients_keep_their_order(tmp_path):
    data = load_dataset(saved(tmp_path, clients=np.array(["c", "b", "a"])))
    assert data.client_names == ("c", "b", "a")
    assert data.client.tolist() == [1, 2, 1, 0, 2, 2]


@pytest.mark.parametrize(
    ("shape", "dtype", "stored", "scale"),
    [
        ((6, 5, 7), np.uint8, (6, 1, 5, 7), 255.0),
        ((6, 3, 5, 7), np.uint8, (6, 3, 5, 7), 255.0),
        ((6, 3, 5, 7), np.int32, (6, 3, 5, 7), 1.0),
        ((6, 2), bool, (6, 2), 1.0),
    ],
)
def test_images_and_tables_of_any_number_type(tmp_path, shape, dtype, stored, scale):
    data = load_dataset(saved(tmp_path, x=np.ones(shape, dtype=dtype)))
    assert data.x_train.shape == stored
    assert data.x_train.dtype == (np.uint8 if dtype == np.uint8 else np.float32)
    assert data.scale == scale
    assert data.std == 1.0  # all values equal: dividing by it must stay safe


def test_test_samples_share_the_classes(tmp_path):
    path = saved(tmp_path, x_test=np.ones((2, 4)), y_test=np.array([40, 10]))
    data = load_dataset(path)
    assert data.classes == 4
    assert data.y_test.tolist() == [3, 0]
    assert build_federation(data, skew="natural").label_counts.shape == (3, 4)


def with_value(value, dtype=float):
    x = np.zeros((6, 4), dtype=dtype)
    x[3, 2] = value
    return x


def with_two():
    y = np.zeros((6, 3), dtype=np.uint8)
    y[2, 1] = 2
    return y


REFUSALS = {
    "has an array of unknown name, 'y_tests': did you mean 'y_test'": {"y_tests": np.ones(6)},
    "unknown name, 'Y': did you mean 'y'": {"Y": np.ones(6)},
    "unknown name, 'weather': leave it out, or call it one of x, y, c": {"weather": np.ones(6)},
    "lists clients but lacks the array client": {"client": None, "clients": np.array(["a"])},
    "lacks the arrays x, y:": {"x": None, "y": None},
    r"y has shape \(5,\) but x has 6 samples": {"y": np.arange(5)},
    r"client has shape \(7,\) but x has 6 samples": {"client": np.arange(7)},
    r"y has shape \(6, 1\)": {"y": np.ones((6, 1), dtype=int)},
    "x has NaN in row 3": {"x": with_value(np.nan)},
    r"x has an infinite value \(as float32\) in row 3:": {"x": with_value(-np.inf)},
    "infinite value .* in row 3: remove": {"x": with_value(1e300)},
    "x_test has NaN in row 3": {"x_test": with_value(np.nan), "y_test": np.zeros(6, dtype=int)},
    "y has type float64: labels must be integers": {"y": np.ones(6), "task": "classification"},
    "task is 'guessing': it must be one of classification": {"task": "guessing"},
    "inputs is 'sound': it must be one of image": {"inputs": "sound"},
    "y has 3 different labels: the task binary has 2": {"task": "binary"},
    "something else than 0 and 1 in row 2": {"y": with_two(), "task": "multilabel"},
    "y has NaN in row 1: remove such samples": {"y": np.array([0, np.nan, 0, 0, 0, 0])},
    r"y has shape \(6, 2, 2\) and type float64": {"y": np.ones((6, 2, 2))},
    r"x has shape \(6, 9, 8, 3\), which reads as height": {"x": np.ones((6, 9, 8, 3))},
    "is -1 in row 3: tokens must be 0 or more": {"x": with_value(-1, int)},
    "x has type float64: tokens must be whole numbers": {"inputs": "tokens"},
    "the task is next-token but x is no array of tokens": {"task": "next-token"},
    r"y_test has shape \(6, 2\) but y \(6,\)": {
        "y": np.ones(6),
        "x_test": np.ones((6, 4)),
        "y_test": np.ones((6, 2)),
    },
    "y has type <U1 but y_test int64": {
        "y": np.array(list("abcabc")),
        "x_test": np.ones((6, 4)),
        "y_test": np.ones(6, dtype=int),
    },
    "the label 30 has no name: class_names has 2": {"class_names": np.array(["a", "b"])},
    "y is -2 in row 4: labels must be 0 or more": {"y": np.array([0, 1, 2, 0, -2, 0])},
    "x holds no sample": {"x": np.ones((0, 4)), "y": np.ones(0, int), "client": np.ones(0, int)},
    r"x has shape \(6,\)": {"x": np.ones(6)},
    r"x has shape \(6, 0\)": {"x": np.ones((6, 0))},
    "x has type <U1: it must hold real numbers": {"x": np.full((6, 4), "a")},
    "client has type float64: client names must be integers or text": {"client": np.ones(6)},
    "client 'd' holds no sample": {"clients": np.array(["a", "b", "c", "d"])},
    "client 'c' holds samples but is not in clients": {"clients": np.array(["a", "b"])},
    "names 'a' twice": {"clients": np.array(["a", "b", "c", "a"])},
    "has x_test but not y_test": {"x_test": np.ones((2, 4))},
    "has y_test but not x_test": {"y_test": np.ones(2, dtype=int)},
    r"x_test has samples of shape \(5,\)": {
        "x_test": np.ones((2, 5)),
        "y_test": np.ones(2, dtype=int),
    },
    r"y_test has shape \(3,\) but x_test has 2 samples": {
        "x_test": np.ones((2, 4)),
        "y_test": np.ones(3, dtype=int),
    },
    "client is an array of Python objects": {"client": np.array(list("abcdef"), dtype=object)},
}


@pytest.mark.parametrize("sentence", REFUSALS)
def test_a_file_that_cannot_be_used_is_refused_in_one_sentence(tmp_path, sentence):
    path = saved(tmp_path, **REFUSALS[sentence])
    with pytest.raises(InvalidInputError, match=sentence) as caught:
        load_dataset(path)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InvalidInputError, match=r"There is no file .*nobody\.npz"):
        load_dataset(str(tmp_path / "nobody.npz"))


def test_a_folder_instead_of_a_file(tmp_path):
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(InvalidInputError, match=r"folder\.npz cannot be read \(Is a directory\)"):
        load_dataset(str(tmp_path / "folder.npz"))


def truncated(path):
    path.write_bytes(path.read_bytes()[:-40])


def overwritten(path):
    content = bytearray(path.read_bytes())
    content[200:260] = bytes(60)
    path.write_bytes(bytes(content))


def plain_text(path):
    path.write_text("x,y,client\n")


def single_array(path):
    with path.open("wb") as file:
        np.save(file, np.ones(3))


def broken_header(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"not an array")


@pytest.mark.parametrize(
    "damage", [truncated, overwritten, plain_text, single_array, broken_header]
)
def test_a_damaged_file_is_refused_by_name(tmp_path, damage):
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, **arrays())
    damage(path)
    with pytest.raises(CorruptFileError, match=r"mine\.npz is truncated, damaged or not a \.npz"):
        load_dataset(str(path))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"'fortran_order'", b"'fortran_order\0"),
        (b"(6, 4)", b"(6, 4\0"),
        (b"(6, 4)", b"(6,-4)"),
        (b"(6, 4), }          ", b"(9999999999, 99999)}"),
        (b"'<f8'", b"'<f0'"),
    ],
)
def test_a_damaged_header_is_named_whatever_tool_stumbles_over_it(tmp_path, old, new):
    whole, path = saved(tmp_path), tmp_path / "damaged.npz"
    with zipfile.ZipFile(whole) as good, zipfile.ZipFile(path, "w") as bad:
        for name in good.namelist():
            bad.writestr(name, good.read(name).replace(old, new, 1))
    with pytest.raises(CorruptFileError, match="truncated, damaged"):
        load_dataset(str(path))


def test_without_clients_a_skew_divides_the_samples(tmp_path):
    path = saved(tmp_path, client=None)
    data = load_dataset(path)
    assert data.client is None
    assert not has_own_clients(path)
    assert len(build_federation(data, skew="iid", clients=2)) == 2
    assert has_own_clients(saved(tmp_path))
    assert not has_own_clients(str(tmp_path / "nobody.npz"))


def test_text_and_booleans_are_labels(tmp_path):
    text = load_dataset(saved(tmp_path, y=np.array(["no", "yes", "no", "so", "no", "yes"])))
    assert text.task == "classification"
    assert text.class_names == ("no", "so", "yes")
    assert text.y_train.tolist() == [0, 2, 0, 1, 0, 2]
    flags = load_dataset(saved(tmp_path, y=np.array([True, False, True, True, False, True])))
    assert flags.task == "classification"
    assert flags.class_names == ("False", "True")
    assert flags.y_train.tolist() == [1, 0, 1, 1, 0, 1]


def test_named_classes_keep_their_order(tmp_path):
    names = np.array(["zebra", "ant", "cow"])
    data = load_dataset(saved(tmp_path, y=np.array([0, 1, 0, 0, 1, 1]), class_names=names))
    assert data.classes == 3
    assert data.class_names == ("zebra", "ant", "cow")
    assert data.y_train.tolist() == [0, 1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("y", "said", "task", "dtype", "classes"),
    [
        (np.linspace(0, 1, 6), None, "regression", np.float32, 1),
        (np.ones((6, 3)), None, "regression", np.float32, 3),
        (np.arange(6), "regression", "regression", np.float32, 1),
        (np.eye(6, 2, dtype=bool), None, "multilabel", np.uint8, 2),
        (np.eye(6, 3, dtype=np.uint8), None, "multilabel", np.uint8, 3),
        (np.eye(6, 3, dtype=np.int64), "multilabel", "multilabel", np.uint8, 3),
        (np.array([3, 7, 3, 3, 7, 7]), "binary", "binary", np.int64, 2),
    ],
)
def test_targets_by_their_type_or_by_what_the_file_says(tmp_path, y, said, task, dtype, classes):
    data = load_dataset(saved(tmp_path, y=y, task=said))
    assert (data.task, data.y_train.dtype, data.classes) == (task, dtype, classes)
    assert data.y_train.shape == y.shape
    assert data.y_test.shape == (0, *y.shape[1:])


def test_whole_numbers_are_tokens_and_stay_as_they_are(tmp_path):
    x = np.array([[5, 0, 2], [1, 1, 9]] * 3)
    data = load_dataset(saved(tmp_path, x=x))
    assert (data.inputs, data.task, data.scale) == ("tokens", "classification", 1.0)
    assert data.x_train.dtype == np.int64
    assert np.array_equal(data.x_train, x)
    table = load_dataset(saved(tmp_path, x=x, inputs="table"))
    assert (table.inputs, table.x_train.dtype) == ("table", np.float32)
    small = load_dataset(saved(tmp_path, x=x.astype(np.uint8), inputs="tokens"))
    assert (small.x_train.dtype, small.scale, small.vocabulary) == (np.uint8, 1.0, 10)


@pytest.mark.parametrize("y", [np.arange(6), np.ones((6, 4), np.int32)])
def test_next_tokens_share_the_vocabulary_with_the_samples(tmp_path, y):
    x = np.zeros((6, 4), dtype=np.int32)
    x[2, 2] = 11
    data = load_dataset(saved(tmp_path, x=x, y=y, task="next-token"))
    assert (data.classes, data.vocabulary, data.y_train.dtype) == (12, 12, np.int64)
    assert np.array_equal(data.y_train, y)


def test_test_samples_may_belong_to_clients(tmp_path):
    tests = {"x_test": np.ones((2, 4)), "y_test": np.array([10, 30])}
    same = load_dataset(saved(tmp_path, **tests, client_test=np.array(["c", "a"])))
    assert same.test_client_names == same.client_names
    assert same.test_client.tolist() == [2, 0]
    others = load_dataset(saved(tmp_path, **tests, client_test=np.array(["z", "a"])))
    assert others.test_client_names == ("a", "z")
    assert others.test_client.tolist() == [1, 0]


def test_a_file_that_unfolds_to_more_than_there_is_room_for_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, **arrays(x=np.zeros((6, 100_000))))
    assert path.stat().st_size < 100_000
    monkeypatch.setattr("fedcohort.federation.memory.available_bytes", lambda: 5_000_000)
    with pytest.raises(InvalidInputError, match=r"unfolds to 7\.2 MB, more than the 5\.0 MB that"):
        load_dataset(str(path))
    monkeypatch.setenv("FEDCOHORT_MAX_BYTES", "10000000")
    assert load_dataset(str(path)).x_train.shape == (6, 100_000)
    monkeypatch.setenv("FEDCOHORT_MAX_BYTES", "1000")
    with pytest.raises(InvalidInputError, match=r"more than the 1\.0 kB that FEDCOHORT_MAX_BYTES"):
        load_dataset(str(path))
    monkeypatch.setenv("FEDCOHORT_MAX_BYTES", "plenty")
    with pytest.raises(InvalidInputError, match="'plenty': it must be a whole number of bytes"):
        load_dataset(str(path))


def test_this_machine_says_how_much_memory_it_has():
    assert available_bytes() is None or available_bytes() > 10**7
