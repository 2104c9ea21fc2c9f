import os
import pathlib
import sys

import pytest

# The helpers beside the tests are imported by their plain name.
sys.path.insert(0, str(pathlib.Path(__file__).parent))


@pytest.fixture
def one_thread():
    """The environment of a process that computes with one thread, as forked ones must."""
    return os.environ | {"OMP_NUM_THREADS": "1"}
