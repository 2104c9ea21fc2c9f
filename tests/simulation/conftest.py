import os

import pytest


@pytest.fixture
def one_thread():
    """The environment of a process that computes with one thread, as forked ones must."""
    return os.environ | {"OMP_NUM_THREADS": "1"}
