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

The file is a CSV, or JSON with a list of objects. Numbers are rounded as the decimals that stand in
the file. Without ``--check`` pages are written anew; with it, the command fails if one is stale.
"""

import argparse
import csv
import json
import re
import sys
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]

_TABLE = re.compile(
    r"(?P<head><!-- table: (?P<file>\S+)\n(?P<plan>.*?)-->\n).*?(?P<end><!-- end of table -->)",
    re.DOTALL,
)
_WORDS = re.compile(r"(?P<column>\w+): (?P<value>.*?) ?-> (?P<shown>.*)")


def with_tables(page: Path) -> str:
    """Return a page with its tables made from their files."""

    def made(found: re.Match[str]) -> str:
        rows = read_rows(page.parent / found["file"])
        return f"{found['head']}\n{table(found['plan'], rows)}\n\n{found['end']}"

    return _TABLE.sub(made, page.read_text("utf-8"))


def table(plan: str, rows: list[dict[str, Any]]) -> str:
    """Return a table in Markdown: the head, a rule, and the plan's row filled for each row."""
    head, row, *others = plan.strip().splitlines()
    words = {}
    for line in others:
        found = _WORDS.fullmatch(line)
        if found is None:
            raise ValueError(f"A table's plan has {line!r}: write `column: value -> shown`.")
        words[found["column"], found["value"]] = found["shown"]
    filled = [
        row.format_map({k: words.get((k, str(v)), v) for k, v in values.items()}) for values in rows
    ]
    return "\n".join([head, "|" + "---|" * (head.count("|") - 1), *filled])


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a CSV or JSON file, numbers as the decimals that they are written in."""
    text = file.read_text("utf-8")
    if file.suffix == ".json":
        rows = json.loads(text, parse_float=Decimal)
        return rows if isinstance(rows, list) else rows["rows"]
    return [{k: _number(v) for k, v in row.items()} for row in csv.DictReader(text.splitlines())]


def _number(text: str) -> Decimal | str:
    try:
        return Decimal(text)
    except InvalidOperation:
        return text


def stale_pages(docs: Path = DOCS) -> dict[Path, str]:
    """Return the pages whose tables differ from their files, and what they should be."""
    pages = {page: with_tables(page) for page in sorted(docs.rglob("*.md"))}
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
