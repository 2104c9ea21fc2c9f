"""Tables of pages are what their files say."""

import json
import re

import pytest
from tables import ROOT, Row, main, read_rows, stale_pages, table, with_tables

PLAN = "| rule | speed |\n| {rule} | **{speed:.2f}** |\nrule: -> nobody\n"
PAGE = (
    "# Page\n\n<!-- table: speeds.csv\n" + PLAN + "-->\n\nMADE\n\n<!-- end of table -->\n\nMore.\n"
)
# What papers and code of others have, which no run of ours can change.
BY_HAND = frozenset({"docs/selectors/oort.md"})


@pytest.fixture
def page(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# Read me\n")
    (tmp_path / "docs/speeds.csv").write_text("rule,speed\nmatch,1.365\n,0.975\n")
    file = tmp_path / "docs/page.md"
    file.write_text(PAGE.replace("MADE", "| rule | speed |\n|---|---|\n| match | **1.40** |"))
    return file


def test_the_pages_of_the_docs_show_what_their_files_have():
    assert not stale_pages(), "make them anew: python docs/tools/tables.py"


@pytest.mark.parametrize(
    ("page", "file"),
    [
        ("README.md", "docs/results/paper-summary.csv"),
        ("docs/results/leaderboard.md", "leaderboard-standings.csv"),
        ("docs/results/paper.md", "paper-summary.csv+paper-more-summary.csv"),
        ("docs/results/paper.md", "paper-gains.csv+paper-more-gains.csv"),
        ("docs/selectors/match.md", "../results/match-ablation.json"),
        ("docs/kdpp.md", "results/kdpp.json"),
    ],
)
def test_the_main_tables_are_made_from_files(page, file):
    assert f"<!-- table: {file}" in (ROOT / page).read_text()


def test_a_table_of_numbers_comes_from_a_file():
    """What is written by hand could rot."""
    by_hand = []
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for page in (p for p in pages if p.relative_to(ROOT).as_posix() not in BY_HAND):
        prose = re.sub("<!-- table:.*?<!-- end of table -->", "", page.read_text(), flags=re.DOTALL)
        by_hand += [f"{page.relative_to(ROOT)}: {line}" for line in numbers_in_tables(prose)]
    assert by_hand == []


def numbers_in_tables(prose):
    """Yield the lines of tables with at least two cells that begin with a number with a point."""
    for line in prose.splitlines():
        cells = [cell.strip(" *~") for cell in line.split("|")[1:-1]] if line[:1] == "|" else []
        if sum(re.match(r"[<>≈]?\d*\.\d", cell) is not None for cell in cells) >= 2:
            yield line


def test_rows_are_chosen_and_put_across():
    rows = [
        Row(data="a", rule="x", n=1, speed=1.5),
        Row(data="a", rule="y", n=1, speed=2.5),
        Row(data="b", rule="x", n=1, speed=3.5),
        Row(data="b", rule="y", n=1, speed=4.5),
        Row(data="b", rule="y", n=2, speed=9.5),
    ]
    plan = "| d | x | y |\n| {data} | {x.speed:.1f} | {y.speed:.1f} |\n"
    text = table(plan + "where: n=1\nacross: rule of data\ndata: a -> A\n", rows)
    assert text.splitlines()[2:] == ["| A | 1.5 | 2.5 |", "| b | 3.5 | 4.5 |"]
    with pytest.raises(ValueError, match="choose with `where`"):
        table(plan + "across: rule of data\n", rows)
    plan = "| d |\n| {data}{speed} |\nwhere: data=b, rule=x\nwhere: data=a\n"
    assert table(plan, rows).splitlines()[2:] == ["| b3.5 |", "| a1.5 |", "| a2.5 |"]


@pytest.mark.parametrize(
    ("reached", "shown"),
    [((66, 64, 70), "66 (64–70)"), (("", 184, ""), ">200 (184–>200)"), (("", "", ""), ">200")],
)
def test_rounds_are_shown_with_their_interval(reached, shown):
    names = ("rounds_to_target", "interval_low", "interval_high")
    assert Row(zip(names, reached, strict=True), rounds=200).reached == shown


def test_a_saved_table_is_shown_as_it_is(tmp_path):
    saved = {"tables": {"speed": {"head": ["C", "ms"], "rows": [["10", "1.0"]]}}}
    (tmp_path / "b.json").write_text(json.dumps(saved))
    (tmp_path / "p.md").write_text("<!-- table: b.json speed -->\nOLD\n<!-- end of table -->\n")
    made = "<!-- table: b.json speed -->\n\n| C | ms |\n|---|---|\n| 10 | 1.0 |\n\n"
    assert with_tables(tmp_path / "p.md") == made + "<!-- end of table -->\n"
    (tmp_path / "p.md").write_text("<!-- table: b.json gone -->\n<!-- end of table -->\n")
    with pytest.raises(ValueError, match="no table 'gone'"):
        with_tables(tmp_path / "p.md")


def test_saved_tables_say_how_they_were_made():
    files = sorted((ROOT / "docs/results").glob("*.json"))
    assert files
    for file in files:
        assert {"command", "machine", "version", "date", "tables"} <= json.loads(
            file.read_text()
        ).keys(), file.name


def test_a_number_that_the_file_does_not_have_is_found_and_replaced(page):
    right = PAGE.replace(
        "MADE", "| rule | speed |\n|---|---|\n| match | **1.36** |\n| nobody | **0.98** |"
    )
    assert stale_pages(page.parents[1]) == {page: right}
    page.write_text(right)
    assert with_tables(page) == right
    assert not stale_pages(page.parents[1])


def test_a_table_can_have_the_rows_of_two_files(page):
    (page.parent / "more.csv").write_text("note,speed,rule\nnew,2.125,dp3s\n")
    page.write_text(PAGE.replace("speeds.csv", "speeds.csv+more.csv"))
    made = "| match | **1.36** |\n| nobody | **0.98** |\n| dp3s | **2.12** |\n"
    assert made in with_tables(page)


def test_the_command_fails_when_asked_to_check_and_writes_otherwise(page, monkeypatch):
    monkeypatch.setattr("tables.stale_pages", lambda: stale_pages(page.parents[1]))
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


def test_what_is_empty_is_a_dash_where_a_number_is_asked_for(tmp_path):
    (tmp_path / "rounds.csv").write_text(
        "rule,rounds,rounds_to_target,interval_low,interval_high,mb\n"
        "match,90,40,35,,1.25\nafl,90,,,,\n"
    )
    plan = "| rule | rounds | MB |\n| {rule} | {reached} | {mb:.1f}{mb} |"
    *_, first, second = table(plan, read_rows(tmp_path / "rounds.csv")).splitlines()
    assert first == "| match | 40 (35–>90) | 1.21.25 |"
    assert second == "| afl | >90 | – |"
