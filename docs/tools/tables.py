"""Tables of pages from the files of their numbers: ``python docs/tools/tables.py [--check]``.

A page names the file, the head of the table, what a row looks like, and words to be shown for
others; what follows up to the end is made::

    <!-- table: standings.csv
    | selector | speed | told |
    | [{selector}]({selector}.md) | **{speed:.2f}** | {needs} |
    needs: label_counts -> **label counts**
    -->
    ...
    <!-- end of table -->

Two more kinds of line choose among the rows of a file and put several of them into one::

    where: dataset=mnist, skew=1         rows with these values; of several such lines, in their
                                         order, the rows of each
    across: selector of dataset, skew    one line per data set and skew; ``{match.gemd:.3f}`` is the
                                         GEMD in the row of `match`, and ``{match.reached}`` its
                                         rounds to the target with their interval

``a.csv+b.csv`` are the rows of both, one file after the other. A row that says rounds and their
interval has ``{reached}`` by itself too. What is empty in the file is a dash where a number is
asked for (``{bytes:.2f}``).

The file is a CSV, or JSON with a list of objects. Numbers are rounded as the decimals that stand in
the file. A benchmark's ``--save FILE`` writes whole tables, with their command, machine, version
and date: ``<!-- table: match.json NAME -->`` shows one of them as it is.

Without ``--check`` pages are written anew; with it, the command fails if one is stale.
"""

import argparse
import csv
import json
import re
import sys
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

_TABLE = re.compile(
    r"(?P<head><!-- table: (?P<file>\S+)(?: (?P<name>[^\n]+?))?(?:\n(?P<plan>.*?))? ?-->\n)"
    r".*?(?P<end><!-- end of table -->)",
    re.DOTALL,
)
_WORDS = re.compile(r"(?P<column>\w+): (?P<value>.*?) ?-> (?P<shown>.*)")
_ACROSS = re.compile(r"across: (?P<column>\w+) of (?P<kept>.+)")


class Missing(str):
    """An empty cell."""

    def __format__(self, form: str) -> str:
        """Return nothing, or a dash in place of a number."""
        return "–" if form else ""


class Row(dict[str, Any]):
    """A row of a file, whose values a plan can also name as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def reached(self) -> str:
        """Rounds to the target with their interval: what was not reached is beyond the last."""
        middle, low, high = (
            self[name] if self[name] != "" else f">{self['rounds']}"
            for name in ("rounds_to_target", "interval_low", "interval_high")
        )
        return str(low) if low == f">{self['rounds']}" else f"{middle} ({low}–{high})"


def with_tables(page: Path) -> str:
    """Return a page with its tables made from their files."""

    def made(found: re.Match[str]) -> str:
        if found["name"]:
            text = saved(page.parent / found["file"], found["name"])
        else:
            files = [page.parent / file for file in found["file"].split("+")]
            text = table(found["plan"], [row for file in files for row in read_rows(file)])
        return f"{found['head']}\n{text}\n\n{found['end']}"

    return _TABLE.sub(made, page.read_text("utf-8"))


def saved(file: Path, name: str) -> str:
    """Return a table that a benchmark saved."""
    tables = json.loads(file.read_text("utf-8"))["tables"]
    if name not in tables:
        raise ValueError(f"{file} has no table {name!r}: it has {', '.join(tables)}.")
    return _lines(_line(tables[name]["head"]), [_line(row) for row in tables[name]["rows"]])


def table(plan: str, rows: list[Row]) -> str:
    """Return a table in Markdown: the head, a rule, and the plan's row filled for each row."""
    head, row, *others = plan.strip().splitlines()
    words: dict[tuple[str, str], str] = {}
    wanted: list[dict[str, str]] = []
    for line in others:
        if line.startswith("where: "):
            wanted.append(dict(item.split("=") for item in line[7:].split(", ")))
        elif across := _ACROSS.fullmatch(line):
            rows = list(_across(_chosen(rows, wanted), across["column"], across["kept"]))
            wanted = []
        elif found := _WORDS.fullmatch(line):
            words[found["column"], found["value"]] = found["shown"]
        else:
            raise ValueError(f"A table's plan has {line!r}: write `column: value -> shown`.")
    return _lines(
        head,
        [row.format_map(_shown(values, words)) for values in _chosen(rows, wanted)],
    )


def _shown(values: Row, words: dict[tuple[str, str], str]) -> dict[str, Any]:
    found = {k: words.get((k, str(v)), v) for k, v in values.items()}
    return found | ({"reached": values.reached} if "rounds_to_target" in values else {})


def _chosen(rows: list[Row], wanted: list[dict[str, str]]) -> list[Row]:
    if not wanted:
        return rows
    return [
        row
        for values in wanted
        for row in rows
        if all(str(row[column]) == value for column, value in values.items())
    ]


def _across(rows: list[Row], column: str, kept: str) -> Iterator[Row]:
    """Yield one row for each combination of the kept columns, with a row of the file per value."""
    together: dict[tuple[str, ...], Row] = {}
    for row in rows:
        values = {name: row[name] for name in kept.split(", ")}
        made = together.setdefault(tuple(map(str, values.values())), Row(values))
        if row[column] in made:
            raise ValueError(f"Two rows have {row[column]!r} and {values}: choose with `where`.")
        made[row[column]] = row
    yield from together.values()


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _lines(head: str, rows: list[str]) -> str:
    columns = head.replace(r"\|", "").count("|") - 1
    return "\n".join([head, "|" + "---|" * columns, *rows])


def read_rows(file: Path) -> list[Row]:
    """Return the rows of a CSV or JSON file, numbers as the decimals that they are written in."""
    text = file.read_text("utf-8")
    if file.suffix == ".json":
        rows = json.loads(text, parse_float=Decimal)
        return [Row(row) for row in (rows if isinstance(rows, list) else rows["rows"])]
    found = csv.DictReader(text.splitlines())
    return [Row({k: _number(v) for k, v in row.items()}) for row in found]


def _number(text: str) -> Decimal | str:
    if not text:
        return Missing()
    try:
        return Decimal(text)
    except InvalidOperation:
        return text


def stale_pages(root: Path = ROOT) -> dict[Path, str]:
    """Return the pages whose tables differ from their files, and what they should be."""
    found = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    pages = {page: with_tables(page) for page in found}
    return {page: text for page, text in pages.items() if text != page.read_text("utf-8")}


def main(arguments: list[str]) -> int:
    """Write the pages anew, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail instead of writing")
    check = parser.parse_args(arguments).check
    stale = stale_pages()
    for page, text in stale.items():
        print(f"{page}: {'its tables differ from their files' if check else 'made anew'}")
        if not check:
            page.write_text(text, "utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
