import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcohort.errors import DuplicateClientError, UnknownClientError
from fedcohort.selection.roster import Roster


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.booleans(), st.sets(st.integers(-50, 50), max_size=12)), max_size=12))
def test_a_roster_is_a_dictionary_of_rows(steps):
    roster, expected, marks = Roster(), {}, {}
    roster.define("mark", -1.0)
    for number, (joining, ids) in enumerate(steps):
        if joining:
            new = np.array(sorted(ids - expected.keys()), np.int64)
            roster.add(new, {"value": new * 2.0})
            expected |= {int(i): i * 2.0 for i in new}
            marks |= dict.fromkeys(new.tolist(), -1.0)
        else:
            gone = np.array(sorted(ids & expected.keys()), np.int64)
            roster.remove(gone)
            for i in gone:
                del expected[int(i)], marks[int(i)]
        if expected:
            some = np.array(list(expected), np.int64)
            rows = roster.rows(some)
            assert roster["value"][rows].tolist() == list(expected.values())
            assert roster["mark"][rows].tolist() == [marks[i] for i in expected]
            roster.put("mark", rows[::2], np.full(len(rows[::2]), float(number)))
            marks |= dict.fromkeys(some[::2].tolist(), float(number))
        assert sorted(roster.ids.tolist()) == sorted(expected)


def test_saved_and_loaded_newcomers_get_the_same_fill():
    roster = Roster()
    roster.add(np.array([1, 2]), {})
    roster.define("loss", np.nan)
    roster.put("loss", roster.rows(np.array([2])), np.array([0.5]))
    again = Roster.load(roster.save())
    again.add(np.array([3]), {})
    assert again["loss"][again.rows(np.array([2]))] == 0.5
    assert np.isnan(again["loss"][again.rows(np.array([3]))])


def test_strangers_and_doubles_are_refused_and_change_nothing():
    roster = Roster()
    roster.add(np.array([5, 6]), {})
    with pytest.raises(UnknownClientError, match="Client 7"):
        roster.remove(np.array([5, 7]))
    with pytest.raises(DuplicateClientError, match="Client 6"):
        roster.add(np.array([8, 6]), {})
    assert roster.ids.tolist() == [5, 6]


def test_the_callers_array_is_shared_until_it_must_change():
    values = np.arange(3.0)
    roster = Roster()
    roster.add(np.arange(3), {"value": values})
    assert np.shares_memory(roster["value"], values)
    roster.remove(np.array([0]))
    assert values.tolist() == [0, 1, 2]
    assert sorted(roster["value"].tolist()) == [1, 2]
