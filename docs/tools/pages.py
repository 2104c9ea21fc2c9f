"""Pages of the site that do not stand in docs/, as a hook of MkDocs.

- The changelog and the guide for contributors come from the root of the repository.
- Tutorials come from ``build/tutorials``, where `tutorials.py` wrote them, and the cohort explorer
  of the Start page from ``build/explorer.html``, where `explorer.py` did.
- A link to a file outside docs/, such as ``../studies/smoke.toml``, leads to a page that shows it,
  so that every link of the site can be followed and checked without a network.
"""

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
MADE_TUTORIALS = ROOT / "build" / "tutorials"
MADE_EXPLORER = ROOT / "build" / "explorer.html"
EXPLORER_PLACE = '<div id="cohort-explorer"></div>'
FROM_ROOT = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
# A file that a page shows would stand before the pages that explain it.
NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
LANGUAGES = {".py": "python", ".toml": "toml", ".c": "c", ".md": "markdown", ".yml": "yaml"}

# A link or an image, and no code: what stands between backquotes is left out first.
_LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)\s#]+)(?P<rest>#[^)\s]*)?\)")
_CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    for name, page in FROM_ROOT.items():
        files.append(_page(config, page, (ROOT / name).read_text("utf-8"), ROOT / name))
    for script in sorted((ROOT / "docs" / "tutorials").glob("*.py")):
        if not (MADE_TUTORIALS / f"{script.stem}.md").exists():
            raise PluginError(f"Tutorial {script.stem!r} has not been run: build with `make docs`.")
    for made in sorted(MADE_TUTORIALS.iterdir()):
        uri = f"tutorials/{made.name}"
        if made.suffix == ".md":
            origin = ROOT / "docs" / uri
            files.append(_page(config, uri, made.read_text("utf-8"), origin))
        elif made.suffix == ".png":
            files.append(File.generated(config, uri, abs_src_path=str(made)))
    shown: set[Path] = set()
    for file in list(files.documentation_pages()):
        for target in _targets(file.content_string, _origin(file)):
            _show(target, files, config, shown)
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Let links that leave docs/ lead to the pages that show what they name."""
    origin = _origin(page.file)
    if origin is None:
        return markdown

    def moved(found: re.Match[str]) -> str:
        uri = _uri(_resolved(found["target"], origin))
        if uri is None or _is_elsewhere(found["target"]):
            return found[0]
        here = os.path.relpath(uri, Path(page.file.src_uri).parent)
        return f"{found['before']}{here}{found['rest'] or ''})"

    parts = _CODE.split(markdown)
    # A link's text may itself be code, so the split puts `](…)` into the prose after it.
    return "".join(part if n % 2 else _LINK.sub(moved, part) for n, part in enumerate(parts))


def on_post_page(output: str, **_: object) -> str:
    """Put the cohort explorer into its place, after the search has read the page's words."""
    if EXPLORER_PLACE not in output:
        return output
    if not MADE_EXPLORER.exists():
        raise PluginError("The cohort explorer has not been made: build with `make docs`.")
    return output.replace(EXPLORER_PLACE, MADE_EXPLORER.read_text("utf-8"))


def _page(config: MkDocsConfig, uri: str, text: str, origin: Path) -> File:
    file = File.generated(config, uri, content=text)
    file.generated_by = f"{file.generated_by}:{origin}"
    return file


def _origin(file: File) -> Path | None:
    """Return where the source of a page stands, None for pages that show a file."""
    if file.generated_by and ":" in file.generated_by:
        return Path(file.generated_by.split(":", 1)[1])
    return Path(file.abs_src_path) if file.abs_src_path else None


def _is_elsewhere(target: str) -> bool:
    return re.match(r"[a-z]+:", target) is not None


def _resolved(target: str, origin: Path) -> Path:
    return Path(os.path.normpath(origin.parent / target))


def _targets(markdown: str, origin: Path | None) -> list[Path]:
    """Return what a page links to outside docs/, and what of it is not a page already."""
    if origin is None:
        return []
    prose = "".join(_CODE.split(markdown)[::2])
    found = (m["target"] for m in _LINK.finditer(prose) if not _is_elsewhere(m["target"]))
    outside = [_resolved(target, origin) for target in found]
    return [path for path in outside if (_uri(path) or "").startswith("source/")]


def _uri(path: Path) -> str | None:
    """Return the page of a path of the repository; None outside of it and for what is not there."""
    if not path.is_relative_to(ROOT) or not path.exists():
        return None
    place = path.relative_to(ROOT)
    if str(place) in FROM_ROOT:
        return FROM_ROOT[str(place)]
    # Scripts of docs/ are read here, not served.
    if place.parts[0] == "docs" and place.suffix != ".py":
        return str(place.relative_to("docs"))
    return f"source/{place}.md"


def _show(path: Path, files: Files, config: MkDocsConfig, shown: set[Path]) -> None:
    """Add the page of a file, or of a folder and all that is in it."""
    if path in shown:
        return
    shown.add(path)
    uri, place = f"source/{path.relative_to(ROOT)}.md", path.relative_to(ROOT)
    if path.is_dir():
        names = sorted(p for p in path.iterdir() if p.name[0] not in "._" and not _is_binary(p))
        for inside in names:
            _show(inside, files, config, shown)
        listed = "\n".join(f"- [{p.name}]({path.name}/{p.name}.md)" for p in names)
        text = f"# {place}\n\n{listed}\n"
    else:
        language = LANGUAGES.get(path.suffix, "text")
        text = f"# {place}\n\n````{language}\n{path.read_text('utf-8')}````\n"
    files.append(File.generated(config, uri, content=NOT_SEARCHED + text))


def _is_binary(path: Path) -> bool:
    return path.is_file() and path.suffix not in {*LANGUAGES, ".css", ".html", ".js", ".csv"}
