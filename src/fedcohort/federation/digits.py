"""The 1,797 digits of 8 × 8 pixels that are embedded in scikit-learn."""

import numpy as np

from fedcohort.errors import DatasetError
from fedcohort.federation.dataset import Dataset
from fedcohort.randomness import generator


def load_digits() -> Dataset:
    """Load the digits."""
    try:
        from sklearn import datasets
    except ImportError:
        raise DatasetError(
            "digits is embedded in scikit-learn, which is not installed: "
            "pip install 'fedcohort[sim]'."
        ) from None
    bundle = datasets.load_digits()
    images = bundle.images.astype(np.uint8)[:, None]
    labels = bundle.target.astype(np.int64)
    # The split belongs to the data set, not to a run: it has one seed for everyone.
    rng = generator(0, "digits test split")
    in_test = np.zeros(len(labels), dtype=bool)
    for value in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == value))
        in_test[members[: round(0.2 * len(members))]] = True
    return Dataset(
        name="digits",
        x_train=images[~in_test],
        y_train=labels[~in_test],
        x_test=images[in_test],
        y_test=labels[in_test],
        classes=10,
        scale=16.0,
        class_names=tuple(str(value) for value in bundle.target_names),
    )
