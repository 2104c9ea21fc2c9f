"""Digests of Python objects that are the same in every process.

What a run's key is made of must not change with memory addresses, hash seeds, the order of sets and
dicts, or where a file lies; and must change with whatever makes the object do something else:

- a function is its bytecode, its defaults, the cells it closes over and, recursively, what it names
  in its module; comments, docstrings and line numbers do not matter, and code without a source file
  counts too; of what TorchScript and torch.fx have made of code, what they made;
- a class is its bases and its namespace; any other object what `copy` would take of it: its class
  and its state; arrays and tensors are their values; a module that is passed around, or imported
  inside a function, is its file and the modules that this imports;
- what belongs to Python, torch, numpy or fedcohort is its name, since a run's facts have the
  versions; what belongs to another installed package is its name and the files installed;
- locks, loggers, weak references and files that are only written to change no result: each counts
  as its kind. What else cannot be copied, such as a generator or an open file, is refused.

Bytecode belongs to a version of Python: under another one, code of one's own has other digests. It
is taken rather than source text because it is what runs: a file may have changed since it was read.
"""

import copyreg
import dis
import functools
import hashlib
import importlib.metadata
import importlib.util
import io
import logging
import operator
import os
import re
import sys
import threading
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedcohort.errors import InvalidInputError

# Whatever its files say: fixed by the versions that a run's facts name.
_KNOWN = ("fedcohort", "torch", "numpy")
_STDLIB = Path(os.__file__).parent
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented), range)
_IDLE = (
    *(type(threading.Lock()), type(threading.RLock()), threading.local),
    *(logging.Logger, logging.Handler),
    *(weakref.ref, weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet),
)
# Of a class: what Python and torch keep there for themselves, some of it only once it was copied or
# run, and what says where it was written.
_NOT_ITS_OWN = {
    *("__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__annotate_func__"),
    *("__annotations_cache__", "__firstlineno__", "__static_attributes__"),
    *("__slotnames__", "_abc_impl", "_backward_cls"),
}
# Of a module: where it lies and how it was found.
_OF_MODULES = {*vars(types.ModuleType("")), "__file__", "__cached__", "__builtins__"}
# Python numbers hooks through the whole process.
_HOOKS = {name for name in vars(nn.Module()) if "hook" in name}
# Of a module that torch is to compile.
_ADDRESS = "_torchdynamo_wrapper_id"
_HEAP_TYPE = 1 << 9
_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}
_HAS_DOCSTRING = 1 << 26
# TorchScript's names of classes say where they lie, and are numbered in the order of compiling;
# what follows a # are lines of files.
_PLACES = re.compile(r"__torch__[\w.]*| # .*:\d+:\d+$", re.MULTILINE)
# Filled by the first that is asked for: going through all that is installed takes half a second.
_distributions: dict[str, list[str]] = {}


def fingerprint(thing: object, what: str) -> str:
    """Return 64 hexadecimal digits that say what an object is and does.

    Parameters
    ----------
    thing : object
        Anything: a function, a class, an object, data.
    what : str
        What to call it when it is refused, such as ``"the loss losses.py:focal"``.

    Raises
    ------
    InvalidInputError
        One sentence about what it holds that cannot be told from another in a later process.
    """
    try:
        return _Walk(what).digest(thing)
    except RecursionError as error:
        raise InvalidInputError(
            f"A run's key cannot say what {what} is, whose sets or keys hold each other: make them"
            " inside the function that uses them."
        ) from error


def common_fingerprint(models: Iterable[nn.Module], what: str) -> str:
    """Return a digest of what models have in common that one factory built under several seeds.

    Values that differ are the seeds' doing, and only their names, shapes and types count.
    """
    common = functools.reduce(operator.and_, (set(_parts(model, what)) for model in models))
    return digest(sorted(common))


def digest(parts: Iterable[str]) -> str:
    """Return 64 hexadecimal digits for several texts."""
    whole = hashlib.sha256()
    for part in parts:
        encoded = part.encode(errors="surrogatepass")
        whole.update(f"{len(encoded)}:".encode() + encoded)
    return whole.hexdigest()


def _parts(model: nn.Module, what: str) -> Iterator[str]:
    for place, module in model.named_modules():
        yield digest([place, fingerprint(type(module), what)])
        state = _state(module)
        for name, tensor in (state.pop("_parameters") | state.pop("_buffers")).items():
            yield digest([place, name, *(() if tensor is None else _form(tensor))])
            yield digest([place, name, fingerprint(tensor, what)])
        del state["_modules"]
        for name, value in state.items():
            yield digest([place, name, fingerprint(value, f"{what} → {name}")])


class _Walk:
    """Objects numbered as they are met, so that cycles end and addresses do not matter."""

    def __init__(self, what: str) -> None:
        self.path = what
        self._numbers: dict[int, int] = {}
        # Also keeps alive what was made on the way, so that no address is used twice.
        self._met: list[tuple[object, str]] = []

    def digest(self, thing: object) -> str:
        parts = [self(thing)]
        for met, path in self._met:
            self.path = path
            parts.append(digest([type(met).__qualname__, *_describe(met, self)]))
        return digest(parts)

    def __call__(self, thing: object, name: object = "") -> str:
        """Return what stands for a thing that is called so where it was met."""
        # By value what Python itself may keep once or twice.
        if type(thing) in _PLAIN:
            return f"{type(thing).__name__} {thing!r}"
        if type(thing) is tuple:
            return digest(["tuple", *map(self, thing)])
        if type(thing) is frozenset:
            return digest(["frozenset", *sorted(map(self.alone, thing))])
        if isinstance(thing, types.CodeType):
            return digest(["code", *_of_code(thing, self)])
        if (known := _known_name(thing)) is not None:
            return known
        if id(thing) not in self._numbers:
            self._numbers[id(thing)] = len(self._met)
            named = isinstance(name, str) and name
            self._met.append((thing, f"{self.path} → {name}" if named else self.path))
        return f"number {self._numbers[id(thing)]}"

    def alone(self, thing: object) -> str:
        """Return what stands for a thing wherever it is met: sets and keys are sorted by it."""
        return _Walk(self.path).digest(thing)


def _of_code(code: types.CodeType, told: _Walk) -> Iterator[str]:
    steps = list(dis.get_instructions(code))
    stored = [step.argval if step.opname == "STORE_NAME" else None for step in steps]
    for step, *names in zip(steps, stored, (*stored[1:], None), strict=True):
        if not _NOT_ITS_OWN.isdisjoint(names):
            # A class that is made in a function is given its docstring by code.
            continue
        # Constants and names, not their numbers: docstrings are numbered among them.
        if step.opcode in dis.hasconst:
            yield f"{step.opcode} {told(step.argval)}"
        else:
            yield f"{step.opcode} {step.argrepr if step.opcode in dis.hasname else step.arg}"
    yield code.co_exceptiontable.hex()
    flags = code.co_flags & ~_HAS_DOCSTRING
    yield told((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, flags))
    yield told((code.co_varnames, code.co_freevars, code.co_cellvars))


def _known_name(thing: object) -> str | None:
    """Return the name of a class, function or module that is not the user's, if that finds it."""
    if isinstance(thing, types.ModuleType):
        return None if _is_own(thing.__name__) else _named(thing.__name__, "")
    if not isinstance(thing, type | types.FunctionType):
        return None
    module, name = thing.__module__, thing.__qualname__
    if not isinstance(module, str) or _is_own(module):
        return None
    try:
        found = operator.attrgetter(name)(sys.modules[module])
    except (KeyError, AttributeError):
        found = None
    compiled = isinstance(thing, type) and not thing.__flags__ & _HEAP_TYPE
    return _named(module, name) if found is thing or compiled else None


def _named(module: str, name: str) -> str:
    package = module.partition(".")[0]
    known = package in _KNOWN or package in sys.stdlib_module_names
    return f"{module}:{name} {'' if known else _edition(package)}"


@functools.cache
def _edition(package: str) -> str:
    """Return a digest of the files of an installed package."""
    if package not in _distributions:
        _distributions.update(importlib.metadata.packages_distributions())
    names = _distributions.get(package, ())
    files = (file for name in names for file in importlib.metadata.files(name) or ())
    # How it was installed is in a folder of its own.
    told = (f for f in files if f.hash and not f.parts[0].endswith(".dist-info"))
    return digest(sorted(f"{file} {file.hash.value}" for file in told if file.hash))


def _is_own(module: str) -> bool:
    """Tell whether a module is the user's, and not of Python or of an installed package."""
    package = module.partition(".")[0]
    if (file := getattr(sys.modules.get(module), "__file__", None)) is None:
        return package not in (*_KNOWN, *sys.stdlib_module_names)
    return package not in _KNOWN and _is_own_file(Path(file))


def _is_own_file(file: Path) -> bool:
    installed = not {"site-packages", "dist-packages"}.isdisjoint(file.parts)
    return not installed and not file.is_relative_to(_STDLIB)


def _globals(code: types.CodeType, space: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what code and the functions in it name in their module, or in modules of the user's."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for place, step in enumerate(steps):
        name = step.argval
        if step.opname not in _LOADS or name not in space or name in _OF_MODULES:
            continue
        value = space[name]
        for after in steps[place + 1 :]:
            if not isinstance(value, types.ModuleType) or not _is_own(value.__name__):
                break
            if after.opname not in _ATTRIBUTES or not hasattr(value, after.argval):
                break
            name, value = f"{name}.{after.argval}", getattr(value, after.argval)
        yield name, value
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals(constant, space)


def _imported(code: types.CodeType, package: str) -> list[str]:
    """Return names and digests of the user's files that code imports, and of those they import."""
    found: dict[str, str] = {}
    waiting = [(code, package)]
    for content, within in waiting:
        for name in {*_imports(content, within)} - found.keys():
            found[name] = ""
            if (file := _file_of(name)) is not None:
                found[name] = hashlib.sha256(file.read_bytes()).hexdigest()
                inside = name if file.stem == "__init__" else name.rpartition(".")[0]
                waiting += [(compiled, inside) for compiled in _compiled(file)]
    return [f"{name} {found[name]}" for name in sorted(found)]


def _imports(code: types.CodeType, package: str) -> Iterator[str]:
    """Yield the names of what may be modules in the import statements of code."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for level, names, step in zip(steps, steps[1:], steps[2:], strict=False):
        if step.opname == "IMPORT_NAME":
            if level.argval and not package:
                continue
            name = importlib.util.resolve_name("." * level.argval + step.argval, package)
            yield name
            yield from (f"{name}.{inside}" for inside in names.argval or ())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _imports(constant, package)


def _file_of(module: str) -> Path | None:
    """Return the file of a module of the user's; it need not have been imported."""
    if module.partition(".")[0] in _KNOWN:
        return None
    try:
        spec = importlib.util.find_spec(module)
    except Exception:
        # It is for the import itself to say so.
        return None
    if spec is None or not spec.has_location or not spec.origin:
        return None
    file = Path(spec.origin)
    return file if file.is_file() and _is_own_file(file) else None


def _compiled(file: Path) -> list[types.CodeType]:
    return [compile(file.read_bytes(), "", "exec")] if file.suffix == ".py" else []


@functools.singledispatch
def _describe(thing: Any, told: _Walk) -> Iterator[str]:
    """Yield what an object is: of one without a rule of its own, what `copy` would take."""
    if isinstance(thing, _IDLE):
        return
    try:
        reduce = copyreg.dispatch_table.get(type(thing))
        taken = thing.__reduce_ex__(4) if reduce is None else reduce(thing)
    except Exception as error:
        raise _refused(thing, told) from error
    if isinstance(taken, str):
        yield taken
        yield told(sys.modules.get(getattr(thing, "__module__", None) or ""))
        return
    made, state = taken[:2], taken[2:3]
    items, pairs = (list(more or ()) for more in (*taken[3:5], None, None)[:2])
    yield from map(told, (made, state, items, dict(pairs)))


_of_any = _describe.dispatch(object)


def _refused(thing: object, told: _Walk) -> InvalidInputError:
    return InvalidInputError(
        f"A run's key cannot say what {told.path} is, of type {type(thing).__qualname__}: make it"
        " inside the function that uses it."
    )


@_describe.register
def _(thing: types.FunctionType, told: _Walk) -> Iterator[str]:
    if (compiled := vars(thing).get("_torchdynamo_orig_callable")) is not None:
        # The rest is what torch has made of it in this process.
        yield told(compiled)
        return
    code, space = thing.__code__, thing.__globals__
    own = _is_own(space.get("__name__", ""))
    yield told(code) if own else code.co_qualname
    yield told(thing.__defaults__)
    yield told(thing.__kwdefaults__)
    yield told(vars(thing))
    for name, cell in zip(code.co_freevars, thing.__closure__ or (), strict=True):
        yield told(cell, name)
    if own:
        for name, value in _globals(code, space):
            yield name
            yield told(value, name)
        yield from _imported(code, space.get("__package__") or "")


@_describe.register
def _(thing: types.CellType, told: _Walk) -> Iterator[str]:
    try:
        yield told(thing.cell_contents)
    except ValueError:
        yield "empty"


@_describe.register
def _(thing: types.MethodType, told: _Walk) -> Iterator[str]:
    yield from map(told, (thing.__self__, thing.__func__))


@_describe.register
def _(thing: types.BuiltinFunctionType, told: _Walk) -> Iterator[str]:
    yield thing.__qualname__
    yield told(thing.__self__)


@_describe.register(staticmethod)
@_describe.register(classmethod)
def _(thing: Any, told: _Walk) -> Iterator[str]:
    yield told(thing.__func__)


@_describe.register
def _(thing: property, told: _Walk) -> Iterator[str]:
    yield from map(told, (thing.fget, thing.fset, thing.fdel))


@_describe.register(type(functools.lru_cache(len)))
def _(thing: Any, told: _Walk) -> Iterator[str]:
    yield told(thing.__wrapped__)


@_describe.register
def _(thing: type, told: _Walk) -> Iterator[str]:
    yield thing.__qualname__
    yield told(type(thing))
    yield told(thing.__bases__)
    yield told({name: value for name, value in vars(thing).items() if name not in _NOT_ITS_OWN})


@_describe.register
def _(thing: types.ModuleType, told: _Walk) -> Iterator[str]:
    file = Path(getattr(thing, "__file__", None) or "")
    if not file.is_file():
        raise _refused(thing, told)
    yield hashlib.sha256(file.read_bytes()).hexdigest()
    for code in _compiled(file):
        yield from _imported(code, thing.__package__ or "")


@_describe.register(dict)
@_describe.register(types.MappingProxyType)
def _(thing: Mapping[Any, Any], told: _Walk) -> Iterator[str]:
    if type(thing) not in (dict, types.MappingProxyType):
        yield from _of_any(thing, told)
        return
    keys = {told.alone(key): key for key in thing}
    for stands in sorted(keys):
        yield stands
        yield told(thing[keys[stands]], keys[stands])


@_describe.register
def _(thing: list, told: _Walk) -> Iterator[str]:  # type: ignore[type-arg]
    yield from map(told, thing) if type(thing) is list else _of_any(thing, told)


@_describe.register(set)
@_describe.register(frozenset)
def _(thing: Iterable[Any], told: _Walk) -> Iterator[str]:
    yield told(type(thing))
    yield told(getattr(thing, "__dict__", None))
    yield from sorted(map(told.alone, thing))


@_describe.register
def _(thing: io.IOBase, told: _Walk) -> Iterator[str]:
    if not thing.closed and thing.readable():
        raise _refused(thing, told)
    yield from ()


@_describe.register
def _(thing: np.generic, told: _Walk) -> Iterator[str]:
    yield told(np.asarray(thing))


@_describe.register
def _(thing: np.ndarray, told: _Walk) -> Iterator[str]:
    if type(thing) not in (np.ndarray, np.memmap) or thing.dtype.hasobject:
        yield from _of_any(thing, told)
        return
    yield from (str(thing.dtype), str(thing.shape), _of_bytes(thing))


@_describe.register
def _(thing: torch.Tensor, _: _Walk) -> Iterator[str]:
    yield from _form(thing)
    if not thing.is_meta:
        dense = thing.detach().to_dense().cpu().resolve_conj().resolve_neg().contiguous()
        yield _of_bytes(dense.reshape(-1).view(torch.uint8).numpy())


@_describe.register
def _(thing: nn.Module, told: _Walk) -> Iterator[str]:
    yield told(type(thing))
    yield told(_state(thing))


@_describe.register(torch.jit.ScriptFunction)
def _(thing: Any, told: _Walk) -> Iterator[str]:
    yield told(_scripted(thing))


@_describe.register(torch.Graph)
def _(thing: Any, told: _Walk) -> Iterator[str]:
    yield _PLACES.sub("", str(thing))
    # In that text large tensors have no values, and calls of Python no code.
    yield from (told(node.output().toIValue()) for node in thing.findAllNodes("prim::Constant"))
    yield from (told(node.pyobj()) for node in thing.findAllNodes("prim::PythonOp"))


@_describe.register
def _(thing: torch.fx.Graph, told: _Walk) -> Iterator[str]:
    code = thing.python_code("self")
    yield code.src
    yield told(code.globals)


def _scripted(function: Any) -> tuple[str, torch.Graph]:
    """Return the signature, which has the defaults, and the code of a function of TorchScript's."""
    return _PLACES.sub("", str(function.schema)), function.inlined_graph


def _form(tensor: torch.Tensor) -> tuple[str, ...]:
    shape = str(tuple(tensor.shape))
    return type(tensor).__qualname__, str(tensor.dtype), shape, str(tensor.requires_grad)


def _of_bytes(array: np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def _state(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module; of its hooks the order counts, not their numbers."""
    scripted = isinstance(module, torch.jit.ScriptModule)
    return {
        name: list(value.values()) if name in _HOOKS and isinstance(value, dict) else value
        for name, value in vars(module).items()
        if name in _HOOKS or not (scripted or name == _ADDRESS)
    } | (_scripted_state(module) if scripted else {})


def _scripted_state(module: Any) -> dict[str, Any]:
    """Return what TorchScript holds of a module: Python has only views of it, some made by use."""
    held, parts = module._c, ("_parameters", "_buffers", "_modules")
    # Asked anew, since what was frozen does not keep it.
    kind: Any = torch._C.ConcreteModuleType.from_jit_type(held._type())
    return {
        **{name: _scripted(held._get_method(name)) for name in held._method_names()},
        **{name: held.getattr(name) for name in kind.get_attributes()},
        **{name: dict(getattr(module, name).items()) for name in parts},
    }
