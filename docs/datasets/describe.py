"""Print what a data set holds: sizes, label mixture, standardisation."""

import argparse
import sys

import numpy as np

from fedcohort.federation import Dataset, build_federation, load_dataset


def describe(dataset: Dataset) -> list[str]:
    """Return a line for each fact about a data set."""
    lines = [
        f"inputs: {dataset.inputs}, {dataset.x_train.dtype}, {dataset.x_train.shape[1:]}",
        f"task: {dataset.task}, {dataset.classes} classes",
        f"samples: {len(dataset.x_train):,} training, {len(dataset.x_test):,} test",
        f"memory: {(dataset.x_train.nbytes + dataset.x_test.nbytes) / 1e6:.0f} MB of samples",
    ]
    moments = dataset.standardisation()
    if moments is not None and moments[0].size <= 4:
        mean, std = (", ".join(f"{v:.4f}" for v in part.ravel()) for part in moments)
        lines.append(f"mean: {mean}; standard deviation: {std}")
    if dataset.label_groups is not None:
        shares = np.bincount(dataset.label_groups, minlength=dataset.groups) / len(dataset.x_train)
        lines.append(f"label groups: {dataset.groups}, {spread(shares)} of the training samples")
    if dataset.client is not None:
        lines += describe_clients(dataset)
    if dataset.task == "next-token" and dataset.y_train.ndim == 1 and len(dataset.y_test):
        perplexity = bigram_perplexity(dataset)
        lines.append(f"test perplexity of a bigram model: {perplexity:.2f}")
    return lines


def bigram_perplexity(dataset: Dataset) -> float:
    """Return how well the last token alone tells the next one, on the test samples.

    The model is the table of which token follows which in the training samples, inside them and
    after them; one is added to every count.
    """
    counts = np.ones((dataset.vocabulary, dataset.vocabulary))
    x = dataset.x_train
    np.add.at(counts, (x[:, :-1].ravel(), x[:, 1:].ravel()), 1)
    np.add.at(counts, (x[:, -1], dataset.y_train), 1)
    following = counts / counts.sum(axis=1, keepdims=True)
    likelihood = following[dataset.x_test[:, -1], dataset.y_test]
    return float(np.exp(-np.log(likelihood).mean()))


def describe_clients(dataset: Dataset) -> list[str]:
    """Return what there is to say about the clients that a data set brings."""
    federation = build_federation(dataset, skew="natural")
    lines = [f"clients: {len(federation)}", f"samples per client: {spread(federation.sizes)}"]
    counts = federation.label_counts
    if counts.shape[1]:
        mixtures = counts / counts.sum(axis=1, keepdims=True)
        far = np.abs(mixtures - counts.sum(axis=0) / counts.sum()).sum(axis=1)
        lines += [
            f"label groups per client: {spread((counts > 0).sum(axis=1))}",
            f"distance of a client's label mixture from everyone's (0 to 2): {spread(far)}",
        ]
    if dataset.test_client is not None:
        held = np.bincount(dataset.test_client, minlength=len(dataset.test_client_names))
        lines.append(f"test clients: {np.count_nonzero(held)}, samples each: {spread(held)}")
        shared = set(dataset.test_client_names) & set(dataset.client_names)
        lines.append(f"of them also training: {len(shared)}")
    return lines


def spread(values: np.ndarray) -> str:
    """Return the least, the largest and the middle of some numbers."""
    low, middle, high = np.min(values), np.median(values), np.max(values)
    return f"{low:.4g} to {high:.4g} (median {middle:.4g})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    sys.stdout.write("\n".join(describe(load_dataset(parser.parse_args().dataset))) + "\n")
