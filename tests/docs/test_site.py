"""The checker of the site finds what is wrong, and the pages name all modules that are public."""

import json
from pathlib import Path

import pytest
from check_site import complaints, exported, public_names

ROOT = Path(__file__).parents[2]


@pytest.fixture
def site(tmp_path):
    """A site of two pages with nothing wrong, and the sources that its API is about."""
    (tmp_path / "docs/api").mkdir(parents=True)
    (tmp_path / "docs/api/thing.md").write_text("::: fedcohort.thing\n")
    (tmp_path / "src/fedcohort").mkdir(parents=True)
    (tmp_path / "src/fedcohort/__init__.py").write_text("__all__ = ['make']\n")
    (tmp_path / "src/fedcohort/thing.py").write_text("def make(): ...\ndef _hidden(): ...\n")
    (tmp_path / "site/api").mkdir(parents=True)
    (tmp_path / "site/api/thing.html").write_text('<h2 id="fedcohort.thing.make">make</h2>')
    (tmp_path / "site/index.html").write_text(
        '<a href="api/thing.html#fedcohort.thing.make">there</a>'
        '<a href="https://example.org">elsewhere</a><script src="a.js"></script>'
    )
    (tmp_path / "site/a.js").write_text("")
    (tmp_path / "site/search").mkdir()
    let_search_find(tmp_path / "site", "index.html", "index.html#more", "api/thing.html")
    return tmp_path / "site"


def let_search_find(site, *locations):
    index = {"docs": [{"location": location, "text": ""} for location in locations]}
    (site / "search/search_index.json").write_text(json.dumps(index))


def wrong(site):
    return list(complaints(site, site.parent))


def test_a_good_site_has_no_complaint(site):
    assert wrong(site) == []


@pytest.mark.parametrize(
    ("html", "complaint"),
    [
        ('<a href="gone.html">x</a>', "which does not exist"),
        ('<a href="api/thing.html#gone">x</a>', "no such anchor"),
        ('<a href="#gone">x</a>', "no such anchor"),
        ('<img src="gone.png">', "which does not exist"),
        ('<script src="https://example.org/a.js"></script>', "from elsewhere"),
        ('<link rel="stylesheet" href="//example.org/font.css">', "from elsewhere"),
    ],
)
def test_what_is_wrong_is_found(site, html, complaint):
    (site / "index.html").write_text(html)
    (found,) = wrong(site)
    assert found.startswith("index.html")
    assert complaint in found


def test_the_search_knows_the_pages_and_not_the_files_that_they_show(site):
    (site / "source").mkdir()
    (site / "source/a.py.html").write_text("")
    assert wrong(site) == []
    let_search_find(site, "index.html#more", "source/a.py.html#a")
    assert wrong(site) == [
        "api/thing.html is not found by the search.",
        "source/a.py.html, which only shows a file, is found by the search.",
    ]


def test_a_public_name_without_a_place_is_found(site):
    (site.parent / "src/fedcohort/thing.py").write_text("def make(): ...\ndef other(): ...\n")
    assert wrong(site) == ["fedcohort.thing.other has no place in the API reference."]


def test_every_package_that_exports_names_has_a_page():
    source = ROOT / "src" / "fedcohort"
    packages = {f"fedcohort.{file.parent.name}" for file in source.glob("*/__init__.py")}
    public = {module for module in packages if "__all__" in _text(module)}
    shown = {name.rsplit(".", 1)[0] for name in public_names()}
    assert public - shown == set()
    assert "simulate" in exported("fedcohort")


def _text(module):
    return (ROOT / "src" / Path(*module.split(".")) / "__init__.py").read_text()
