"""What many tests share: the data sets that are not embedded."""

import os
import pathlib
import sys

import pytest

from fedcohort.federation import load_dataset

# The helpers beside the tests are imported by their plain name.
sys.path.insert(0, str(pathlib.Path(__file__).parent))


@pytest.fixture(scope="session")
def mnist():
    if not os.environ.get("FEDCOHORT_DATA"):
        pytest.skip("set FEDCOHORT_DATA to a folder with MNIST to run this test")
    return load_dataset("mnist")
