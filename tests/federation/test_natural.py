"""Data sets that say who holds what: MNIST's writers, Shakespeare's roles."""

import os

import numpy as np
import pytest

from fedcohort.errors import CorruptFileError
from fedcohort.federation import build_federation, has_own_clients, load_dataset
from fedcohort.federation.by_writer import _writers
from fedcohort.federation.shakespeare import CHARACTERS, LENGTH, speeches_by_role, windows


@pytest.fixture(scope="module", params=["mnist-by-writer", "shakespeare"])
def natural(request):
    if not os.environ.get("FEDCOHORT_DATA"):
        pytest.skip("set FEDCOHORT_DATA to a folder with the data to run this test")
    return load_dataset(request.param)


def test_a_natural_federation_needs_no_skew(natural):
    assert has_own_clients(natural.name)
    federation = build_federation(natural, skew="natural")
    assert len(federation) == len(natural.client_names) == len(set(natural.client_names))
    assert federation.sizes.min() > 0
    assert np.array_equal(federation.label_counts.sum(axis=1), federation.sizes)
    assert len(natural.test_client) == len(natural.y_test)


def test_mnists_writers(mnist):
    data = load_dataset("mnist-by-writer")
    assert (len(data.client_names), len(data.test_client_names)) == (539, 297)
    assert not set(data.client_names) & set(data.test_client_names)
    assert np.array_equal(data.x_train, mnist.x_train)
    assert np.array_equal(data.y_test, mnist.y_test)
    assert data.client_names[data.client[0]] == "2154"


def test_labels_of_other_images_are_refused():
    rows = np.array([[5, 4, 10], [0, 4, 7], [5, 4, 10]])
    numbers, names = _writers(rows, np.array([5, 0, 5]))
    assert (numbers.tolist(), names) == ([1, 0, 1], ("7", "10"))
    with pytest.raises(CorruptFileError, match="not those of MNIST's images"):
        _writers(rows, np.array([5, 1, 5]))


def test_speeches_are_gathered_by_role():
    text = "ROMEO:\nO me!\nWhat fray?\n\nBENVOLIO:\n\nROMEO:\nAy: so\nmuch.\n"
    assert speeches_by_role(text) == {"ROMEO": "O me!\nWhat fray?\nAy: so\nmuch."}


def test_windows_begin_at_every_eighth_character():
    tokens = np.arange(LENGTH + 17, dtype=np.uint8)
    made = windows(tokens)
    assert made[:, 0].tolist() == [0, 8, 16]
    assert made[:, -1].tolist() == [80, 88, 96]
    assert len(windows(tokens[:LENGTH])) == 0
    assert len(windows(tokens[: LENGTH + 1])) == 1


def test_shakespeares_roles():
    if not os.environ.get("FEDCOHORT_DATA"):
        pytest.skip("set FEDCOHORT_DATA to a folder with the data to run this test")
    natural = load_dataset("shakespeare")
    assert len(natural.client_names) == 169
    assert natural.x_train.shape == (98_310, 80)
    assert natural.x_test.shape == (23_381, 80)
    assert natural.x_train.dtype == np.uint8
    assert (natural.inputs, natural.task) == ("tokens", "next-token")
    assert natural.vocabulary == natural.classes == 65
    assert natural.test_client_names == natural.client_names
    first = "".join(CHARACTERS[token] for token in natural.x_train[0])
    assert natural.client_names[0] == "First Citizen"
    assert first == (
        "Before we proceed any further, hear me speak.\nYou are all resolved rather to die"
    )
    assert CHARACTERS[natural.y_train[0]] == " "
    held = np.bincount(natural.client) + np.bincount(natural.test_client)
    assert held.min() >= 64
    assert np.array_equal(natural.x_train[1, :72], natural.x_train[0, 8:])
