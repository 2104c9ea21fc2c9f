"""Targets: files that fedcohort wrote and something happened to, and references to users' code."""

import contextlib
import functools
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

import numpy as np
from made_models import made

from fedcohort import make_selector
from fedcohort.cli.status import status_of
from fedcohort.report.summary import summarise
from fedcohort.simulation import RoundRecord, RunConfig, Store
from fedcohort.simulation.checkpoints import read_checkpoint
from fedcohort.simulation.claims import Claims
from fedcohort.simulation.groups import group_states, groups_of
from fedcohort.simulation.packing import Pack
from fedcohort.simulation.planning import enter_study
from fedcohort.simulation.scores import Target
from fedcohort.simulation.study import study_of_runs
from fedcohort.specs import parse_spec
from fedcohort.training.accelerators.c_chain.code_cache import keep_code, kept_code

_FACTS = {"clients": 4, "train_evaluated_on": 9, "device": "CPU", "torch": "2", "trainer": "t"}


# -- stores ------------------------------------------------------------------------------------


@functools.cache
def small_store():
    """Return the bytes of a store with a finished run, one that is held and one that is not."""
    runs = [RunConfig(clients=4, cohort=2, rounds=3, seed=seed) for seed in range(3)]
    folder = Path(tempfile.mkdtemp())
    with Store(folder) as store:
        enter_study(
            store, study_of_runs(runs, Target(0.9)), lambda all_: [Pack((c,), 1.0) for c in all_]
        )
        claims = Claims(store)
        for run in runs[:2]:
            claim = claims.claim(groups_of(store, [run]))
            arrays = {"label_counts": np.ones((4, 2), np.int64), "profiles": np.ones((4, 3))}
            claims.begin(claim, [(run, _FACTS, arrays)])
            last = 3 if run.seed == 0 else 1
            records = [
                RoundRecord(n, 0.5, 1.0, 0.5, 1.0, None if n == 0 else 0.2, (0, 1) if n else ())
                for n in range(last + 1)
            ]
            states = [] if last == 3 else [(last, {"model.w": np.ones(3)})]
            claims.save(claim, {run.key: records}, states, 1.0)
    content = (folder / "results.sqlite").read_bytes()
    (checkpoint,) = (folder / "checkpoints").iterdir()
    kept = checkpoint.name, checkpoint.read_bytes()
    shutil.rmtree(folder)
    return content, kept


_CELLS = {
    "runs": ("config", "facts", "federation"),
    "rounds": ("cohort", "left_out", "train_score", "gemd", "bytes_up"),
    "federations": ("arrays",),
    "members": ("config", "grp"),
    "groups": ("shape", "rounds", "round", "cost", "runs"),
    "parts": ("target", "part"),
    "claims": ("host", "pid", "beat", "round"),
}


def stores(reader):
    """A damaged store is refused, or everything in it can be read."""
    content, (name, checkpoint) = small_store()
    content = bytearray(content)
    folder = Path(tempfile.mkdtemp())
    path = folder / "results.sqlite"
    try:
        kind = reader.integer(0, 3)
        if kind == 0:
            for _ in range(reader.integer(1, 6)):
                content[reader.integer(0, len(content) - 1)] = reader.integer(0, 255)
        elif kind == 1:
            del content[reader.integer(0, len(content)) :]
        elif kind == 2:
            start = reader.integer(0, len(content))
            content[start : start + 512] = reader.take(512)[: len(content[start : start + 512])]
        path.write_bytes(content)
        if kind == 3:
            change_cells(reader, path)
        (folder / "checkpoints").mkdir()
        damaged = bytearray(checkpoint)
        damaged[reader.integer(0, len(damaged) - 1)] ^= reader.integer(0, 255)
        (folder / "checkpoints" / name).write_bytes(damaged)
        read_all(folder)
    finally:
        shutil.rmtree(folder)


def change_cells(reader, path):
    with contextlib.closing(sqlite3.connect(path)) as db:
        for _ in range(reader.integer(1, 3)):
            table = reader.choice(tuple(_CELLS))
            column = reader.choice(_CELLS[table])
            value = reader.value(0)
            if isinstance(value, int) and abs(value) >= 2**63:
                value = reader.choice(('{"a": 1}', "[]", "[-1]", "[1e9]", "null", "{}", b"\xff"))
            with contextlib.suppress(sqlite3.Error):  # a type that the table does not take
                db.execute(f"UPDATE {table} SET {column} = ?", (value,))
        db.commit()


def read_all(folder):
    with Store.existing(folder) as store:
        summaries = summarise(store, store.targets())
        assert all(summary.rounds >= 0 for summary in summaries)
        for config in store.configs():
            assert isinstance(store.federation(config)["label_counts"], np.ndarray)
        status_of(store)
        names = {group.name for group in group_states(store)}
        claim = Claims(store).claim(names)
        if claim is not None:
            states = read_checkpoint(folder, claim.group, 1, len(claim.configs))
            assert states is None or len(states) == len(claim.configs)


# -- kernels -----------------------------------------------------------------------------------


def kernel_caches(reader):
    """What comes out of a cache is what was put in, whatever happened to its file."""
    code = bytes(reader.rng().integers(0, 256, reader.integer(0, 2000), np.uint8))
    folder = Path(tempfile.mkdtemp())
    try:
        keep_code(folder, "key", code)
        (kept,) = folder.iterdir()
        kind = reader.integer(0, 6)
        harmed = True
        if kind == 0:
            kept.write_bytes(reader.rest())
        elif kind == 1:
            os.truncate(kept, reader.integer(0, len(code)))
        elif kind == 2:
            kept.chmod(reader.integer(0, 0o777))
        elif kind == 3:
            kept.rename(folder / "other")
            kept.symlink_to(folder / "other")
        elif kind == 4:
            kept.rename(folder / f"key-{reader.take(16).hex()}.so")
        elif kind == 5:
            (folder / "key-.so").mkdir()
            harmed = False
        else:
            harmed = False
        found = kept_code(folder, "key")
        assert found in (code, None)
        assert harmed or found == code
    finally:
        shutil.rmtree(folder)


# -- references --------------------------------------------------------------------------------

_FILES = (
    "",
    "this is not Python",
    "import no_such_module",
    "raise SystemExit",
    "raise RecursionError('deep')",
    "def factory(shape, classes): return 3",
    "def factory(shape, classes): raise ValueError('two\\nlines')",
    "def factory(): pass",
    "factory = None",
    "from torch import nn\ndef factory(shape, classes): return nn.Linear(4, classes)",
    "from torch import nn\ndef factory(shape, classes): return nn.Linear(5, classes)",
    "from fedcohort import FedAvg as factory",
    "class factory: pass",
    "\0",
    "# -*- coding: no-such-codec -*-",
)
_PIECES = (
    *(":", ".py", "=", ",", ":factory", "factory", ":beta=0.5", ":=", "::", " ", "é", "\0", "/"),
    *("fedcohort", "fedcohort.selection", "DP3S", "dp3s", "no_such", "..", "rank=3", "none", "1"),
)


def references(reader):
    """Specs and references to users' files: an object, or one sentence."""
    if reader.flag():
        text = "".join(reader.choice(_PIECES) for _ in range(reader.integer(0, 5)))
        name, parameters = parse_spec(text)
        assert name == name.strip()
        assert all("=" not in key for key in parameters)
        make_selector(text) if reader.flag() else made(text, (4,), 3)
        return
    folder = Path(tempfile.mkdtemp())
    try:
        path = folder / reader.choice(("mine.py", "two words.py", "ünï.py", "a.b.py"))
        content = reader.choice(_FILES).encode()
        if reader.rarely():
            content = reader.take(40)
        path.write_bytes(content)
        reference = f"{path}:{reader.choice(('factory', 'other', '', '1x'))}"
        found = make_selector(reference) if reader.flag() else made(reference, (4,), 3)
        assert found is not None
    finally:
        shutil.rmtree(folder)
