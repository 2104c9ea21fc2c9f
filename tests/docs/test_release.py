"""The version is said once, and the files that repeat it agree."""

import re
from pathlib import Path

import fedcohort
from fedcohort import list_selectors, selector_class

ROOT = Path(__file__).parents[2]


def test_the_citation_and_the_changelog_have_this_version():
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert cited is not None
    assert newest is not None
    assert cited[1] == newest[1] == fedcohort.__version__


def test_the_version_stands_in_the_package_alone():
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()


def test_every_selector_has_a_page_in_the_site():
    pages = (ROOT / "mkdocs.yml").read_text()
    table = (ROOT / "docs" / "selectors" / "README.md").read_text()
    classes = {name: selector_class(name) for name in list_selectors()}
    own = [name for name, kind in classes.items() if kind.__module__.startswith("fedcohort.")]
    assert own
    for name in own:
        assert f"selectors/{name}.md" in pages
        assert (ROOT / "docs" / "selectors" / f"{name}.md").exists()
        assert f"[{name}]({name}.md)" in table
