"""Check the built site: ``python docs/tools/check_site.py build/site``.

Every link inside leads to a page and an anchor that exist, no page loads anything from elsewhere,
the search knows every page but those that show a file, and every public name of the packages under
API has its place there.
"""

import ast
import json
import sys
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
# What a page names without loading it.
NAMED = {"canonical", "prev", "next", "alternate", "edit"}


class _Page(HTMLParser):
    """The links, anchors and loaded files of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        attribute = LOADED.get(tag)
        if attribute in given and given.get("rel") not in NAMED:
            self.loaded.append(given[attribute])


def complaints(site: Path, root: Path = ROOT) -> Iterator[str]:
    """Yield one sentence for each thing that is wrong with a site."""
    pages = {
        path: _Page(path.read_text("utf-8"))
        for path in sorted(site.rglob("*.html"))
        # Served for any address, so its links start at the root of the server.
        if path.name != "404.html"
    }
    for path, page in pages.items():
        for link in (*page.links, *page.loaded):
            yield from _wrong_link(link, path, pages, site)
        for link in page.loaded:
            if urlsplit(link).scheme in ("http", "https") or link.startswith("//"):
                yield f"{path.relative_to(site)} loads {link} from elsewhere."
    yield from _wrong_search(pages, site)
    anchors = {a for path, page in pages.items() if path.parent.name == "api" for a in page.anchors}
    for name in public_names(root):
        # A function may stand in a module of its own name, as `metrics.gemd` does.
        if not {name, f"{name}.{name.rsplit('.', 1)[-1]}"} & anchors:
            yield f"{name} has no place in the API reference."
    # What `import fedcohort` offers is described where it is defined.
    placed = {anchor.rsplit(".", 1)[-1] for anchor in anchors if anchor.startswith("fedcohort.")}
    for name in exported("fedcohort", root):
        if name not in placed:
            yield f"fedcohort.{name} has no place in the API reference."


def _wrong_link(link: str, path: Path, pages: dict[Path, _Page], site: Path) -> Iterator[str]:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        yield f"{path.relative_to(site)} links to {link}, which does not exist."
    elif parts.fragment and target in pages and not _has(pages[target], parts.fragment):
        yield f"{path.relative_to(site)} links to {link}, which has no such anchor."


def _wrong_search(pages: Iterable[Path], site: Path) -> Iterator[str]:
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    searched = {entry["location"].split("#")[0] for entry in index["docs"]}
    for path in pages:
        name = path.relative_to(site).as_posix()
        if name.startswith("source/") and name in searched:
            yield f"{name}, which only shows a file, is found by the search."
        if not name.startswith("source/") and name not in searched:
            yield f"{name} is not found by the search."


def _has(page: _Page, fragment: str) -> bool:
    return unquote(fragment) in page.anchors


def public_names(root: Path = ROOT) -> list[str]:
    """Return ``package.name`` of all that the packages with a page under API export."""
    named = []
    for page in sorted((root / "docs" / "api").glob("*.md")):
        for line in page.read_text("utf-8").splitlines():
            if line.startswith("::: "):
                module = line.removeprefix("::: ").strip()
                named += [f"{module}.{name}" for name in exported(module, root)]
    return named


def exported(module: str, root: Path = ROOT) -> list[str]:
    """Return what a module offers, read without importing it: `__all__`, or all it defines."""
    place = root / "src" / Path(*module.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    # A page may also name a single function.
    if not file.exists():
        return []
    body = ast.parse(file.read_text("utf-8")).body
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [name for name in ast.literal_eval(node.value) if not name.startswith("__")]
    kinds = (ast.ClassDef, ast.FunctionDef)
    return [node.name for node in body if isinstance(node, kinds) and node.name[0] != "_"]


def main(arguments: list[str]) -> int:
    """Print what is wrong; 1 if anything is."""
    found = list(complaints(Path(arguments[0]).resolve()))
    for complaint in found:
        print(complaint)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
