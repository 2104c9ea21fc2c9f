import dataclasses
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest

import fedcohort
from fedcohort import Match, Selector, list_selectors, make_selector, selector_class
from fedcohort.errors import InvalidInputError, InvalidParameterError, UnknownNameError
from fedcohort.selection import registry
from fedcohort.selection.fedavg import FedAvg


def test_the_paper_selectors_are_registered():
    assert {"fedavg", "dp3s", "clustered", "fedsae"} <= set(list_selectors())


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'dp3s'"):
        make_selector("dps3")


def test_several_names_in_one_are_told_to_be_given_one_by_one():
    with pytest.raises(InvalidInputError, match=r"several: .* --selector match --selector fedavg"):
        make_selector("match, fedavg")


def test_a_class_in_place_of_a_name_is_refused_in_one_sentence():
    with pytest.raises(InvalidInputError, match="A selector is named by a text, such as 'match'"):
        make_selector(Selector)


def test_an_unknown_parameter_is_named_with_the_known_ones():
    with pytest.raises(InvalidParameterError, match=r"no parameter 'bet': it takes beta, workload"):
        make_selector("fedsae", bet=1)


def test_a_parameter_out_of_range_is_refused_in_one_sentence():
    with pytest.raises(InvalidParameterError, match="beta of selector 'fedsae' must be a number"):
        make_selector("fedsae", beta=-1)


def test_a_spec_and_keywords_give_parameters_together():
    made = make_selector("match:guard=profiles", evenness="free")
    assert (made.guard, made.evenness) == ("profiles", "free")
    assert selector_class("match:guard=profiles") is Match


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("fedsae:beta", "'fedsae:beta' has the parameter 'beta' without a value"),
        ("fedsae:bet=1", r"'fedsae' has no parameter 'bet': it takes beta, workload"),
        ("fedsae:beta=-1", "beta of selector 'fedsae' must be a number"),
    ],
)
def test_a_spec_with_wrong_parameters_is_refused_in_one_sentence(spec, complaint):
    with pytest.raises(InvalidParameterError, match=complaint):
        make_selector(spec)


def test_an_unknown_name_with_parameters_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="no selector 'dps3': did you mean 'dp3s'"):
        make_selector("dps3:rank=8")


def test_a_parameter_is_given_once():
    with pytest.raises(InvalidParameterError, match="given 'beta' once more as 2"):
        make_selector("fedsae:beta=1", beta=2)


def test_every_selector_class_is_exported():
    # Other tests may have given classes of their own to a simulation.
    ours = {
        c for c in map(selector_class, list_selectors()) if c.__module__.startswith("fedcohort.")
    }
    assert ours == {
        value
        for value in map(vars(fedcohort).get, fedcohort.__all__)
        if isinstance(value, type) and issubclass(value, Selector) and value is not Selector
    }


def test_a_name_is_registered_once():
    with pytest.raises(InvalidInputError, match="exists already"):
        registry.register("fedavg")(FedAvg)


def _with_entry_point(monkeypatch, value):
    found = metadata.EntryPoint("theirs", value, registry.ENTRY_POINT_GROUP)

    def entry_points(*, group, name=None):
        wanted = group == registry.ENTRY_POINT_GROUP and name in (None, "theirs")
        return [found] if wanted else []

    monkeypatch.setattr(registry, "entry_points", entry_points)


@dataclasses.dataclass(kw_only=True, eq=False)
class TheirSelector(FedAvg):
    """A selector of another package."""


def test_another_package_adds_a_selector_by_entry_point(monkeypatch):
    _with_entry_point(monkeypatch, f"{__name__}:TheirSelector")
    monkeypatch.setitem(
        __import__("sys").modules,
        __name__,
        __import__("types").SimpleNamespace(TheirSelector=TheirSelector),
    )
    assert "theirs" in list_selectors()
    made = make_selector("theirs").fit(clients=4)
    assert made.name == "theirs"
    assert len(made.select(2, rng=np.random.default_rng(0)).ids) == 2


def test_an_entry_point_that_is_no_selector_is_refused(monkeypatch):
    _with_entry_point(monkeypatch, "json:JSONDecoder")
    with pytest.raises(InvalidInputError, match="not a Selector"):
        make_selector("theirs")


def test_importing_fedcohort_loads_nothing_heavy():
    heavy = ("torch", "pandas", "matplotlib", "rich", "scipy.sparse", "scipy.special")
    code = f"import sys, fedcohort; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
