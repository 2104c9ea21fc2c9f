"""What the cohort explorer shows: clients as points, cohorts by round, and the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedcohort.dpp import similarity
from fedcohort.report.summary import Summary

if TYPE_CHECKING:
    from fedcohort.simulation.store import Store

# Beyond these the file grows without showing more: points cover each other, pixels run out.
MOST_CLIENTS = 2000
MOST_KERNEL_CLIENTS = 120
MOST_ROUNDS = 1000

FloatArray = npt.NDArray[np.float64]


def explorer_data(store: Store, summaries: Sequence[Summary]) -> dict[str, Any]:
    """Return the explorer's data, of each group's first seed.

    ``federations``: by key, each client's place ``x``, ``y`` in [0, 1], main class and size, label
    counts, and the kernel; ``views``: one a group, with its cohorts, their GEMD and the score after
    each round, None where it was not measured; ``missing``: why other groups have none, by number.
    """
    federations: dict[str, dict[str, Any]] = {}
    views = []
    missing: dict[int, str] = {}
    for number, summary in enumerate(summaries):
        config = summary.config
        arrays = store.federation(config)
        if reason := _why_missing(summary.rounds, *arrays["label_counts"].shape):
            missing[number] = reason
            continue
        if config.federation_key not in federations:
            federations[config.federation_key] = federation_data(
                arrays["label_counts"], arrays.get("profiles")
            )
        rounds = [r for r in store.records(config.key) if 0 < r.round <= MOST_ROUNDS]
        part = "test" if any(r.test_score is not None for r in rounds) else "training"
        scores = [r.test_score if part == "test" else r.train_score for r in rounds]
        views.append(
            {
                "group": number,
                "federation": config.federation_key,
                "seed": config.seed,
                "cohorts": [list(record.cohort) for record in rounds],
                "gemd": [rounded(record.gemd, 4) for record in rounds],
                "score": [rounded(score, 6) for score in scores],
                "measured": f"{part} {summary.score}",
            }
        )
    return {"federations": federations, "views": views, "missing": missing}


def _why_missing(rounds: int, clients: int, groups: int) -> str | None:
    if not rounds:
        return "There are no cohorts to show yet: no round is finished."
    if not groups:
        return "The targets have no classes, so that clients have no label mixtures to show."
    if clients > MOST_CLIENTS:
        return (
            f"{clients:,} clients are too many to draw one by one: the explorer and the kernel show"
            f" federations of up to {MOST_CLIENTS:,}."
        )
    return None


def federation_data(
    label_counts: npt.NDArray[Any], profiles: npt.NDArray[Any] | None
) -> dict[str, Any]:
    """Return one federation's points and kernel as plain values.

    Without `profiles` [C, Q], clients are placed by the mixture of their `label_counts` [C, N].
    """
    counts = np.asarray(label_counts)
    places = projection(label_mixtures(counts) if profiles is None else profiles)
    if profiles is None:
        places = _apart(places)
    main = counts.argmax(axis=1)
    return {
        "x": rounded(places[:, 0], 4),
        "y": rounded(places[:, 1], 4),
        "main": main.tolist(),
        "counts": counts.tolist(),
        "from": "label mixtures" if profiles is None else "profiles",
        "kernel": None if profiles is None else _kernel(profiles, by_main_class(counts)),
    }


def projection(values: npt.ArrayLike) -> FloatArray:
    """Return the first two principal components of rows [C, Q], each scaled to [0, 1]: [C, 2].

    0.5 throughout where there is no second direction.
    """
    rows = np.asarray(values, dtype=np.float64)
    # Scaled first, so that huge profiles cannot overflow when they are squared.
    rows = rows / max(float(np.abs(rows).max()), np.finfo(np.float64).tiny)
    u, s, vt = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    places = np.full((len(rows), 2), 0.5)
    for axis in range(min(2, len(s))):
        # A singular vector's sign is arbitrary: fixed here so that reports are repeatable.
        sign = np.sign(vt[axis, np.abs(vt[axis]).argmax()])
        column = sign * u[:, axis] * s[axis]
        if (extent := np.ptp(column)) > 1e-12:
            places[:, axis] = (column - column.min()) / extent
    return places


def by_main_class(counts: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return clients ordered by main class, within it by its share, shape [C]."""
    shares = label_mixtures(counts)
    main = shares.argmax(axis=1)
    return np.lexsort((-shares.max(axis=1), main))


def label_mixtures(counts: npt.NDArray[Any]) -> FloatArray:
    """Return each client's share of samples by class, shape [C, N]."""
    shares: FloatArray = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return shares


def rounded(values: Any, digits: int) -> Any:
    """Return a number or an array as plain rounded values; None stays None."""
    return None if values is None else np.round(values, digits).tolist()


def _apart(places: FloatArray) -> FloatArray:
    """Move clients of the same mixture, which have one place, into a small spiral around it."""
    moved = places.copy()
    _, kind = np.unique(np.round(places, 3), axis=0, return_inverse=True)
    for value in range(int(kind.max()) + 1):
        members = np.flatnonzero(kind.ravel() == value)
        turn = np.arange(len(members)) * np.pi * (3 - np.sqrt(5))
        radius = 0.022 * np.sqrt(np.arange(len(members)))
        moved[members] += radius[:, None] * np.column_stack([np.cos(turn), np.sin(turn)])
    low, high = moved.min(axis=0), moved.max(axis=0)
    result: FloatArray = (moved - low) / np.maximum(high - low, 1e-12)
    return result


def _kernel(profiles: npt.NDArray[Any], order: npt.NDArray[np.int64]) -> dict[str, Any]:
    if len(order) > MOST_KERNEL_CLIENTS:
        order = order[np.linspace(0, len(order) - 1, MOST_KERNEL_CLIENTS).astype(int)]
    # Over all clients first: the paper's S depends on the largest distance among them.
    chosen = similarity(profiles)[np.ix_(order, order)]
    return {"clients": order.tolist(), "percent": np.round(100 * chosen).astype(int).tolist()}
