"""Things of your own by reference: ``module:attribute`` or ``FILE.py:attribute``."""

import contextlib
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from fedcohort.errors import InvalidInputError, did_you_mean

# What is on the way to a user's file: this package, what imports, and code that dataclasses make.
_ON_THE_WAY = (
    f"{Path(__file__).parent}{os.sep}",
    importlib.__file__,
    "<frozen importlib",
    "<string>",
)
# Errors whose messages say what is wrong without their names.
_TELLING = (AssertionError, ImportError, OSError)
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

# Files that were loaded, with the time of the version that was.
_loaded: dict[Path, tuple[int, ModuleType]] = {}


def load_reference(
    reference: str,
    what: str,
    error: type[InvalidInputError] = InvalidInputError,
    *,
    kind: type | None = None,
) -> Any:
    """Return what ``module:attribute`` or ``FILE.py:attribute`` points to.

    A relative path starts in the current folder. A file is run once per process, and again only
    after it has changed. Modules and what they import are looked for where Python looks and then in
    the current folder; what a file imports is looked for beside that file too. Where there is no
    such thing, an `error` is raised that names `what` it should be, such as ``"selector"``, and
    what there is: of a `kind`, if one is given, the classes that are defined there.
    """
    where, _, attribute = reference.rpartition(":")
    if whole := reference.endswith(".py"):
        where, attribute = reference, "NAME"
    complaint = f"{what.capitalize()} {reference!r} cannot be imported"
    if not attribute.isidentifier() or not (where.endswith(".py") or _MODULE.fullmatch(where)):
        raise error(f"{complaint}: write module:name or FILE.py:name.")
    try:
        module = _file(Path(where)) if where.endswith(".py") else _module(where)
    except (Exception, SystemExit) as raised:
        raise error(f"{complaint} ({account(raised)}): correct that first.") from raised
    if not whole and hasattr(module, attribute):
        return getattr(module, attribute)
    fitting = [] if kind is None else _classes(module, kind)
    if kind is not None and not fitting:
        raise error(f"{complaint}, since {where!r} defines no {kind.__name__}: write one there.")
    if whole:
        named = " or ".join(f"{where}:{name}" for name in fitting or [attribute])
        raise error(f"{complaint}, since it names a whole file: write {named}.")
    others = f"choose one of {', '.join(fitting)}." if fitting else "correct the name."
    hint = did_you_mean(attribute, fitting or dir(module), others)
    raise error(f"{complaint}, since {where!r} defines no {attribute!r}: {hint}")


def _classes(module: ModuleType, kind: type) -> list[str]:
    """Return the names of the classes of a kind that a module defines, not those it imports."""
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, kind)
        and value.__module__.startswith(module.__name__)
    ]


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


def account(raised: BaseException) -> str:
    """Say what was raised and, if a user's file did, in which of its lines."""
    if isinstance(raised, SyntaxError):
        return f"{type(raised).__name__} in line {raised.lineno} of {raised.filename}: {raised.msg}"
    frames = [
        frame
        for frame in traceback.extract_tb(raised.__traceback__)
        if not frame.filename.startswith(_ON_THE_WAY)
    ]
    if not frames:
        return str(raised) if isinstance(raised, _TELLING) else f"{type(raised).__name__}: {raised}"
    # The file that was asked for comes first; a library that it calls may come after.
    line = [frame.lineno for frame in frames if frame.filename == frames[0].filename][-1]
    return f"{type(raised).__name__} in line {line} of {frames[0].filename}: {raised}"
