"""Finding a compiler, keeping what it made, and doing without one."""

import dataclasses
import os
import subprocess
import sys

import pytest
import torch

from fedcohort.simulation import RunConfig
from fedcohort.simulation.lockstep import Lockstep
from fedcohort.simulation.materials import Materials
from fedcohort.training.accelerators import c_chain
from fedcohort.training.accelerators.c_chain import compiler
from fedcohort.training.accelerators.c_chain.compiler import kernels

# What `kernels` remembers would hide what happens the first time.
compile_anew = kernels.__wrapped__

has_compiler = pytest.mark.skipif(kernels() is None, reason="needs a C compiler (cc)")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fedcohort" / "kernels"


@has_compiler
def test_what_was_compiled_is_kept_and_used_again(cache, monkeypatch):
    assert compile_anew() is not None
    (kept,) = cache.iterdir()
    monkeypatch.setattr(compiler, "_compile", lambda *_: pytest.fail("compiled twice"))
    assert compile_anew() is not None
    assert [kept] == list(cache.iterdir())


@has_compiler
def test_without_a_writable_cache_it_is_compiled_for_the_process_alone(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compile_anew().train is not None


@has_compiler
def test_another_compiler_or_processor_has_its_own_file(monkeypatch):
    command = compiler._compiler()
    before = compiler._key(command)
    assert compiler._key([*command, "-g"]) != before
    monkeypatch.setattr(compiler, "_processor", lambda: "another")
    assert compiler._key(command) != before


@pytest.mark.parametrize("name", ["no-such-compiler", "false", "true"])
def test_a_compiler_that_is_missing_or_broken_means_none(cache, monkeypatch, name):
    monkeypatch.setenv("CC", name)
    assert compile_anew() is None
    assert not cache.exists() or not list(cache.iterdir()), "nothing is left behind"


RUN = RunConfig(dataset="digits", clients=20, cohort=5, rounds=4, lr=0.3, inputs="standard")


def curve(config):
    lockstep = Lockstep([config], Materials(), torch.device("cpu"))
    return lockstep, [lockstep.advance()[0] for _ in range(config.rounds)]


@pytest.mark.parametrize("selector", ["dp3s", "pow-d", "fedsae"])
def test_a_run_without_a_compiler_has_the_same_result_up_to_rounding(monkeypatch, selector):
    config = dataclasses.replace(RUN, selector=selector)
    with_compiler, records = curve(config)
    for module in (c_chain, compiler):
        monkeypatch.setattr(module, "kernels", lambda: None)
    without, others = curve(config)
    assert without.facts()[0]["trainer"] == "per client"
    for one, other in zip(records, others, strict=True):
        assert one.cohort == other.cohort
        assert one.test_score == pytest.approx(other.test_score, abs=0.01)
    for name, values in with_compiler.parameters.items():
        assert torch.allclose(values, without.parameters[name], rtol=0, atol=1e-4)


def test_the_command_works_where_nothing_can_be_compiled(tmp_path):
    environment = os.environ | {"CC": "no-such-compiler", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "fedcohort", "run", "--dataset", "digits", "--rounds", "2"),
            *("--out", str(tmp_path / "store"), "--device", "cpu"),
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "cache" / "fedcohort" / "kernels").exists()
