"""Targets: what NVFlare sites answer, read by itself and in whole jobs."""

import contextlib
import logging
import math
import sys
import tempfile
from pathlib import Path

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from fedcohort.adapters.introductions import Limits
from fedcohort.nvflare.messages import read_change, read_introduction, read_loss
from fedcohort.selection import Need

sys.path.append(str(Path(__file__).parents[1] / "nvflare"))
from fake_workflow import CohortFake, Site, moved

_SENT = {"w": np.ones(3, np.float32), "b": np.zeros((), np.float32)}
_VECTORS = {"profile": np.ones(4, np.float32), "label_counts": np.ones(4, np.int64)}


class Hostile:
    """Not an array, and not willing to become one."""

    def __array__(self, *_, **__):
        raise KeyError("no")


def strange(reader):
    """Return something that may stand where an array or a number is expected."""
    kind = reader.integer(0, 6)
    if kind == 0:
        return reader.array(tuple(reader.integer(0, 4) for _ in range(reader.integer(1, 2))))
    if kind == 1:
        return reader.array((3,)).tolist()
    if kind == 2:
        return np.full(3, reader.choice((2**62, -(2**62), 255)), reader.choice((np.int64, "O")))
    if kind == 3:
        return reader.choice((10**400, -(10**400), [[1.0], [2.0, 3.0]], Hostile(), b"\xff", {1, 2}))
    if kind == 4:
        return np.zeros(3, reader.choice(("<U3", "|S2", "<c16", "<M8[s]", "<f2", "|b1", ">f4")))
    return reader.value()


def damage(reader, reply):
    """Change up to three things in a right answer."""
    for _ in range(reader.integer(0, 3)):
        where = reader.integer(0, 6)
        parts = {0: reply.params, 1: reply.params, 2: reply.metrics, 3: reply.meta}.get(where)
        if isinstance(parts, dict):
            known = tuple(parts)
            fresh = reader.rarely() or not known
            name = reader.text(4) if fresh else reader.choice(known)
            if reader.rarely():
                parts.pop(name, None)
            else:
                parts[name] = strange(reader)
        elif where == 4:
            reply.params_type = reader.choice((ParamsType.FULL, ParamsType.DIFF, None))
        elif where == 5:
            reply.params = reader.choice((None, {}, [], 3, np.ones(3)))
        else:
            reply.metrics = reader.choice((None, {}))
    return reply


def site_replies(reader):
    """One answer: what is read of it is finite and has the right shape, or it is refused."""
    kind, limits = reader.integer(0, 2), Limits()
    params = dict(_SENT if kind == 2 else _VECTORS)
    metrics = {"num-examples": 7, "loss": 0.5}
    meta = {"client_name": "site-1", "fedcohort": {"tags": ["gpu"]}}
    reply = damage(reader, FLModel(params=params, metrics=metrics, meta=meta))
    if kind == 0:
        needs = [need for need in (Need.PROFILE, Need.LABEL_COUNTS) if reader.flag()]
        said = read_introduction(reply, needs, limits, expected={})
        assert 0 < said.size < math.inf
        assert all(isinstance(tag, str) for tag in said.tags)
        for vector in said.vectors.values():
            assert vector.ndim == 1
            assert np.isfinite(vector).all()
    elif kind == 1:
        assert math.isfinite(read_loss(reply, limits))
    else:
        change = read_change(reply, _SENT, limits, changes=True)
        assert change.shape == (4,)
        assert np.abs(change).max() <= 2 * limits.largest_value


def jobs(reader):
    """A job in which one site answers whatever it likes: it ends, with a model that can be used."""
    with quiet("fedcohort.nvflare"):
        _job(reader)


@contextlib.contextmanager
def quiet(name):
    """Keep a logger from saying anything, for a while."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _job(reader):
    rng = reader.rng()
    there = {
        f"site-{i}": Site(10 + i, rng.normal(size=4).astype(np.float32), loss=1.0) for i in range(4)
    }

    class Stranger(Site):
        def answer(self, task, request):
            reply = super().answer(task, request)
            return None if reader.rarely() else damage(reader, reply)

    there["site-4"] = Stranger(
        10, np.ones(4, np.float32), lambda p, _: moved(p, 1.0, NUM_STEPS_CURRENT_ROUND=5), 1.0
    )
    if reader.flag():
        # Who answers first must not settle what the others are taken for.
        there = dict(reversed(there.items()))
    selector = reader.choice(("fedavg", "match", "pow-d", "clustered", "divfl"))
    with tempfile.TemporaryDirectory() as folder:
        settings = {"num_clients": 4, "num_rounds": 2, "selector": selector}
        job = CohortFake(sites=there, folder=Path(folder), **settings)
        job.run()
    assert len(job.history) == 2
    assert job.model.params.keys() == {"w"}
    assert job.model.params["w"].shape == (3,)
    # The honest sites add 1 a round; a stranger's values are bounded.
    assert np.isfinite(job.model.params["w"]).all()
    assert np.abs(job.model.params["w"]).max() <= 2 * Limits().largest_value
    if all("site-4" not in summary.trained for summary in job.history):
        np.testing.assert_allclose(job.model.params["w"], 2.0, rtol=1e-6)
