import dataclasses

import numpy as np

from fedcohort.dpp import similarity
from fedcohort.report import summarise
from fedcohort.report.explorer import (
    MOST_KERNEL_CLIENTS,
    by_main_class,
    explorer_data,
    federation_data,
    projection,
)

RNG = np.random.default_rng(3)


def test_views_hold_the_first_seeds_cohorts(store):
    summaries = summarise(store, None)
    data = explorer_data(store, summaries)
    assert [v["group"] for v in data["views"]] == [0, 1]
    for view, summary in zip(data["views"], summaries, strict=True):
        records = store.records(summary.config.key)[1:]
        assert view["seed"] == 0
        assert view["cohorts"] == [list(r.cohort) for r in records]
        np.testing.assert_allclose(view["gemd"], [r.gemd for r in records], atol=5e-5)
        np.testing.assert_allclose(view["score"], [r.test_score for r in records], atol=5e-5)
        assert view["measured"] == "test accuracy"
    # Runs that differ in the selector alone share their federation.
    assert len(data["federations"]) == 1


def test_without_a_test_score_the_training_score_is_shown(store, copy_runs, monkeypatch):
    copied = copy_runs(store)
    records = copied.records
    monkeypatch.setattr(
        copied,
        "records",
        lambda key: [dataclasses.replace(r, test_score=None) for r in records(key)],
    )
    (view, _) = explorer_data(copied, summarise(store, None))["views"]
    assert view["measured"] == "training accuracy"
    assert None not in view["score"]


def test_the_kernel_is_the_papers_ordered_by_main_class(store):
    summary = summarise(store, None)[0]
    arrays = store.federation(summary.config)
    kernel = federation_data(arrays["label_counts"], arrays["profiles"])["kernel"]
    main = arrays["label_counts"].argmax(axis=1)[kernel["clients"]]
    assert np.all(np.diff(main) >= 0)
    expected = 100 * similarity(arrays["profiles"])[np.ix_(kernel["clients"], kernel["clients"])]
    np.testing.assert_allclose(kernel["percent"], expected, atol=0.5)


def test_a_large_kernel_is_thinned_out():
    counts = np.ones((300, 4), dtype=int)
    kernel = federation_data(counts, RNG.normal(size=(300, 5)))["kernel"]
    assert np.shape(kernel["percent"]) == (MOST_KERNEL_CLIENTS, MOST_KERNEL_CLIENTS)
    assert len(set(kernel["clients"])) == MOST_KERNEL_CLIENTS


def test_without_profiles_clients_are_placed_by_their_labels_and_kept_apart():
    counts = np.kron(np.eye(3, dtype=int), np.ones((4, 1), dtype=int)) * 10
    data = federation_data(counts, None)
    assert data["from"] == "label mixtures"
    assert data["kernel"] is None
    places = np.column_stack([data["x"], data["y"]])
    assert len(np.unique(places, axis=0)) == 12
    centres = places.reshape(3, 4, 2).mean(axis=1)
    own = np.linalg.norm(places.reshape(3, 4, 2) - centres[:, None], axis=2).max()
    assert own < min(np.linalg.norm(centres[i] - centres[j]) for i, j in [(0, 1), (0, 2), (1, 2)])


def test_projection_finds_the_plane_that_points_lie_in():
    plane = RNG.normal(size=(30, 2)) * [5, 1]
    basis = np.linalg.qr(RNG.normal(size=(8, 2)))[0]
    places = projection(1e200 * (plane @ basis.T + 4))
    assert places.min() == 0
    assert places.max() == 1
    for axis in range(2):
        assert abs(np.corrcoef(places[:, axis], plane[:, axis])[0, 1]) > 0.9


def test_projection_of_equal_rows_is_the_middle():
    np.testing.assert_array_equal(projection(np.ones((4, 3))), np.full((4, 2), 0.5))
    line = projection(np.arange(4)[:, None])
    np.testing.assert_allclose(line, [[0, 0.5], [1 / 3, 0.5], [2 / 3, 0.5], [1, 0.5]])


def test_order_by_main_class_then_share():
    counts = np.array([[1, 9], [6, 4], [0, 10], [9, 1]])
    assert by_main_class(counts).tolist() == [3, 1, 2, 0]
