"""Things of one's own, from modules and files."""

import os
import pickle
import sys
from pathlib import Path

import pytest

from fedcohort import references
from fedcohort.errors import InvalidInputError, InvalidModelError
from fedcohort.references import load_reference


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder to write files into; modules loaded from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_file_is_found_from_the_current_folder_and_by_its_whole_path(folder):
    (folder / "rules").mkdir()
    file = folder / "rules" / "mine.py"
    file.write_text("class Rule: pass\n")
    rule = load_reference("rules/mine.py:Rule", "selector")
    assert load_reference(f"{file}:Rule", "selector") is rule
    assert pickle.loads(pickle.dumps(rule)) is rule


def test_a_file_runs_once_until_it_changes(folder):
    file = folder / "counted.py"
    file.write_text("from pathlib import Path\nPath('runs').open('a').write('x')\nVALUE = 1\n")
    assert [load_reference("counted.py:VALUE", "value") for _ in range(3)] == [1, 1, 1]
    assert (folder / "runs").read_text() == "x"
    file.write_text("VALUE = 2\n")
    later = file.stat().st_mtime_ns + 10**9
    os.utime(file, ns=(later, later))
    assert load_reference("counted.py:VALUE", "value") == 2


def test_a_file_takes_the_name_of_no_module(folder):
    import json

    (folder / "json.py").write_text("VALUE = 1\n")
    assert load_reference("json.py:VALUE", "value") == 1
    assert sys.modules["json"] is json
    assert load_reference("json:loads", "function") is json.loads


def test_files_of_one_name_in_two_folders_are_two_modules(folder):
    for name in ("one", "two"):
        (folder / name).mkdir()
        (folder / name / "same.py").write_text(f"VALUE = {name!r}\n")
    assert load_reference("one/same.py:VALUE", "value") == "one"
    assert load_reference("two/same.py:VALUE", "value") == "two"
    assert load_reference("one/same.py:VALUE", "value") == "one"


def test_modules_beside_the_file_and_in_the_current_folder_are_found(folder):
    path = list(sys.path)
    (folder / "rules").mkdir()
    (folder / "rules" / "beside_it.py").write_text("VALUE = 3\n")
    (folder / "rules" / "main.py").write_text("from beside_it import VALUE\n")
    (folder / "in_this_folder.py").write_text("VALUE = 4\n")
    assert load_reference("rules/main.py:VALUE", "value") == 3
    assert load_reference("in_this_folder:VALUE", "value") == 4
    assert sys.path == path


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        ("missing.py:Rule", r"imported \(there is no file '.*missing\.py'"),
        ("no_such_module:Rule", r"imported \(No module named 'no_such_module'\)"),
        ("good.py:Rul", "'good.py' defines no 'Rul': did you mean 'Rule'?"),
        ("good.py:zzz", "'good.py' defines no 'zzz': correct the name"),
        ("typo.py:Rule", r"SyntaxError in line 2 of .*typo\.py: "),
        ("typo:Rule", r"SyntaxError in line 2 of .*typo\.py: "),
        ("broken.py:Rule", r"KeyError in line 2 of .*broken\.py: 'x'"),
        ("broken:Rule", r"KeyError in line 2 of .*broken\.py: 'x'"),
        ("deep.py:Rule", r"JSONDecodeError in line 2 of .*deep\.py: "),
        ("leaves.py:Rule", r"SystemExit in line 1 of .*leaves\.py: 3"),
        ("good.py:", "write module:name or FILE.py:name"),
        ("good.py:not a name", "write module:name or FILE.py:name"),
        ("good.py", "since it names a whole file: write good.py:NAME"),
        ("rules/good:Rule", "write module:name or FILE.py:name"),
        (":Rule", "write module:name or FILE.py:name"),
    ],
)
def test_what_cannot_be_loaded_is_refused_in_a_sentence(folder, reference, complaint):
    (folder / "good.py").write_text("class Rule: pass\n")
    (folder / "typo.py").write_text("\nclass Rule pass\n")
    (folder / "broken.py").write_text("def rule():\n    return {}['x']\nRule = rule()\n")
    (folder / "deep.py").write_text("import json\nRule = json.loads('{')\n")
    (folder / "leaves.py").write_text("raise SystemExit(3)\n")
    before = set(sys.modules)
    with pytest.raises(InvalidInputError, match=complaint) as refused:
        load_reference(reference, "selector")
    assert str(refused.value).startswith(f"Selector {reference!r} cannot be imported")
    left = {name for name in set(sys.modules) - before if name.startswith("_fedcohort")}
    assert all(name.startswith("_fedcohort_good") for name in left), "half a module is left behind"


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        ("two.py:Gamma", "'two.py' defines no 'Gamma': choose one of Alpha, Beta."),
        ("two.py:Alhpa", "'two.py' defines no 'Alhpa': did you mean 'Alpha'?"),
        ("two.py:OSErrors", "'two.py' defines no 'OSErrors': choose one of Alpha, Beta."),
        ("two.py", "it names a whole file: write two.py:Alpha or two.py:Beta."),
        ("package:Alfa", "'package' defines no 'Alfa': did you mean 'Alpha'?"),
        ("none.py", "'none.py' defines no OSError: write one there."),
        ("none.py:Alpha", "'none.py' defines no OSError: write one there."),
    ],
)
def test_what_a_file_has_of_a_kind_is_named(folder, reference, complaint):
    classes = "class Alpha(OSError): pass\nclass Beta(Alpha): pass\nclass Other: pass\n"
    (folder / "two.py").write_text(classes)
    (folder / "package").mkdir()
    (folder / "package" / "inner.py").write_text(classes)
    (folder / "package" / "__init__.py").write_text("from package.inner import Alpha\n")
    (folder / "none.py").write_text("OSErrors = OSError\n")
    with pytest.raises(InvalidInputError) as refused:
        load_reference(reference, "error", kind=OSError)
    assert str(refused.value) == f"Error {reference!r} cannot be imported, since {complaint}"


def test_a_package_beside_this_one_is_the_users_whatever_it_is_called():
    file = f"{Path(references.__file__).parent}_rules/mine.py"
    with pytest.raises(ZeroDivisionError) as raised:
        exec(compile("\n1 / 0", file, "exec"))
    # Without the test's own frame.
    raised.value.__traceback__ = raised.value.__traceback__.tb_next
    said = f"ZeroDivisionError in line 2 of {file}: division by zero"
    assert references.account(raised.value) == said


@pytest.mark.usefixtures("folder")
def test_the_caller_names_the_class_of_error():
    with pytest.raises(InvalidModelError, match=r"Model 'missing\.py:net' cannot be imported"):
        load_reference("missing.py:net", "model", InvalidModelError)
