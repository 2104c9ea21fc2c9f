import re

import pytest

from fedcohort.errors import InvalidParameterError
from fedcohort.parameters import Interval
from fedcohort.settings import setting
from fedcohort.simulation.config import SETTINGS
from fedcohort.training.models import MODELS


@pytest.mark.parametrize("forgotten", ["lockstep", "federation"])
def test_a_setting_cannot_be_declared_without_saying_how_runs_are_grouped(forgotten):
    said = {"help": "One.", "group": "data", "lockstep": True, "federation": True}
    del said[forgotten]
    with pytest.raises(TypeError, match=forgotten):
        setting(1, Interval(0), **said)


def test_text_becomes_the_value_and_back():
    for name, text, value in [
        ("batch_size", "full", None),
        ("batch_size", "32", 32),
        ("lr", "0.1234567891", 0.1234567891),
        ("profile_delta", "1e-05", 1e-5),
        ("skew", "0.8", "0.8"),
    ]:
        assert SETTINGS[name].from_text(text) == value
        assert SETTINGS[name].to_text(value) == text


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("batch_size", "half", "--batch-size must be a whole number at least 1, or full, not 'h"),
        ("batch_size", "0", "--batch-size must be a whole number at least 1, or full, not '0'"),
        ("rounds", "2.5", "--rounds must be a whole number at least 1, not '2.5'"),
        ("lr", "much", "--lr must be a number above 0, not 'much'"),
    ],
)
def test_text_that_no_run_takes_is_refused_with_what_is_accepted(name, text, complaint):
    with pytest.raises(InvalidParameterError, match=complaint):
        SETTINGS[name].from_text(text)


@pytest.mark.parametrize(
    ("name", "raw", "complaint"),
    [
        ("batch_size", 0, "batch_size must be a whole number at least 1, or full, not 0."),
        ("batch_size", "32", "batch_size must be a whole number at least 1, or full, not the text"),
        ("lr", "0.1", "lr must be a number above 0, not the text '0.1'."),
        ("rounds", True, "rounds must be a whole number at least 1, not True."),
    ],
)
def test_values_of_study_files_are_refused_with_what_is_accepted(name, raw, complaint):
    with pytest.raises(InvalidParameterError, match=re.escape(complaint)):
        SETTINGS[name].from_toml(raw)


def test_models_are_completed_by_their_names():
    """They are written out there, where PyTorch is not imported."""
    assert SETTINGS["model"].completions() == ["auto", *MODELS]


def test_words_of_reports():
    assert SETTINGS["rounds"].say(1) == "1 round"
    assert SETTINGS["rounds"].say(30) == "30 rounds"
    assert SETTINGS["batch_size"].say(None) == "full batch"
    assert SETTINGS["deadline"].say(2.0) == "deadline 2"
    assert SETTINGS["dataset"].say("mnist") == "dataset mnist"
