import os

import pytest

from fedcohort.simulation import Store


@pytest.fixture
def one_thread():
    """The environment of a process that computes with one thread, as forked ones must."""
    return os.environ | {"OMP_NUM_THREADS": "1"}


@pytest.fixture
def store(tmp_path):
    """An empty store."""
    with Store(tmp_path) as made:
        yield made
