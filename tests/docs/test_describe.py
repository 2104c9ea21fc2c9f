"""What the pages of the data sets say, against the same counted by hand."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from fedcohort.federation import Dataset

SCRIPT = Path(__file__).parents[2] / "docs" / "datasets" / "describe.py"


@pytest.fixture(scope="module")
def describe():
    spec = importlib.util.spec_from_file_location("describe", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_bigram_model_counts_what_follows_what(describe):
    """Tokens 0, 1, 2; after 0 came 1, 1 and 2, after 1 came 0 and 2."""
    dataset = Dataset(
        "text",
        np.array([[0, 1, 0], [0, 2, 1]]),
        np.array([1, 2]),
        np.array([[2, 2, 0], [2, 2, 1]]),
        np.array([1, 0]),
        classes=3,
        task="next-token",
        inputs="tokens",
    )
    # 0 → 1, 1 → 0, 0 → 1; 0 → 2, 2 → 1, 1 → 2: one added to every count.
    likelihoods = (2 + 1) / (3 + 3), (1 + 1) / (2 + 3)
    expected = np.exp(-np.mean(np.log(likelihoods)))
    assert describe.bigram_perplexity(dataset) == pytest.approx(expected)
    assert describe.describe(dataset)[-1] == f"test perplexity of a bigram model: {expected:.2f}"
