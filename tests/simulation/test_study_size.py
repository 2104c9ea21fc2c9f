"""Studies that multiply to more runs than anybody meant."""

import pytest

from fedcohort.errors import StudyError
from fedcohort.simulation import study
from fedcohort.simulation.study import LargeStudyWarning, parse_study

LISTS = """
[base]
lr = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
[[part]]
seeds = "0..{last}"
[[part]]
selector = ["dp3s", "fedavg"]
seeds = [0, 1]
"""


def huge(last=99_895):
    return LISTS.format(last=last)


@pytest.fixture
def nothing_is_made(monkeypatch):
    monkeypatch.setattr(study, "RunConfig", lambda **_: pytest.fail("a run was made"))
    monkeypatch.setattr(study.dataclasses, "replace", lambda *_, **__: pytest.fail("made a run"))


@pytest.mark.usefixtures("nothing_is_made")
@pytest.mark.parametrize("most", ["", "most_runs = 998999\n"])
def test_too_many_runs_are_counted_and_refused_before_one_is_made(most):
    with pytest.raises(StudyError, match="multiply to 999000 runs") as refused:
        parse_study(most + huge(), "huge.toml")
    assert "most_runs = 999000" in str(refused.value)


def test_as_many_as_were_asked_for_are_made_and_said(monkeypatch):
    monkeypatch.setattr(study, "_MOST_RUNS", 20)
    with pytest.warns(LargeStudyWarning, match="multiply to 140 runs"):
        read = parse_study("most_runs = 140\n" + huge(9), "large.toml")
    assert [len(part.configs) for part in read.parts] == [100, 40]


def test_a_limit_of_ones_own_may_be_smaller():
    with pytest.raises(StudyError, match="more than 5 are"):
        parse_study("most_runs = 5\n" + huge(9), "small.toml")


def test_the_limit_is_a_whole_number():
    with pytest.raises(StudyError, match="most_runs must be a whole number"):
        parse_study('most_runs = "many"\n' + huge(9), "small.toml")


def test_what_is_wrong_in_a_list_is_said_and_not_counted():
    with pytest.raises(StudyError, match="seed"):
        parse_study("[base]\nseeds = [0.5, true]\nlr = 1", "wrong.toml")
