"""Help and completion, as a terminal shows them."""

import re

import pytest
import typer.main
from typer.testing import CliRunner

from fedcohort.cli.app import app
from fedcohort.cli.options import one_of
from fedcohort.errors import InvalidParameterError
from fedcohort.simulation.config import SETTINGS


def commands(command, path=()):
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


def show(*arguments, width=80, **environment):
    # click leaves two columns free.
    done = CliRunner().invoke(
        app, arguments, prog_name="fedcohort", env=environment, terminal_width=width - 2
    )
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("width", [50, 80])
@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_is_plain_text_that_fits(path, width):
    text = show(*path, "-h", width=width)
    assert text == show(*path, "--help", width=width)
    assert "\\" not in text
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_argument_is_explained(path):
    text = show(*path, "-h")
    for param in COMMANDS[path].params:
        if param.param_type_name == "argument":
            # One that may be left out stands in brackets.
            begins = rf"^  \[?{param.name.upper()}\S* +"
            assert re.search(rf"{begins}[A-Za-z].*\w", text, re.MULTILINE)
            assert not re.search(rf"{begins}\[required\]", text, re.MULTILINE)


def test_the_options_of_a_run_stand_under_their_groups():
    text = show("run", "-h")
    headings = re.findall(r"^(\w+):$", text, re.MULTILINE)
    assert headings == ["Data", "Training", "Selection", "System", "Output", "Options"]
    sections = dict(zip(headings, re.split(r"^\w+:\n", text, flags=re.MULTILINE)[1:], strict=True))
    for name, setting in SETTINGS.items():
        if setting.group is None:
            assert setting.option not in text
        else:
            option = "--seeds" if name == "seed" else setting.option
            assert re.search(rf"{option}\b", sections[setting.group.capitalize()]), option
    assert "[default: 5000]" in re.sub(r"\s+", " ", sections["Output"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fedcohort run --selector dp", ["dp3s"]),
        ("fedcohort run --dataset m", ["mnist", "mnist-by-writer"]),
        ("fedcohort run --profile g", ["gradient"]),
        ("fedcohort run --batch-size f", ["full"]),
        ("fedcohort data fetch f", ["fashion-mnist"]),
        ("fedcohort select --selector mat", ["match"]),
    ],
)
def test_a_shell_completes_names(words, expected):
    said = show(
        _FEDCOHORT_COMPLETE="complete_bash",
        COMP_WORDS=words,
        COMP_CWORD=str(len(words.split()) - 1),
    )
    assert said.split() == expected


def test_a_word_that_is_none_of_a_few_is_refused_with_all_of_them():
    one_of("--engine", "ray", ("local", "ray"))
    with pytest.raises(InvalidParameterError, match="--engine must be local or ray, not 'spark'"):
        one_of("--engine", "spark", ("local", "ray"))
