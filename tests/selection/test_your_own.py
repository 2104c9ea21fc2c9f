"""A selector of one's own: the example, and what the registry says of classes that are none."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedcohort import Need, Outcome, Selector, make_selector, selector_class
from fedcohort.errors import InvalidInputError, InvalidParameterError
from fedcohort.testing import check_selector

ROOT = Path(__file__).parents[2]
EXAMPLE = "examples/my_selector.py:MySelector"


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("spec", [EXAMPLE, f"{EXAMPLE}:share=0", f"{EXAMPLE}:share=0.9"])
def test_the_example_conforms(spec):
    check_selector(spec)


def test_a_class_conforms_without_being_registered():
    check_selector(selector_class(EXAMPLE))


def test_the_example_takes_its_parameter_and_guards_it():
    assert make_selector(EXAMPLE).share == 0.5
    assert make_selector(f"{EXAMPLE}:share=0.3").share == 0.3
    assert make_selector(EXAMPLE, share=0.3).share == 0.3
    with pytest.raises(InvalidParameterError, match="share of selector 'worst-first' must be a nu"):
        make_selector(f"{EXAMPLE}:share=2")


def test_the_example_takes_the_highest_losses():
    selector = make_selector(f"{EXAMPLE}:share=0.5").fit(clients=20)
    selector.tell(Need.LOSS, np.arange(20), np.arange(20.0))
    met = set()
    for seed in range(40):
        ids = selector.select(4, rng=np.random.default_rng(seed)).ids.tolist()
        assert ids[:2] == [19, 18]
        met |= set(ids)
    assert met == set(range(20))


def test_needs_and_name_are_known_without_an_instance():
    found = selector_class(f"{EXAMPLE}:share=0.3")
    assert issubclass(found, Selector)
    assert (found.name, found.needs) == ("worst-first", {Need.LOSS})


def test_the_page_shows_the_example_as_it_is():
    page = (ROOT / "docs" / "selectors" / "your-own.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert (ROOT / "examples" / "my_selector.py").read_text() in blocks


def test_the_pages_rule_with_a_counter_conforms_and_takes_turns(tmp_path):
    page = (ROOT / "docs" / "selectors" / "your-own.md").read_text()
    (code,) = (b for b in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "LongestAgo" in b)
    file = tmp_path / "rule.py"
    file.write_text(code)
    check_selector(f"{file}:LongestAgo")
    selector = make_selector(f"{file}:LongestAgo").fit(clients=20)
    met = []
    for round_ in range(4):
        ids = selector.select(5, rng=np.random.default_rng(round_)).ids
        selector.observe(Outcome(ids, np.ones(5, bool)))
        met += ids.tolist()
    assert sorted(met) == list(range(20))


HEAD = """
import dataclasses
from fedcohort import DP3S, FedAvg, Selector
from fedcohort.parameters import Interval, parameter
"""


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("def Rule(): pass", "is not a Selector"),
        ("class Rule: pass", "is not a Selector"),
        ("Rule = FedAvg()", "is not a Selector"),
        ("class Rule(Selector): pass", "write its method _choose"),
        ("class Rule(FedAvg):\n    a: int = parameter(1, Interval(0))", "is not a dataclass"),
    ],
)
def test_what_is_no_selector_is_refused_in_a_sentence(tmp_path, code, complaint):
    file = tmp_path / "rule.py"
    file.write_text(f"{HEAD}{code}\n")
    with pytest.raises(InvalidInputError, match=complaint):
        make_selector(f"{file}:Rule")


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        (
            "class Rule(FedAvg):\n    def __init__(self, share):\n        super().__init__()",
            r"cannot be made \(TypeError: .*__init__\(\) missing 1 required .* 'share'\): mend it",
        ),
        (
            "class Rule(FedAvg):\n    def __post_init__(self):\n        self.share = 1 / 0",
            r"cannot be made \(ZeroDivisionError in line 7 of .*rule\.py: division by zero\): mend",
        ),
        (
            "@dataclasses.dataclass(kw_only=True, eq=False)\n"
            "class Rule(FedAvg):\n    share: float\n    other: float\n    third: int = 3",
            r"cannot do without share, other: write .*rule\.py:Rule:share=VALUE,other=VALUE\.",
        ),
    ],
)
def test_what_cannot_be_made_is_refused_in_a_sentence(tmp_path, code, complaint):
    file = tmp_path / "rule.py"
    file.write_text(f"{HEAD}{code}\n")
    with pytest.raises(InvalidInputError, match=rf"'{file}:Rule' {complaint}"):
        make_selector(f"{file}:Rule")


def test_required_parameters_are_given_in_either_way(tmp_path):
    file = tmp_path / "rule.py"
    rule = "@dataclasses.dataclass(kw_only=True, eq=False)\nclass Rule(FedAvg):\n    share: float\n"
    file.write_text(HEAD + rule)
    assert make_selector(f"{file}:Rule:share=1").share == 1
    assert make_selector(f"{file}:Rule", share=2).share == 2


def test_a_class_without_a_name_goes_by_its_own_and_not_by_its_parents(tmp_path):
    file = tmp_path / "rule.py"
    file.write_text(f"{HEAD}class Rule(DP3S): pass\n")
    assert make_selector(f"{file}:Rule").name == "Rule"
    assert make_selector("dp3s").name == "dp3s"


def test_parameters_without_a_dataclass_fail_the_suite():
    from fedcohort import FedAvg
    from fedcohort.parameters import Interval, parameter

    class Forgotten(FedAvg):
        beta: float = parameter(0.5, Interval(0, 1))

    with pytest.raises(AssertionError, match=r"Forgotten: check_declaration: .* not a dataclass"):
        check_selector(Forgotten)
