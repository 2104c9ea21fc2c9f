"""Compiled code that others may have touched, and compilers that do not behave."""

import ctypes
import os
import pwd
import stat
import subprocess
import sys
import tempfile
import time
import warnings

import pytest

from fedcohort.training.accelerators.c_chain import code_cache, compiler
from fedcohort.training.accelerators.c_chain.code_cache import KernelWarning
from fedcohort.training.accelerators.c_chain.compiler import kernels

# What `kernels` remembers would hide what happens in a new process.
compile_anew = kernels.__wrapped__

pytestmark = pytest.mark.skipif(kernels() is None, reason="needs a C compiler (cc)")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture(autouse=True)
def quickly_compiled(monkeypatch):
    """Without optimisation, which takes most of the time: code is kept here, not used."""
    flags = [flag for flag in compiler._FLAGS if flag != "-O3"]
    monkeypatch.setattr(compiler, "_FLAGS", flags)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with code in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compile_anew() is not None
    return tmp_path / "fedcohort" / "kernels"


@pytest.fixture
def compiled(monkeypatch):
    """How often something was compiled."""
    calls = []
    really = compiler._compile
    monkeypatch.setattr(compiler, "_compile", lambda *given: calls.append(given) or really(*given))
    return calls


def only_file(cache):
    (kept,) = cache.iterdir()
    return kept


def give_away(kept):
    os.chown(kept, 12345, 12345)


def link(kept):
    elsewhere = kept.parent.parent / "elsewhere.so"
    kept.rename(elsewhere)
    kept.symlink_to(elsewhere)


def truncate(kept):
    os.truncate(kept, kept.stat().st_size // 2)


def zero_the_middle(kept):
    with kept.open("r+b") as file:
        file.seek(kept.stat().st_size // 3)
        file.write(bytes(kept.stat().st_size // 3))


def another_library(kept):
    kept.write_bytes(kept.read_bytes() + b"\\0")


def open_to_all(kept):
    kept.chmod(0o666)


def folder_in_its_place(kept):
    kept.unlink()
    kept.mkdir()


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(give_away, marks=needs_root),
        *(link, truncate, zero_the_middle, another_library, open_to_all),
    ],
)
def test_code_that_cannot_be_trusted_is_made_again_with_one_line(cache, compiled, harm):
    good = only_file(cache).read_bytes()
    harm(only_file(cache))
    with pytest.warns(KernelWarning, match="made again") as said:
        assert compile_anew() is not None
    assert len(said) == 1
    assert "\n" not in str(said[0].message)
    kept = only_file(cache)
    assert kept.read_bytes() == good
    assert not kept.is_symlink()
    assert kept.stat().st_uid == os.geteuid()
    assert len(compiled) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compile_anew() is not None
    assert len(compiled) == 1


def test_a_folder_in_the_place_of_code_ends_nothing(cache):
    folder_in_its_place(only_file(cache))
    with pytest.warns(KernelWarning):
        assert compile_anew() is not None


def test_what_was_in_a_folder_open_to_all_is_made_again(cache, compiled):
    cache.chmod(0o777)
    with pytest.warns(KernelWarning, match="writable by others"):
        assert compile_anew() is not None
    assert len(compiled) == 1
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


@needs_root
def test_a_folder_of_another_user_is_not_used(cache):
    kept = only_file(cache)
    os.chown(cache, 12345, 12345)
    with pytest.warns(KernelWarning, match="belongs to another user"):
        assert compile_anew() is not None
    assert only_file(cache) == kept, "something was written to a folder of another user"


def test_a_linked_folder_is_not_used(cache):
    cache.rename(cache.parent / "elsewhere")
    cache.symlink_to(cache.parent / "elsewhere")
    with pytest.warns(KernelWarning, match="link"):
        assert compile_anew() is not None


def test_folders_and_files_are_ours_alone_whatever_the_mask_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = os.umask(0)
    try:
        assert compile_anew() is not None
    finally:
        os.umask(before)
    cache = tmp_path / "fedcohort" / "kernels"
    assert stat.S_IMODE(cache.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(only_file(cache).stat().st_mode) == 0o600


def test_a_file_system_that_forbids_to_execute_needs_no_second_compilation(
    cache, compiled, monkeypatch
):
    really = ctypes.CDLL

    def refuse(name, *given):
        if str(name).startswith(str(cache)):
            raise OSError("failed to map segment from shared object: Operation not permitted")
        return really(name, *given)

    monkeypatch.setattr(code_cache.ctypes, "CDLL", refuse)
    assert compile_anew() is not None
    assert compiled == []


@pytest.mark.usefixtures("cache")
def test_where_memory_cannot_be_executed_a_private_folder_is_used(compiled, monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    assert compile_anew().train is not None
    assert compiled == []


@pytest.mark.usefixtures("cache")
def test_a_compiler_that_hangs_is_ended_with_all_it_started(tmp_path, monkeypatch):
    script = tmp_path / "cc"
    script.write_text(f"#!/bin/sh\nsh -c 'echo $$ > {tmp_path}/pid; exec sleep 1000'\n")
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    monkeypatch.setattr(compiler, "_SECONDS_TO_COMPILE", 2.0)
    with pytest.warns(KernelWarning, match="more than 2 seconds") as said:
        assert compile_anew() is None
    assert len(said) == 1
    child = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 60
    while lives(child):
        assert time.monotonic() < until, "what the compiler had started still runs"


def lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.usefixtures("cache")
def test_a_compiler_that_is_no_command_is_said_in_one_line(monkeypatch):
    monkeypatch.setenv("CC", "gcc 'x")
    with pytest.warns(KernelWarning, match="no command") as said:
        assert compile_anew() is None
    assert len(said) == 1


COMMAND = (sys.executable, "-m", "fedcohort", "run", "--dataset", "digits", "--rounds", "1")


@pytest.mark.parametrize(
    ("changes", "lines"), [({"CC": "gcc 'x"}, 1), ({"CC": "no-such-compiler"}, 0)]
)
def test_the_command_says_it_in_one_line_and_goes_on(tmp_path, changes, lines):
    done = subprocess.run(
        [*COMMAND, "--clients", "10", "--cohort", "2", "--out", tmp_path / "out"],
        env=os.environ | changes,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stderr.splitlines() if "Warning" in line]) == lines
    assert "Traceback" not in done.stderr
    assert "warnings.warn" not in done.stderr


def test_users_without_a_home_have_a_cache_among_the_temporary_files(
    tmp_path, compiled, monkeypatch
):
    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for _ in range(2):
        assert compile_anew() is not None
    assert len(compiled) == 1
    assert only_file(tmp_path / f"fedcohort-{os.getuid()}" / "kernels").exists()
