"""Compile the kernels of `chain.c` on the machine that uses them.

Any C compiler will do (``cc``, or what the environment variable ``CC`` names); it is asked for code
for this very processor, once: what it made is kept in the user's cache folder. Where there is none,
PyTorch's operations do the work.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor

from fedcohort.federation.sources import user_cache
from fedcohort.training.accelerators.c_chain.processor import processor

_SOURCE = Path(__file__).with_name("chain.c")
_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-pthread")
# How compilers are asked for this processor's own instructions; some know only one, some neither.
_NATIVE = (("-march=native",), ("-mcpu=native",), ())


@functools.cache
def kernels() -> ctypes.CDLL | None:
    """Return the compiled kernels, or None where nothing can compile them."""
    command = _compiler()
    if command is None:
        return None
    file = user_cache() / "kernels" / f"{_key(command)}.so"
    if file.exists():
        with contextlib.suppress(OSError):
            return ctypes.CDLL(str(file))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        folder = file.parent
    except OSError:
        folder = None  # no cache to write to: compile for this process alone
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=folder) as own:
        made = Path(own) / "chain.so"
        if not _compile(command, made):
            return None
        # Loaded before others can see it: what cannot be loaded is not kept.
        library = ctypes.CDLL(str(made))
        if folder is not None:
            made.replace(file)
        return library
    return None


def _compiler() -> list[str] | None:
    """Return the command that compiles C, or None."""
    named = shlex.split(os.environ.get("CC", ""))
    for command in [named] if named else [["cc"], ["gcc"], ["clang"]]:
        found = shutil.which(command[0])
        if found:
            return [found, *command[1:]]
    return None


def _key(command: list[str]) -> str:
    """Return what the compiled code depends on, hashed."""
    changed = os.stat(command[0]).st_mtime_ns
    parts = (command, changed, _FLAGS, _NATIVE, processor(), _SOURCE.read_text())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _compile(command: list[str], file: Path) -> bool:
    for native in _NATIVE:
        done = subprocess.run(
            [*command, *_FLAGS, *native, str(_SOURCE), "-o", str(file), "-lm"],
            capture_output=True,
            check=False,
        )
        if done.returncode == 0:
            return True
    return False


Argument = ctypes.Structure | ctypes.Array[Any] | Tensor | int | None


def call(name: str, *arguments: Argument) -> None:
    """Call a kernel with pointers to structures, arrays and tensors, where there are `kernels`."""
    library = kernels()
    if library is None:
        raise RuntimeError("Nothing was compiled on this machine.")
    getattr(library, name)(*map(_argument, arguments))


def _argument(value: Argument) -> Any:
    if isinstance(value, Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, ctypes.Structure):
        return ctypes.byref(value)
    return ctypes.c_int64(value) if isinstance(value, int) else value
