"""What many tests share: the data sets that are not embedded."""

import os
import pathlib
import sys

import pytest
import torch

from fedcohort.federation import load_dataset

# The GPU's kernels run in Triton's interpreter: slow, but on any machine. Triton reads this when it
# is first imported, by whichever test that is.
os.environ["TRITON_INTERPRET"] = "1"

# What tests train is so small that threads would wait for each other longer than they compute, and
# ten times as long where other processes have the cores.
torch.set_num_threads(1)

# The helpers beside the tests are imported by their plain name.
sys.path.insert(0, str(pathlib.Path(__file__).parent))


@pytest.fixture(scope="session")
def mnist():
    if not os.environ.get("FEDCOHORT_DATA"):
        pytest.skip("set FEDCOHORT_DATA to a folder with MNIST to run this test")
    return load_dataset("mnist")
