"""Things of your own by reference: ``module:attribute`` or ``FILE.py:attribute``."""

import contextlib
import hashlib
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from fedcohort.errors import InvalidInputError, did_you_mean

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

# Files that were loaded, with the time of the version that was.
_loaded: dict[Path, tuple[int, ModuleType]] = {}


def load_reference(
    reference: str, what: str, error: type[InvalidInputError] = InvalidInputError
) -> Any:
    """Return what ``module:attribute`` or ``FILE.py:attribute`` points to.

    A relative path starts in the current folder. A file is run once per process, and again only
    after it has changed. Modules and what they import are looked for where Python looks and then in
    the current folder; what a file imports is looked for beside that file too. Where there is no
    such thing, an `error` is raised that names `what` it should be, such as ``"selector"``.
    """
    where, _, attribute = reference.rpartition(":")
    complaint = f"{what.capitalize()} {reference!r} cannot be imported"
    if not attribute.isidentifier() or not (where.endswith(".py") or _MODULE.fullmatch(where)):
        raise error(f"{complaint}: write module:name or FILE.py:name.")
    try:
        module = _file(Path(where)) if where.endswith(".py") else _module(where)
    except (Exception, SystemExit) as raised:
        raise error(f"{complaint} ({_account(raised)}): correct that first.") from raised
    if not hasattr(module, attribute):
        hint = did_you_mean(attribute, dir(module), "correct the name.")
        raise error(f"{complaint}, since {where!r} defines no {attribute!r}: {hint}")
    return getattr(module, attribute)


def _module(name: str) -> ModuleType:
    # A module may have been written a moment ago, after its folder was last listed.
    importlib.invalidate_caches()
    with _also_looking_in(Path.cwd()):
        return importlib.import_module(name)


def _file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    changed = path.stat().st_mtime_ns
    if path in _loaded and _loaded[path][0] == changed:
        return _loaded[path][1]
    # Never the name of a real module, and the same in every process, so that objects can be pickled
    # between those that have loaded the file.
    name = f"_fedcohort_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    # Dataclasses and pickle look a class's module up while it runs.
    sys.modules[name] = module
    try:
        with _also_looking_in(path.parent, Path.cwd()):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise
    _loaded[path] = changed, module
    return module


@contextlib.contextmanager
def _also_looking_in(*folders: Path) -> Iterator[None]:
    """Let Python find modules in `folders`, after all others so that none of those is hidden."""
    added = [str(folder) for folder in folders if str(folder) not in sys.path]
    sys.path.extend(added)
    try:
        yield
    finally:
        for folder in added:
            # The module may have changed the path itself.
            if folder in sys.path:
                sys.path.remove(folder)


def _account(raised: BaseException) -> str:
    """Say what was raised and, if a user's file did, in which of its lines."""
    if isinstance(raised, SyntaxError):
        return f"{type(raised).__name__} in line {raised.lineno} of {raised.filename}: {raised.msg}"
    frames = [
        frame
        for frame in traceback.extract_tb(raised.__traceback__)
        if frame.filename not in (__file__, importlib.__file__)
        and not frame.filename.startswith("<frozen importlib")
    ]
    if not frames:
        return str(raised)
    # The file that was asked for comes first; a library that it calls may come after.
    line = [frame.lineno for frame in frames if frame.filename == frames[0].filename][-1]
    return f"{type(raised).__name__} in line {line} of {frames[0].filename}: {raised}"
