"""Tables of pages are what their files say."""

import pytest
from tables import main, read_rows, stale_pages, table, with_tables

PLAN = "| rule | speed |\n| {rule} | **{speed:.2f}** |\nrule: -> nobody\n"
PAGE = (
    "# Page\n\n<!-- table: speeds.csv\n" + PLAN + "-->\n\nMADE\n\n<!-- end of table -->\n\nMore.\n"
)


@pytest.fixture
def page(tmp_path):
    (tmp_path / "speeds.csv").write_text("rule,speed\nmatch,1.365\n,0.975\n")
    file = tmp_path / "page.md"
    file.write_text(PAGE.replace("MADE", "| rule | speed |\n|---|---|\n| match | **1.40** |"))
    return file


def test_the_pages_of_the_docs_show_what_their_files_have():
    assert not stale_pages(), "make them anew: python docs/tools/tables.py"


def test_the_leaderboard_is_made_from_its_file():
    from tables import DOCS

    assert "<!-- table: leaderboard-standings.csv" in (DOCS / "results/leaderboard.md").read_text()


def test_a_number_that_the_file_does_not_have_is_found_and_replaced(page):
    right = PAGE.replace(
        "MADE", "| rule | speed |\n|---|---|\n| match | **1.36** |\n| nobody | **0.98** |"
    )
    assert stale_pages(page.parent) == {page: right}
    page.write_text(right)
    assert with_tables(page) == right
    assert not stale_pages(page.parent)


def test_the_command_fails_when_asked_to_check_and_writes_otherwise(page, monkeypatch):
    monkeypatch.setattr("tables.stale_pages", lambda: stale_pages(page.parent))
    before = page.read_text()
    assert main(["--check"]) == 1
    assert page.read_text() == before
    assert main([]) == 0
    assert main(["--check"]) == 0
    assert "**1.36**" in page.read_text()


def test_json_files_round_as_their_decimals_do(tmp_path):
    (tmp_path / "speeds.json").write_text('{"rows": [{"rule": "match", "speed": 0.975}]}')
    rows = read_rows(tmp_path / "speeds.json")
    assert table(PLAN, rows).splitlines()[-1] == "| match | **0.98** |"


def test_a_plan_that_cannot_be_read_says_so():
    with pytest.raises(ValueError, match="column: value -> shown"):
        table("| a |\n| {a} |\nsomething else", [])
