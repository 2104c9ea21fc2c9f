"""Compile the kernels of `chain.c` on the machine that uses them.

Any C compiler will do (``cc``, or what the environment variable ``CC`` names); it is asked for code
for this very processor, once: what it made is kept in the user's cache folder (see `code_cache`).
Where there is none, PyTorch's operations do the work.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedcohort.training.accelerators.c_chain.code_cache import (
    KernelWarning,
    cache_folder,
    keep_code,
    kept_code,
    load_code,
)

_SOURCE = Path(__file__).with_name("chain.c")
_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-pthread")
# How compilers are asked for this processor's own instructions; some know only one, some neither.
_NATIVE = (("-march=native",), ("-mcpu=native",), ())
# What tells processors apart in /proc/cpuinfo.
_TELLING = ("vendor_id", "model name", "cpu family", "model\t", "stepping", "flags", "Features")
# It takes two seconds on an idle machine.
_SECONDS_TO_COMPILE = 60.0


@functools.cache
def kernels() -> ctypes.CDLL | None:
    """Return the compiled kernels, or None where nothing can compile them."""
    command = _compiler()
    if command is None:
        return None
    folder = cache_folder()
    key = _key(command)
    code = kept_code(folder, key) if folder else None
    if code is not None and (library := load_code(code)):
        return library
    code = _compile(command)
    # Loaded before others can see it: what cannot be loaded is not kept.
    library = load_code(code) if code else None
    if code and library and folder:
        keep_code(folder, key, code)
    return library


def _compiler() -> list[str] | None:
    """Return the command that compiles C, or None."""
    try:
        named = shlex.split(os.environ.get("CC", ""))
    except ValueError as error:
        _do_without(f"CC is {os.environ['CC']!r}, which is no command ({error})")
        return None
    for command in [named] if named else [["cc"], ["gcc"], ["clang"]]:
        found = shutil.which(command[0])
        if found:
            return [found, *command[1:]]
    return None


def _key(command: Sequence[str]) -> str:
    """Return what the compiled code depends on, hashed."""
    changed = os.stat(command[0]).st_mtime_ns
    parts = (list(command), changed, _FLAGS, _NATIVE, _processor(), _SOURCE.read_text())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Describe the processor and what it can do: code that is made for one is wrong for another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return " ".join(sorted({line for line in lines if line.startswith(_TELLING)}))


def _compile(command: Sequence[str]) -> bytes | None:
    """Return what the compiler makes, or None where it cannot or takes too long."""
    until = time.monotonic() + _SECONDS_TO_COMPILE
    try:
        with tempfile.TemporaryDirectory() as own:
            made = Path(own) / "chain.so"
            for native in _NATIVE:
                given = [*command, *_FLAGS, *native, str(_SOURCE), "-o", str(made), "-lm"]
                if _succeeds(given, until - time.monotonic()):
                    return made.read_bytes()
    except subprocess.TimeoutExpired:
        _do_without(f"{shlex.join(command)} took more than {_SECONDS_TO_COMPILE:g} seconds")
    except OSError as error:
        _do_without(f"{shlex.join(command)} cannot be used ({error})")
    return None


def _succeeds(command: Sequence[str], seconds: float) -> bool:
    """Run a command with all that it starts, to its end or for so long."""
    # Into nowhere: whoever a stopped compiler leaves behind would keep a pipe open.
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(
        command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True
    ) as process:
        try:
            return process.wait(seconds) == 0
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def _do_without(why: str) -> None:
    warnings.warn(
        f"Small models train more slowly, without compiled code: {why}.",
        KernelWarning,
        stacklevel=2,
    )


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
