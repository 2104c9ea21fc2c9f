"""Data that people bring in tables: folders of arrays, Parquet, CSV, Hugging Face."""

import datetime
import io
import json
import os
import tracemalloc
from decimal import Decimal

import numpy as np
import pytest

from fedcohort.errors import CorruptFileError, InvalidInputError, UnknownNameError
from fedcohort.federation import (
    Dataset,
    build_federation,
    has_own_clients,
    load_dataset,
    load_table,
)
from fedcohort.federation.tables import arrays_of

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

Y = np.array([10, 30, 10, 20])
CLIENT = np.array(["b", "a", "b", "c"])
X = np.arange(8, dtype=np.float32).reshape(4, 2)


def folder_of(path, **arrays):
    path.mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array)
    return str(path)


def test_a_folder_of_arrays_stays_on_disk(tmp_path):
    path = folder_of(tmp_path / "mine", x=X, y=Y, client=CLIENT, x_test=X[:1], y_test=Y[:1])
    data = load_dataset(path)
    assert isinstance(data.x_train, np.memmap)
    assert isinstance(data.x_test, np.memmap)
    assert np.array_equal(data.x_train, X)
    assert data.class_names == ("10", "20", "30")
    assert data.client_names == ("a", "b", "c")
    assert has_own_clients(path)
    assert data.standardisation()[0].tolist() == [3, 4]


def test_a_folder_needs_no_room_unless_it_is_converted(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCOHORT_MAX_BYTES", "10")
    path = folder_of(tmp_path / "mine", x=X, y=Y, task="classification")
    assert not has_own_clients(path)
    assert load_dataset(path).task == "classification"
    folder_of(tmp_path / "mine", x=X.astype(float))
    with pytest.raises(InvalidInputError, match="unfolds to 32 bytes, more than the 10 bytes"):
        load_dataset(path)


def test_misspelt_names_of_arrays_are_refused(tmp_path):
    path = folder_of(tmp_path / "mine", x=X, y=Y, _hidden=Y)
    (tmp_path / "mine" / "_hidden.npy").rename(tmp_path / "mine" / "._x.npy")
    assert len(load_dataset(path).y_train) == 4
    folder_of(tmp_path / "mine", x_tests=X)
    with pytest.raises(InvalidInputError, match="unknown name, 'x_tests': did you mean 'x_test'"):
        load_dataset(path)


def test_damaged_and_strange_folders_are_refused(tmp_path):
    path = folder_of(tmp_path / "mine", x=X, y=Y)
    (tmp_path / "mine" / "y.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr'")
    with pytest.raises(CorruptFileError, match=r"y\.npy is truncated, damaged or not a \.npy file"):
        load_dataset(path)
    folder_of(tmp_path / "mine", y=np.array([{}] * 4, dtype=object))
    with pytest.raises(InvalidInputError, match="could run code"):
        load_dataset(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInputError, match=r"holds neither x\.npy, nor"):
        load_dataset(str(tmp_path / "empty"))
    with pytest.raises(UnknownNameError):
        load_dataset(str(tmp_path / "nowhere"))


def parquet(path, **columns):
    pq.write_table(pa.table(columns), path)
    return str(path)


def csv_file(path, columns):
    pd = pytest.importorskip("pandas")
    pd.DataFrame(columns).to_csv(path, index=False)
    return str(path)


def csv_text(path, text, encoding="utf-8"):
    path.write_text(text, encoding)
    return str(path)


def test_parquet_with_a_column_for_each_role(tmp_path):
    path = parquet(
        tmp_path / "a.parquet", x=X.tolist(), label=["u", "v", "u", "w"], user_id=[4, 2, 4, 9]
    )
    data = load_dataset(path)
    assert data.x_train.dtype == np.float32
    assert np.array_equal(data.x_train, X)
    assert data.class_names == ("u", "v", "w")
    assert data.client_names == ("2", "4", "9")
    assert data.client.tolist() == [1, 0, 1, 2]
    assert has_own_clients(path)


def test_other_columns_make_a_table_in_their_order(tmp_path):
    path = parquet(
        tmp_path / "a.parquet", age=[1, 2, 3], y=[0.5, 1.5, 2.5], tall=[True, False, True]
    )
    data = load_dataset(path)
    assert (data.inputs, data.task) == ("table", "regression")
    assert data.x_train.tolist() == [[1, 1], [2, 0], [3, 1]]
    assert data.client is None
    assert not has_own_clients(path)


def test_a_folder_of_parquet_has_training_and_test_files(tmp_path):
    parquet(tmp_path / "part-1.parquet", x=[[3.0]], y=[1], client=["b"])
    parquet(tmp_path / "part-0.parquet", x=[[1.0], [2.0]], y=[0, 1], client=["a", "a"])
    parquet(tmp_path / "test.parquet", x=[[9.0]], y=[0], client=["b"])
    data = load_dataset(str(tmp_path))
    assert data.x_train.ravel().tolist() == [1, 2, 3]
    assert data.client.tolist() == [0, 0, 1]
    assert data.x_test.ravel().tolist() == [9]
    assert data.test_client.tolist() == [1]


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("Train.csv", "Test.csv"),
        ("TRAIN.CSV", "TEST.CSV"),
        ("mnist_train.csv", "mnist_test.csv"),
        ("mnistTrain.csv", "mnistTest.csv"),
        ("latest.csv", "test-00000-of-00001.csv"),
    ],
)
def test_names_of_files_tell_which_are_for_testing(tmp_path, train, test):
    csv_text(tmp_path / train, "age,client,y\n1,a,0\n2,a,1\n")
    csv_text(tmp_path / test, "age,client,y\n9,a,0\n")
    data = load_dataset(str(tmp_path))
    assert data.x_train.ravel().tolist() == [1, 2]
    assert data.x_test.ravel().tolist() == [9]
    assert has_own_clients(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("val.csv", r"The name of .*val\.csv does not tell what it is for: take it out"),
        ("Validation-0.csv", "does not tell what it is for"),
        ("test_valid.csv", "does not tell what it is for"),
        ("my-test-table.csv", "does not tell what it is for"),
        ("testing.csv", "does not tell what it is for"),
        ("test.parquet", r"holds \.csv and \.parquet files: keep those of one format there"),
    ],
)
def test_folders_that_do_not_tell_what_is_for_testing_are_refused(tmp_path, name, sentence):
    csv_text(tmp_path / "train.csv", "age,client,y\n1,a,0\n2,a,1\n")
    (tmp_path / name).touch()
    with pytest.raises(InvalidInputError, match=sentence):
        load_dataset(str(tmp_path))
    assert not has_own_clients(str(tmp_path))


TRAIN = {"age": [1.0, 2.0], "income": [100.0, 200.0], "label": [0, 1]}
TURNED = {"income": [150.0], "label": [1], "age": [1.5]}
OTHER = {"age": [1.5], "height": [180.0], "label": [1]}
LESS = {"age": [1.5], "label": [1]}
SAMPLES = {"x": [[1.5, 150.0]], "label": [1]}


def parquet_folder(path, first, later):
    parquet(path / "train.parquet", **first)
    parquet(path / "test.parquet", **later)
    return load_dataset(str(path)), "x_test"


def parquet_parts(path, first, later):
    parquet(path / "a.parquet", **first)
    parquet(path / "b.parquet", **later)
    return load_dataset(str(path)), "x_train"


def hugging_face_splits(path, first, later):
    for split, columns in {"train": first, "test": later}.items():
        saved_to_disk(path / split, pa.table(columns))
    (path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    return load_dataset(str(path)), "x_test"


def csv_folder(path, first, later):
    csv_file(path / "train.csv", first)
    csv_file(path / "test.csv", later)
    return load_dataset(str(path)), "x_test"


def partitions(_path, first, later):
    return Dataset.from_partitions([first, later]), "x_train"


def a_test_table(_path, first, later):
    return Dataset.from_partitions([first], test=later), "x_test"


TABLES = [parquet_folder, csv_folder, hugging_face_splits, partitions, a_test_table]


@pytest.mark.parametrize("load", [*TABLES, parquet_parts])
def test_the_first_table_says_in_which_order_the_columns_are(load, tmp_path):
    data, part = load(tmp_path, TRAIN, TURNED)
    assert getattr(data, part)[-1].tolist() == [1.5, 150]


@pytest.mark.parametrize("load", TABLES)
@pytest.mark.parametrize(
    ("later", "odd"), [(OTHER, "height, income"), (LESS, "income"), (SAMPLES, "age, income, x")]
)
def test_tables_of_other_columns_are_refused(load, later, odd, tmp_path):
    with pytest.raises(InvalidInputError, match=f"not every table has {odd}: give all the same"):
        load(tmp_path, TRAIN, later)


def test_row_numbers_of_pandas_are_no_column(tmp_path):
    pd = pytest.importorskip("pandas")
    rows = pd.DataFrame(TRAIN, index=[7, 2])
    rows.to_parquet(tmp_path / "train.parquet")
    assert "__index_level_0__" in pq.read_schema(tmp_path / "train.parquet").names
    parquet(tmp_path / "test.parquet", **TURNED)
    data = load_dataset(str(tmp_path))
    assert data.x_train.tolist() == rows[["age", "income"]].to_numpy().tolist()
    assert data.x_test.tolist() == [[1.5, 150]]


def test_a_csv_file_is_a_table(tmp_path):
    lines = ("age,label,user_id,note\n", '1,well,"a, b",0.5\n', '2,"NA",c,1e-3\n', "3,well,c,7\n")
    path = csv_text(tmp_path / "a.csv", "".join(lines), "utf-8-sig")
    data = load_dataset(path)
    assert (data.inputs, data.task) == ("table", "classification")
    assert np.array_equal(data.x_train, np.array([[1, 0.5], [2, 1e-3], [3, 7]], np.float32))
    assert data.class_names == ("NA", "well")
    assert data.client_names == ("a, b", "c")
    assert has_own_clients(path)


def test_a_number_far_down_decides_what_a_column_of_csv_is(tmp_path):
    rows = [f"{n},0\n" for n in range(300_000)]
    path = csv_text(tmp_path / "a.csv", "age,y\n" + "".join(rows) + "0.5,1\n")
    data = load_dataset(path)
    assert data.x_train[[0, 299_999, 300_000], 0].tolist() == [0, 299_999, 0.5]
    assert data.y_train.sum() == 1


def test_parts_of_csv_may_differ_in_how_numbers_are_written(tmp_path):
    csv_text(tmp_path / "a.csv", "age,label\n1,0\n")
    csv_text(tmp_path / "b.csv", "label,age\n1,0.5\n")
    assert load_dataset(str(tmp_path)).x_train.tolist() == [[1], [0.5]]


def test_padded_numbers_of_targets_and_clients_are_text(tmp_path):
    path = csv_text(tmp_path / "a.csv", "age,y,client\n01,01,1\n02,1,01\n03,02,001\n")
    data = load_dataset(path)
    assert data.x_train.ravel().tolist() == [1, 2, 3]
    assert data.class_names == ("01", "02", "1")
    assert data.client_names == ("001", "01", "1")


def test_padded_numbers_in_one_part_make_text_of_all(tmp_path):
    csv_text(tmp_path / "a.csv", "age,client,y\n1,099,0\n2,007,1\n")
    csv_text(tmp_path / "b.csv", "age,client,y\n3,100,0\n")
    assert load_dataset(str(tmp_path)).client_names == ("007", "099", "100")


def test_numbers_that_are_not_padded_stay_numbers(tmp_path):
    path = csv_text(tmp_path / "a.csv", "age,client,y\n1,10,0.5\n2,9,00.5\n3,0,-1e3\n")
    data = load_dataset(path)
    assert data.client_names == ("0", "9", "10")
    assert data.y_train.tolist() == [0.5, 0.5, -1000]


def test_row_numbers_that_pandas_writes_into_csv_are_no_column(tmp_path):
    pd = pytest.importorskip("pandas")
    for _ in range(2):
        pd.DataFrame(TRAIN, index=[7, 2]).to_csv(tmp_path / "a.csv")
        assert load_dataset(str(tmp_path / "a.csv")).x_train.tolist() == [[1, 100], [2, 200]]
        pd.read_csv(tmp_path / "a.csv").to_csv(tmp_path / "a.csv")
    assert load_dataset(str(tmp_path / "a.csv")).x_train.tolist() == [[1, 100], [2, 200]]


@pytest.mark.parametrize(
    ("text", "encoding", "sentence"),
    [
        ("age,label\n1,a\n,b\n", "utf-8", "age is empty in line 3:"),
        ('"the\nage",label\n\n1,a\n2,NA\n', "utf-8", "label is empty in line 5:"),
        ("age,label\n1,-1\n", "utf-8", "y is -1 in line 2:"),
        ("age,label\n1,1\ninf,1\n", "utf-8", "x has an infinite value .* in line 3:"),
        ("age,label\n1,1\n2 m,1\n", "utf-8", r"not hold one number per row \('2 m' in line 3\):"),
        ("age,city,label\n1,Rome,a\n", "utf-8", "the column city does not hold one number per row"),
        ("day,label\n2020-01-01,a\n", "utf-8", "the column day does not hold one number per row"),
        ("age,age,label\n1,2,a\n", "utf-8", "has several columns age: give each its own name"),
        ("age,label,y\n1,1,a\n", "utf-8", "has the columns y and label, of which one alone"),
        (
            "age,y,user_id,client\n1,1,2,3\n",
            "utf-8",
            "has the columns client and user_id, of which",
        ),
        ("age,label,Label\n1,1,1\n", "utf-8", "has the columns 'label' and 'Label', of which one"),
        ("age,label,Y\n1,1,1\n", "utf-8", "has the columns label and Y, of which one alone"),
        ("age;label\n1,5;1\n", "utf-8", "has ';' between its columns: save it with commas"),
        ("age\tlabel\n1\t1\n", "utf-8", r"has '\\t' between its columns: save it with commas"),
        ("5.1,3.5,0\n4.9,3.0,1\n", "utf-8", "has no column for the targets, only 5.1, 3.5, 0"),
        ("age,label\n1,Köln\n", "latin-1", r"no CSV in UTF-8 \(.*\): save it again"),
        ("age,city,label\n1,Köln,1\n", "latin-1", r"no CSV in UTF-8 \(.*\): save it again"),
        ("größe,label\n1,1\n", "latin-1", r"no CSV in UTF-8 \(.*\): save it again"),
        ("time,label\n10:30,a\n", "utf-8", "time holds values of type time, which NumPy has no"),
        ("age,label\n1,1\n2,2,2\n", "utf-8", "has 2 columns but 3 values in line 3: give each"),
        ("age,label\n", "utf-8", "a.csv"),
        ("", "utf-8", r"no CSV in UTF-8 \(Empty CSV file\)"),
    ],
)
def test_csv_that_cannot_be_used_is_refused_in_one_sentence(tmp_path, text, encoding, sentence):
    path = csv_text(tmp_path / "a.csv", text, encoding)
    with pytest.raises(InvalidInputError, match=sentence) as caught:
        load_dataset(path)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


def test_of_a_folder_of_csv_the_file_and_its_line_are_named(tmp_path):
    csv_text(tmp_path / "train.csv", "age,label\n1,0\n2,1\n")
    csv_text(tmp_path / "test.csv", "age,label\n1,0\n,1\n")
    with pytest.raises(InvalidInputError, match=r"In .*test\.csv, age is empty in line 3"):
        load_dataset(str(tmp_path))


def test_capitals_and_spaces_do_not_hide_what_a_column_is_for(tmp_path):
    path = csv_text(tmp_path / "a.csv", "Age, Label ,CLIENT\n1,01,007\n2,1,7\n")
    data = load_dataset(path)
    assert data.x_train.tolist() == [[1], [2]]
    assert data.class_names == ("01", "1")
    assert data.client_names == ("007", "7")
    assert has_own_clients(path)
    path = parquet(tmp_path / "a.parquet", Image=X.tolist(), Target=Y, User_ID=CLIENT)
    data = load_dataset(path)
    assert np.array_equal(data.x_train, X)
    assert data.client_names == ("a", "b", "c")


def test_names_as_they_are_documented_come_before_others(tmp_path):
    data = load_dataset(parquet(tmp_path / "a.parquet", image=X.tolist(), Y=[9] * 4, label=Y))
    assert data.class_names == ("10", "20", "30")
    path = parquet(tmp_path / "b.parquet", X=[1.5, 2.5], Z=[0.0, 1.0], label=[0, 1])
    assert load_dataset(path).x_train.tolist() == [[1.5, 0], [2.5, 1]]


def test_columns_for_clients_are_no_columns_of_partitions_however_they_are_written():
    part = {"age": [1.0, 2.0], "Client": [7, 7], "User_ID": [8, 8], "y": [0, 1]}
    assert Dataset.from_partitions([part]).x_train.tolist() == [[1], [2]]


def test_nested_lists_are_images(tmp_path):
    x = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)
    column = pa.array(x.tolist(), pa.list_(pa.list_(pa.list_(pa.uint8()))))
    data = load_dataset(parquet(tmp_path / "a.parquet", image=column, y=[0, 1]))
    assert data.x_train.dtype == np.uint8
    assert np.array_equal(data.x_train, x)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"x": [[1.0]]}, "has no column for the targets, only x: call it y or label"),
        ({"y": [1]}, "has no column for the samples"),
        ({"y": [1, 2], "name": ["a", "b"]}, "the column name does not hold one number per row"),
        ({"y": [1, None], "x": [[1.0], [2.0]]}, "y is empty in row 1"),
        ({"y": [1, 2], "x": [[1.0], [2.0, 3.0]]}, "rows of x are not all of one shape"),
        ({"y": [1, 2], "x": [[1.0, 2.0, 3.0], [4.0]]}, "rows of x are not all of one shape"),
        ({"y": [1], "a": [datetime.time(10, 30)]}, "a holds values of type time, which NumPy has"),
        ({"y": [1], "x": [[1.0, None]]}, "x holds values of type NoneType and float"),
        ({"y": [1, 2], "image": [b"no", b"picture"]}, "image is no picture .* in row 0"),
    ],
)
def test_tables_that_cannot_be_used_are_refused_in_one_sentence(tmp_path, columns, sentence):
    path = parquet(tmp_path / "a.parquet", **columns)
    with pytest.raises(InvalidInputError, match=sentence) as caught:
        load_dataset(path)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("first", "later", "sentence"),
    [
        ([1, 2], ["a", "b"], r"label is int64 in a\.parquet and string in b\.parquet: give it one"),
        (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"], "label is dictionary.* and string"),
        ([True, False], [0, 1], r"label is bool in a\.parquet and int64 in b\.parquet"),
        ([2**60, 1], [0.5, 1.5], r"label is int64 in a\.parquet and double in b\.parquet"),
    ],
)
def test_a_column_of_two_types_in_two_files_is_named(tmp_path, first, later, sentence):
    parquet(tmp_path / "a.parquet", age=[1, 2], label=first)
    parquet(tmp_path / "b.parquet", age=[0.5, 1.5], label=later)
    with pytest.raises(InvalidInputError, match=sentence) as caught:
        load_dataset(str(tmp_path))
    assert not isinstance(caught.value, CorruptFileError)


def test_decimals_are_numbers(tmp_path):
    whole = [Decimal(1), Decimal(0)]
    path = parquet(
        tmp_path / "a.parquet",
        price=[Decimal("1.25"), Decimal("-0.50")],
        large=[Decimal(2**70), Decimal(0)],
        client=whole,
        y=whole,
    )
    data = load_dataset(path)
    assert data.x_train.tolist() == [[1.25, 2**70], [-0.5, 0]]
    assert (data.task, data.class_names) == ("classification", ("0", "1"))
    assert data.client_names == ("0", "1")


def test_files_of_other_formats_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("x,y\n1,0\n")
    with pytest.raises(InvalidInputError, match=r"a\.txt is no table .*: save it as \.parquet or"):
        load_table(tmp_path / "a.txt")


def test_folders_that_are_called_like_tables(tmp_path):
    (tmp_path / "x.parquet").mkdir()
    with pytest.raises(InvalidInputError, match=r"no file for training at .*x\.parquet"):
        load_dataset(tmp_path / "x.parquet")
    parquet(tmp_path / "x.parquet" / "part-0.parquet", **TRAIN)
    assert len(load_dataset(tmp_path / "x.parquet").y_train) == 2
    with pytest.raises(InvalidInputError, match=r"x\.parquet is a folder and no table: move its"):
        load_dataset(tmp_path)
    assert not has_own_clients(tmp_path)


def test_pictures_in_folders_are_refused_with_what_makes_them_readable(tmp_path):
    (tmp_path / "train" / "cat").mkdir(parents=True)
    (tmp_path / "train" / "cat" / "1.PNG").touch()
    with pytest.raises(InvalidInputError, match=r"write the last with .*'imagefolder', data_dir="):
        load_dataset(tmp_path)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder, read by somebody whom the system can refuse something."""
    # Loaded while this user may still read the packages.
    pytest.importorskip("pyarrow.csv")
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)
    yield tmp_path
    if os.getuid() == 0:
        os.seteuid(0)


def forbid(path):
    path.chmod(0)
    if os.getuid() == 0:
        os.seteuid(65534)


@pytest.mark.parametrize(
    ("spec", "forbidden"),
    [
        ("a.parquet", "a.parquet"),
        ("a.csv", "a.csv"),
        ("a.npz", "a.npz"),
        ("folder", "folder/x.npy"),
        ("folder", "folder"),
        ("folder/a.csv", "folder"),
        ("hf", "hf/state.json"),
        ("hf", "hf/data-00000-of-00001.arrow"),
    ],
)
def test_what_may_not_be_read_is_refused_by_name(here, spec, forbidden):
    parquet(here / "a.parquet", **TRAIN)
    csv_file(here / "a.csv", TRAIN)
    np.savez(here / "a.npz", x=X, y=Y)
    folder_of(here / "folder", x=X, y=Y)
    saved_to_disk(here / "hf", pa.table(TRAIN))
    csv_file(here / "folder" / "a.csv", TRAIN)
    load_dataset(spec)
    forbid(here / forbidden)
    assert not has_own_clients(spec)
    with pytest.raises(InvalidInputError, match=r"cannot be read \(.*\): check the path and") as no:
        load_dataset(spec)
    assert spec in str(no.value)
    assert not isinstance(no.value, CorruptFileError)


@pytest.mark.parametrize("spec", ["", "nobody", "a" * 5000, "a\0b"])
def test_what_is_no_path_is_refused(tmp_path, monkeypatch, spec):
    monkeypatch.chdir(tmp_path)
    csv_file(tmp_path / "a.csv", TRAIN)
    with pytest.raises(InvalidInputError, match=r"There is no data set|cannot be read \(File name"):
        load_dataset(spec)


def test_what_is_no_parquet_is_refused(tmp_path):
    (tmp_path / "a.parquet").write_text("x,y\n")
    with pytest.raises(CorruptFileError, match="truncated, damaged or no Parquet"):
        load_dataset(str(tmp_path / "a.parquet"))
    with pytest.raises(InvalidInputError, match="There is no file for training"):
        load_dataset(str(tmp_path / "nobody.parquet"))
    assert not has_own_clients(str(tmp_path / "a.parquet"))


def test_parquet_too_large_for_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = parquet(tmp_path / "a.parquet", x=np.zeros(100_000), y=np.zeros(100_000, dtype=int))
    monkeypatch.setenv("FEDCOHORT_MAX_BYTES", "1")
    with pytest.raises(InvalidInputError, match="more than the 1 bytes"):
        load_dataset(path)


def test_csv_that_unfolds_to_too_much_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = csv_text(tmp_path / "a.csv", ",".join("abcdey") + "\n" + "0,1,0,1,0,1\n" * 1000)
    monkeypatch.setenv("FEDCOHORT_MAX_BYTES", "100000")
    with pytest.raises(InvalidInputError, match=r"unfolds to 168\.\d kB, more than the 100\.0 kB"):
        load_dataset(path)


def test_columns_become_samples_without_copies_of_another_type():
    columns = {name: np.arange(100_000) for name in "abcdey"}
    tracemalloc.start()
    x = arrays_of("mine", list(columns), columns.__getitem__)["x"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.1 * x.nbytes


def saved_to_disk(folder, table, files=1):
    """What `datasets.Dataset.save_to_disk` writes: Arrow streams and what describes them."""
    folder.mkdir(parents=True)
    names = []
    rows = -(-len(table) // files)
    for number in range(files):
        names.append({"filename": f"data-{number:05}-of-{files:05}.arrow"})
        piece = table.slice(number * rows, rows)
        with pa.ipc.new_stream(folder / names[-1]["filename"], table.schema) as stream:
            stream.write_table(piece)
    state = {"_data_files": names, "_indices_files": None, "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return str(folder)


def png(pixels):
    pil = pytest.importorskip("PIL.Image")
    buffer = io.BytesIO()
    pil.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


def pictures(channels=3):
    shape = (5, 7, 6, 3) if channels == 3 else (5, 7, 6)
    x = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    features = {
        "img": {"_type": "Image"},
        "label": {"_type": "ClassLabel", "names": ["zebra", "ant"]},
    }
    table = pa.table(
        {
            "img": [{"bytes": png(image), "path": None} for image in x],
            "label": [0, 1, 0, 0, 1],
            "client_id": ["q", "p", "p", "q", "p"],
        }
    ).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    return x, table


def test_a_saved_hugging_face_data_set(tmp_path):
    x, table = pictures()
    path = saved_to_disk(tmp_path / "hf", table, files=2)
    data = load_dataset(path)
    assert data.x_train.dtype == np.uint8
    assert np.array_equal(data.x_train, x.transpose(0, 3, 1, 2))
    assert data.class_names == ("zebra", "ant")
    assert data.y_train.tolist() == [0, 1, 0, 0, 1]
    assert data.client_names == ("p", "q")
    assert has_own_clients(path)


@pytest.mark.parametrize("dtype", ["uint16", "int32", "float32"])
def test_pictures_of_more_than_8_bits_keep_their_values(tmp_path, dtype):
    pil = pytest.importorskip("PIL.Image")
    x = np.random.default_rng(0).integers(0, 65536, (3, 7, 6)).astype(dtype)
    images = []
    for image in x:
        images.append(io.BytesIO())
        pil.fromarray(image).save(images[-1], "tiff")
    column = [image.getvalue() for image in images]
    data = load_dataset(parquet(tmp_path / "a.parquet", image=column, label=[0, 1, 0]))
    assert data.x_train.dtype == np.float32
    assert data.scale == 1
    assert np.array_equal(data.x_train[:, 0], x)


def test_a_saved_dictionary_of_splits(tmp_path):
    x, table = pictures(channels=1)
    for split in ("train", "test", "validation"):
        saved_to_disk(tmp_path / "hf" / split, table.slice(0, 2 if split == "test" else 5))
    splits = {"splits": ["train", "test", "validation"]}
    (tmp_path / "hf" / "dataset_dict.json").write_text(json.dumps(splits))
    data = load_dataset(str(tmp_path / "hf"))
    assert np.array_equal(data.x_train[:, 0], x)
    assert np.array_equal(data.x_test[:, 0], x[:2])
    assert data.test_client.tolist() == [1, 0]


def test_damaged_saved_data_sets_are_refused(tmp_path):
    _, table = pictures()
    path = saved_to_disk(tmp_path / "hf", table)
    arrow = tmp_path / "hf" / "data-00000-of-00001.arrow"
    arrow.write_bytes(arrow.read_bytes()[:100])
    with pytest.raises(CorruptFileError, match="not what save_to_disk wrote, or damaged"):
        load_dataset(path)
    assert not has_own_clients(path)
    (tmp_path / "hf" / "state.json").write_text("[")
    with pytest.raises(CorruptFileError, match=r"state\.json is missing or damaged"):
        load_dataset(path)
    (tmp_path / "hf" / "state.json").write_text('{"_indices_files": [{"filename": "i"}]}')
    with pytest.raises(InvalidInputError, match=r"call flatten_indices\(\)"):
        load_dataset(path)
    (tmp_path / "hf" / "state.json").unlink()
    (tmp_path / "hf" / "dataset_dict.json").write_text('{"splits": ["valid"]}')
    with pytest.raises(InvalidInputError, match="no split called train, only valid"):
        load_dataset(path)


class Table:
    """As a partition of flwr-datasets is: rows, columns by name, and what the columns mean."""

    class Label:
        names = ("zebra", "ant")

    def __init__(self, **columns):
        self._columns = columns
        self.column_names = list(columns)
        self.features = {"label": self.Label()}

    def __len__(self):
        return len(self._columns["label"])

    def __getitem__(self, name):
        return self._columns[name]


def test_partitions_become_clients():
    pil = pytest.importorskip("PIL.Image")
    x = np.random.default_rng(0).integers(0, 256, (3, 7, 6, 3), dtype=np.uint8)
    images = [pil.fromarray(image) for image in x]
    data = Dataset.from_partitions(
        [Table(image=images[:2], label=[1, 0]), Table(image=images[2:], label=[1])],
        test=Table(image=images[:1], label=[0]),
        names=["north", "south"],
        name="animals",
    )
    assert np.array_equal(data.x_train, x.transpose(0, 3, 1, 2))
    assert data.client_names == ("north", "south")
    assert data.client.tolist() == [0, 0, 1]
    assert data.class_names == ("zebra", "ant")
    assert data.y_train.tolist() == [1, 0, 1]
    assert data.x_test.shape == (1, 3, 7, 6)
    assert build_federation(data, skew="natural").sizes.tolist() == [2, 1]


def test_columns_may_be_numbered():
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame(X).assign(label=Y)
    data = Dataset.from_partitions([table, table[["label", 1, 0]]], test=table)
    assert np.array_equal(data.x_train, np.concatenate([X, X]))
    assert np.array_equal(data.x_test, X)


def test_eleven_partitions_keep_their_order():
    parts = [{"x": [[float(n)]], "y": [n % 2]} for n in range(11)]
    data = Dataset.from_partitions(parts, task="binary")
    assert data.client_names == tuple(str(n) for n in range(11))
    assert data.client.tolist() == list(range(11))
    assert data.task == "binary"


@pytest.mark.parametrize(
    ("parts", "options", "sentence"),
    [
        ([], {}, "There is no partition"),
        ([{"x": [[1.0]], "y": [0]}], {"names": ["a", "b"]}, "2 names for 1 partitions"),
        ([{"x": [[1.0]], "y": [0]}] * 2, {"names": ["a", "a"]}, "give each a name of its own"),
        (
            [{"x": [[1.0]], "y": [0]}, {"x": [[1.0, 2.0]], "y": [0]}],
            {},
            "the clients' x are not all of one shape",
        ),
        ([{"x": [[1.0]]}], {}, "partitions, client 0 has no column for the targets"),
    ],
)
def test_partitions_that_cannot_be_used_are_refused(parts, options, sentence):
    with pytest.raises(InvalidInputError, match=sentence):
        Dataset.from_partitions(parts, **options)
