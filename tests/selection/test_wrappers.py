"""`only` and `always` around any selector."""

import numpy as np
import pytest

from fedcohort.errors import (
    CohortSizeError,
    InvalidInputError,
    InvalidParameterError,
    NoClientsAvailableError,
)
from fedcohort.selection import FedAvg, Outcome, always, make_selector, only, selector_class
from fedcohort.selection.registry import spec_of
from fedcohort.testing import check_selector


def rng(seed=0):
    return np.random.default_rng(seed)


def profiles(count=12):
    return rng(1).normal(size=(count, 5))


@pytest.mark.parametrize("name", ["fedavg", "match", "fedsae", "clustered"])
@pytest.mark.parametrize("wrap", [only, always])
def test_a_wrapper_that_means_everyone_is_a_selector(wrap, name):
    check_selector(lambda: wrap(name, ["*"]))


@pytest.mark.parametrize("name", ["dp3s", "match", "fedavg"])
def test_only_chooses_as_if_the_others_were_away(name):
    some = [1, 3, 5, 7, 9]
    wrapped = only(name, some).fit(profiles())
    plain = make_selector(name).fit(profiles())
    for round_ in range(5):
        one = wrapped.select(3, rng=rng(round_))
        two = plain.select(3, some, rng=rng(round_))
        np.testing.assert_array_equal(one.ids, two.ids)
        np.testing.assert_array_equal(one.weights, two.weights)
    assert wrapped.eligible(np.arange(12)).tolist() == some
    with pytest.raises(CohortSizeError, match="from 5 available clients"):
        wrapped.select(6, rng=rng())


def test_always_gives_a_place_whenever_a_client_is_there():
    wrapped = always("match:weights=size", [2, 8]).fit(profiles(), sizes=np.arange(1, 13))
    met = set()
    for round_ in range(10):
        cohort = wrapped.select(4, rng=rng(round_))
        assert {2, 8} <= set(cohort.ids.tolist())
        assert len(set(cohort.ids.tolist())) == 4
        sizes = cohort.ids + 1
        np.testing.assert_allclose(cohort.weights, sizes / sizes.sum())
        met |= set(cohort.ids.tolist())
    assert len(met) > 6
    assert 8 not in wrapped.select(3, [0, 1, 2, 3, 4], rng=rng()).ids
    assert set(wrapped.select(1, rng=rng()).ids.tolist()) <= {2, 8}


def test_clients_are_meant_by_names_patterns_and_tags():
    wrapped = always(only("fedavg", ["ward-*", "tag:gpu"]), ["ward-2"]).fit(clients=6)
    names = ["ward-1", "ward-2", "lab-1", "lab-2", "lab-3", "ward-3"]
    for client, name in enumerate(names):
        wrapped.label(client, {name, *({"tag:gpu"} if client == 3 else ())})
    assert wrapped.eligible(np.arange(6)).tolist() == [0, 1, 3, 5]
    assert wrapped.name == "always(only(fedavg))"
    for round_ in range(5):
        assert 1 in wrapped.select(2, rng=rng(round_)).ids
    again = always(only("fedavg", ["ward-*", "tag:gpu"]), ["ward-2"])
    again.restore(wrapped.state())
    assert again.eligible(np.arange(6)).tolist() == [0, 1, 3, 5]
    np.testing.assert_array_equal(again.select(3, rng=rng()).ids, wrapped.select(3, rng=rng()).ids)
    wrapped.leave([1])
    assert wrapped.eligible(wrapped.clients).tolist().count(1) == 0


def test_a_wrapper_that_means_nobody_is_refused():
    with pytest.raises(InvalidParameterError, match="names no client"):
        only("fedavg", [])


@pytest.mark.parametrize(
    ("made", "spec"),
    [
        (only("match:guard=profiles", [1, 3]), "only(match:guard=profiles; 1; 3)"),
        (always(only("fedavg", ["tag:gpu"]), ["w-*", 0]), "always(only(fedavg; tag:gpu); w-*; 0)"),
        (always(make_selector("dp3s", kernel="low-rank", rank=9), ["a b"]),
         "always(dp3s:kernel=low-rank,rank=9; a b)"),
    ],
)  # fmt: skip
def test_a_wrapper_is_written_down_and_made_again(made, spec):
    assert spec_of(made) == spec
    again = make_selector(spec)
    assert spec_of(again) == spec
    assert type(again) is type(made)
    assert again.who == made.who
    assert selector_class(spec) is type(made.innermost)


@pytest.mark.parametrize("who", ["3", "a;b", " a", ""])
def test_whom_no_spec_can_name_is_refused(who):
    with pytest.raises(InvalidParameterError, match="cannot be written down"):
        spec_of(only("fedavg", [who]))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("onyl(match; 3)", "no wrapper 'onyl': did you mean 'only'"),
        ("only(match)", "names no client"),
        ("only(nope; 3)", "no selector 'nope'"),
        ("only(match:gard=off; 3)", "has no parameter 'gard'"),
        ("only(match", r"'only\(match' has brackets that do not match: write only\(SELECTOR; CL"),
        ("only(match; 3))", "has brackets that do not match"),
        ("only(match; 3)(4)", "has brackets that do not match"),
        ("only(always(match; 3); 4", "has brackets that do not match"),
        ("only(always(match; 3; 4)", "has brackets that do not match"),
    ],
)
def test_wrong_specs_of_wrappers_are_refused(spec, said):
    with pytest.raises(InvalidInputError, match=said):
        make_selector(spec)


def test_parameters_belong_to_the_selector_inside():
    with pytest.raises(InvalidParameterError, match="give it to the selector inside"):
        make_selector("only(match; 3)", guard="profiles")


def test_a_wrapper_declares_what_the_selector_inside_does():
    class Revised(FedAvg):
        revision = 5
        forgets_updates = True
        reported_loss = None
        repeats = True

    wrapped = only(Revised(), [1])
    assert (wrapped.revision, wrapped.forgets_updates) == (5, True)
    assert (wrapped.reported_loss, wrapped.repeats) == (None, True)


def test_a_wrapper_that_means_none_of_the_clients_says_so():
    with pytest.raises(NoClientsAvailableError, match=r"tag:gpu of .* none of the 4 clients"):
        only("fedavg", ["tag:gpu"]).fit(clients=4).select(2, rng=rng())


def test_prior_clients_have_tasks_of_their_own():
    selector = make_selector("always(fedsae:workload=ira; 3; 7)").fit(clients=9)
    rng = np.random.default_rng(0)
    cohort = selector.select(4, rng=rng)
    assert {3, 7} <= set(cohort.ids.tolist())
    assert cohort.work.tolist() == [[1.0, 2.0]] * 4
    done = np.where(cohort.ids == 3, 2.0, 0.0)
    selector.observe(Outcome(cohort.ids, done > 0, passes=done, capacity=done))
    again = selector.select(4, rng=rng)
    assert again.work[again.ids == 3].tolist() == [[7.0, 11.0]]
    assert again.work[again.ids == 7].tolist() == [[1.0, 1.0]]
