import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import linkage
from scipy.stats import chisquare

from fedcohort import make_selector
from fedcohort.errors import InvalidInputError
from fedcohort.selection import ward
from fedcohort.selection.ward import cut
from fedcohort.testing import check_selector


def test_conformance():
    check_selector("ward")


@settings(deadline=None, max_examples=80)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=15), st.data())
def test_the_cut_undoes_the_last_merges_even_among_duplicates(positions, data):
    points = np.array(positions, float)[:, None]
    k = data.draw(st.integers(1, len(points)))
    tree = linkage(points, "ward")
    groups = {leaf: {leaf} for leaf in range(len(points))}
    for node, (a, b) in enumerate(tree[: len(points) - k, :2].astype(int), start=len(points)):
        groups[node] = groups.pop(a) | groups.pop(b)
    labels = cut(tree, k)
    found = {frozenset(np.flatnonzero(labels == label)) for label in range(k)}
    assert found == set(map(frozenset, groups.values()))


def _three_groups():
    rng = np.random.default_rng(0)
    kinds = np.repeat([0, 1, 2], [2, 4, 6])
    return np.eye(3)[kinds] * 10 + 0.1 * rng.normal(size=(12, 3)), kinds


def test_one_client_from_each_cluster_uniformly():
    profiles, kinds = _three_groups()
    selector = make_selector("ward").fit(profiles)
    rng = np.random.default_rng(1)
    cohorts = np.array([selector.select(3, rng=rng).ids for _ in range(3000)])
    assert (np.sort(kinds[cohorts], axis=1) == [0, 1, 2]).all()
    for kind in range(3):
        members = np.flatnonzero(kinds == kind)
        counts = np.bincount(cohorts.ravel(), minlength=12)[members]
        assert chisquare(counts).pvalue > 1e-3


def test_the_tree_follows_who_is_available_and_what_is_told():
    profiles, kinds = _three_groups()
    selector = make_selector("ward").fit(profiles)
    rng = np.random.default_rng(1)
    selector.select(3, rng=rng)
    two = np.flatnonzero(kinds > 0)
    for _ in range(20):
        assert sorted(kinds[selector.select(2, two, rng=rng).ids]) == [1, 2]
    selector.leave(np.flatnonzero(kinds == 2))
    selector.join([20, 21], profiles[kinds == 2][:2])
    for _ in range(20):
        ids = selector.select(3, rng=rng).ids
        assert sorted(2 if i >= 20 else int(kinds[i]) for i in ids) == [0, 1, 2]


def test_a_leave_is_noticed_where_another_client_took_the_row():
    profiles = np.array([[0.0], [0.1], [5.0], [5.1]])
    selector = make_selector("ward").fit(profiles)
    rng = np.random.default_rng(0)
    selector.select(2, [0, 1, 2], rng=rng)
    selector.leave([0])
    # Client 3 stands in row 0 now, and belongs with client 2.
    for _ in range(10):
        assert 1 in selector.select(2, [1, 2, 3], rng=rng).ids


def test_too_many_clients_are_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(ward, "LARGEST", 5)
    selector = make_selector("ward").fit(np.zeros((6, 2)))
    with pytest.raises(InvalidInputError, match="use 'kcenter'"):
        selector.select(2, rng=np.random.default_rng(0))


def test_huge_and_tiny_profiles_are_clustered_as_any_others():
    profiles = np.random.default_rng(0).normal(size=(12, 3))
    cohorts = [
        make_selector("ward")
        .fit(np.ldexp(profiles, power))
        .select(5, rng=np.random.default_rng(1))
        .ids.tolist()
        for power in (0, -1000, -600, 600, 1000)
    ]
    assert all(cohort == cohorts[0] for cohort in cohorts)
