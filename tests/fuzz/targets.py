"""What is fuzzed, one function a target, from bytes.

A target may raise `FedcohortError`, whose message must be one sentence, and nothing else; what it
returns is checked against what must hold. To add one, write the function and name it in `TARGETS`.
"""

import contextlib
import io
import itertools
import json
import math
import os
import tempfile
import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
from damage import kernel_caches, references, stores
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from reader import Reader
from sites import jobs, site_replies

from fedcohort import advise, list_selectors, make_selector
from fedcohort.adapters.checkpoint import Checkpoint
from fedcohort.cli.advise import read_profiles
from fedcohort.dpp import KDPP
from fedcohort.errors import FedcohortError
from fedcohort.federation import load_dataset, parse_skew
from fedcohort.flower.protocol import Limits, read_introduction, read_loss
from fedcohort.flower.replies import ReplyReader as Replies
from fedcohort.leaderboard.challenge import challenge
from fedcohort.leaderboard.published import Published
from fedcohort.metrics import gemd
from fedcohort.privacy import PROTECTED, Promise
from fedcohort.selection import Need, Outcome
from fedcohort.simulation import RunConfig
from fedcohort.simulation.config import SETTINGS
from fedcohort.simulation.seeds import parse_seeds
from fedcohort.simulation.study import parse_study
from fedcohort.simulation.system import parse_availability

_VECTORS = ("profile", "label_counts")
_PUBLISHED = Published()
_GUARDED = ("dp3s", "match", "kcenter", "ward")


def run(target, data):
    """Run one case; return whether the input was refused."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            # A warning is not an answer; only what comes of it counts.
            warnings.simplefilter("ignore")
            TARGETS[target](Reader(data))
    except FedcohortError as refusal:
        message = str(refusal)
    else:
        return False
    assert message.strip(), "a refusal says nothing"
    assert "Traceback" not in message
    return True


# -- selection ---------------------------------------------------------------------------------


def check_cohort(selector, cohort, k, available):
    ids = cohort.ids
    assert ids.shape == cohort.weights.shape == (k,)
    assert np.isin(ids, available).all(), "a cohort holds a client that is not available"
    assert selector.repeats or len(np.unique(ids)) == k, "a client stands in a cohort twice"
    assert np.isfinite(cohort.weights).all(), "a weight is not finite"
    assert (cohort.weights >= 0).all(), "a weight is negative"
    # Unbiased weights sum to 1 on average only.
    if selector.name != "delta" and getattr(selector, "weights", "size") != "unbiased":
        assert math.isclose(cohort.weights.sum(), 1, rel_tol=1e-6), "weights do not sum to 1"


def some_selector(reader):
    name = reader.choice(list_selectors())
    options = {}
    if name in _GUARDED and reader.flag():
        options["guard"] = reader.choice(("profiles", "updates"))
    if name == "dp3s" and reader.flag():
        options |= {"kernel": "low-rank", "rank": reader.integer(1, 12)}
        if reader.flag():
            options["weights"] = "unbiased"
    if name == "match" and reader.flag():
        options["evenness"] = reader.choice(("samples", "clients", "strict", "free"))
        options["weights"] = reader.choice(("size", "matched"))
    if name == "fedgs" and reader.flag():
        options["features"] = "labels"
    return make_selector(name, **options)


def arguments(reader, count):
    width = reader.integer(1, 5)
    sizes = None
    if reader.flag():
        sizes = np.abs(reader.array((count,))) if reader.flag() else reader.array((count,))
    return {
        "profiles": reader.array((count, width)),
        "sizes": sizes,
        "label_counts": np.abs(reader.rng().integers(0, 50, (count, 4))),
    }


def profiles(reader):
    """Profiles of every kind: a cohort is k distinct clients, or one sentence."""
    count = reader.integer(1, 14)
    selector = make_selector(reader.choice(_GUARDED), guard=reader.choice(("off", "profiles")))
    given = arguments(reader, count)
    selector.fit(given["profiles"], sizes=given["sizes"])
    k = reader.integer(0, count + 1) if reader.rarely() else reader.integer(1, count)
    available = np.arange(count)
    if reader.flag():
        available = available[reader.rng().random(count) < 0.7]
    cohort = selector.select(k, available, rng=reader.rng())
    check_cohort(selector, cohort, k, available)
    again = make_selector(selector.name, guard=selector.guard)
    again.restore(selector.state())
    seed = reader.integer(0, 1000)
    cohorts = [s.select(k, available, rng=np.random.default_rng(seed)) for s in (selector, again)]
    assert np.array_equal(cohorts[0].ids, cohorts[1].ids), "a restored selector goes astray"


def lives(reader):
    """The life of any selector: joins, leaves, rounds, answers of every kind."""
    selector = some_selector(reader)
    count = reader.integer(1, 10)
    selector.fit(**arguments(reader, count))
    fresh = 100
    for _ in range(reader.integer(1, 6)):
        with contextlib.suppress(FedcohortError):
            act = reader.integer(0, 5)
            if act == 0:
                coming = reader.integer(1, 3)
                selector.join(np.arange(fresh, fresh + coming), **arguments(reader, coming))
                fresh += coming
            elif act == 1:
                some = selector.clients[reader.rng().random(len(selector.clients)) < 0.4]
                selector.leave(some)
            else:
                play(reader, selector)
    saved = selector.state()
    assert all(isinstance(a, np.ndarray) and not a.dtype.hasobject for a in saved.values())


def play(reader, selector):
    present = selector.clients
    available = present[reader.rng().random(len(present)) < 0.8]
    k = reader.integer(1, max(1, len(available)))
    rng = reader.rng()
    for need, ids in selector.ask(k, available, rng=rng).items():
        assert need in selector.needs
        assert np.isin(ids, present).all()
        shape = (len(ids), 12) if need is Need.UPDATE else (len(ids),)
        selector.tell(need, ids, reader.array(shape))
    cohort = selector.select(k, available, rng=rng)
    check_cohort(selector, cohort, k, available)
    ids = np.unique(cohort.ids)
    trained = reader.rng().random(len(ids)) < 0.8
    selector.observe(
        Outcome(
            ids,
            trained,
            losses=np.asarray(reader.array((len(ids),))),
            updates=np.asarray(reader.array((len(ids), 12))),
            durations=np.asarray(reader.array((len(ids),))),
            passes=np.where(trained, 1.0, 0.0),
            capacity=np.ones(len(ids)),
        )
    )


# -- k-DPPs ------------------------------------------------------------------------------------


def kernels(reader):
    """A small kernel: probabilities are determinants over their sum, by enumeration."""
    count = reader.integer(1, 6)
    k = reader.integer(1, count)
    if reader.flag():
        factor = reader.rng().normal(size=(count, reader.integer(1, count)))
        kernel = factor @ factor.T * reader.choice((1.0, 1e-6, 1e6, 1e100))
    else:
        kernel = reader.array((count, count))
        kernel = kernel @ kernel.T if reader.flag() else kernel
    process = KDPP.from_kernel(kernel, k)
    cohorts = np.array(list(itertools.combinations(range(count), k)))
    logs = np.asarray(process.log_probability(cohorts))
    assert not np.isnan(logs).any()
    total = np.exp(logs).sum()
    assert math.isclose(total, 1, rel_tol=1e-5), f"probabilities sum to {total}"
    draw = process.sample(reader.rng())
    assert draw.shape == (k,)
    assert len(np.unique(draw)) == k
    inclusion = process.inclusion_probabilities()
    assert math.isclose(inclusion.sum(), k, rel_tol=1e-6)
    matrix = np.asarray(kernel, np.float64)
    scaled = matrix / (np.abs(matrix).max() or 1.0)
    values = np.linalg.eigvalsh(scaled)
    if process.report.rank == count and values[0] > 1e-4:
        expected = np.array([np.linalg.det(scaled[np.ix_(c, c)]) for c in cohorts])
        np.testing.assert_allclose(np.exp(logs), expected / expected.sum(), rtol=1e-4, atol=1e-7)


# -- configurations ----------------------------------------------------------------------------

_FIELDS = list(json.loads(RunConfig().to_json()))


def configs(reader):
    """Fields of a run with values of every type, and configurations as text."""
    chosen = {reader.choice(_FIELDS): reader.value() for _ in range(reader.integer(0, 3))}
    config = RunConfig(**chosen)
    assert RunConfig.from_json(config.to_json()) == config
    assert len(config.key) == 16
    config.make_selector()


def stored_configs(reader):
    """Configurations as a damaged store may hold them."""
    known = json.loads(RunConfig().to_json())
    for _ in range(reader.integer(0, 3)):
        known[reader.choice(_FIELDS) if reader.flag() else reader.text()] = reader.value()
    text = reader.rest().decode("utf-8", "replace") if reader.rarely() else json.dumps(known)
    assert isinstance(RunConfig.from_json(text), RunConfig)


def words(reader):
    """Options with a grammar of their own."""
    text = reader.text(40) if reader.rarely() else grammar(reader)
    kind = reader.integer(0, 4)
    if kind == 0:
        parse_skew(text)
    elif kind == 4:
        parse_availability(text)
    elif kind == 1:
        seeds = parse_seeds(text, "--seeds")
        assert seeds
        assert all(type(seed) is int and seed >= 0 for seed in seeds)
    elif kind == 2:
        make_selector(text)
    else:
        count = SETTINGS["batch_size"].from_text(text)
        assert count is None or type(count) is int


def studies(reader):
    """Study files: tables of settings with values of every type, and plain nonsense."""
    if reader.rarely():
        source = reader.rest().decode("utf-8", "replace")
    else:
        tables = [("[base]", 4), *((("[[part]]"), 3) for _ in range(reader.integer(0, 2)))]
        source = "\n".join(line for name, most in tables for line in table(reader, name, most))
    study = parse_study(source, "study.toml")
    assert len({part.name for part in study.parts}) == len(study.parts) > 0
    assert all(isinstance(config, RunConfig) for config in study.configs)
    assert study.configs


def table(reader, name, most):
    yield name
    for _ in range(reader.integer(0, most)):
        key = reader.text(5) if reader.rarely() else reader.choice((*_FIELDS, *_STUDY_KEYS))
        values = [toml(reader) for _ in range(reader.integer(1, 3))]
        yield f"{key} = {values[0] if reader.flag() else '[' + ', '.join(values) + ']'}"


def toml(reader):
    """Return a TOML value, often one that a setting takes."""
    if reader.rarely():
        return json.dumps(reader.text())
    return reader.choice(_TOML)


_TOML = (
    *("1", "0.5", "10", '"H"', '"dp3s"', '"0..3"', '"0..99999999"', '"full"', '"mnist"', "true"),
    *("-1", "nan", "inf", "1e400", "2024-01-01", "{ a = 1 }", "[1, [2]]", "9" * 30, '"mlp"'),
)
_STUDY_KEYS = ("seeds", "target", "name", "skew", "selector", "batch_size")
_WORDS = (
    *("dp3s", "match", "guard", "rank", "none", "true", "full", "only(", "always(", "; ", ")"),
    *("H", "iid", "dirichlet:", "shards:", "0", "9", "1e9", "¹", "٣", "1_0", "nan", "inf", "99999"),
    *(":", "=", ",", "..", " "),
)


def grammar(reader):
    known = (
        "H",
        "iid",
        "0.5",
        "dirichlet:0.1",
        "shards:2",
        "0..9",
        "3,5..7",
        "dp3s:rank=9",
        "only(match; 3)",
        "full",
    )
    start = reader.choice(known) if reader.flag() else ""
    return start + "".join(reader.choice(_WORDS) for _ in range(reader.integer(0, 5)))


def advice(reader):
    """Advice on profiles of every kind, from Python and from a file."""
    count = reader.integer(1, 14)
    given = arguments(reader, count)
    k = reader.integer(0, count + 1) if reader.rarely() else reader.integer(1, count)
    table, sizes = given["profiles"], given["sizes"]
    if reader.flag():
        arrays = {"profiles": table} | ({} if sizes is None else {"sizes": sizes})
        with temporary(damaged(reader, packed(arrays))) as path:
            table, sizes = read_profiles(path)
    # Fewer cohorts than users get: the arithmetic is the same, and more cases fit into a night.
    with mock.patch("fedcohort.advice._COHORTS", 4):
        found = advise(
            table,
            sizes,
            k,
            lost=reader.choice((0.0, 0.3, 1.0, -1.0, math.nan)),
            agreements=[reader.choice((0.0, 0.4, 1.0, math.nan))] * count
            if reader.flag()
            else None,
            shared=reader.choice((0.0, 0.5, 1.0)),
        )
    assert found.gain is None or found.gain >= 0
    assert all(math.isfinite(distance) for distance in found.distances.values())
    assert str(found).strip()
    json.dumps(found.to_json(), allow_nan=False)


def challenges(reader):
    """Who enters the arena: any words for the rule, the conditions and the seeds."""
    rule = grammar(reader) if reader.flag() else reader.choice(("match", "dp3s", "fedavg"))
    names = [c.name for c in _PUBLISHED.conditions]
    wanted = [
        reader.text(10) if reader.rarely() else reader.choice((*names, "digits", "mnist"))
        for _ in range(reader.integer(0, 3))
    ]
    seeds = [reader.integer(-1, 12) for _ in range(reader.integer(0, 2))] or None
    asked = challenge(rule, wanted, seeds, _PUBLISHED)
    assert asked.conditions
    assert asked.seeds
    assert all(set(asked.seeds) <= set(c.seeds) for c in asked.conditions)


def promises(reader):
    """A promise has noise that is finite and above 0, less for more samples."""
    epsilon = reader.number() if reader.rarely() else reader.integer(1, 2100) / 100
    power = 10.0 ** -reader.integer(1, 30)
    whom = reader.text(6) if reader.rarely() else reader.choice(PROTECTED)
    promise = Promise(epsilon, reader.number() if reader.rarely() else power, whom)
    samples = reader.integer(1, 10**6)
    noise = promise.noise(samples)
    assert np.isfinite(noise)
    assert noise > 0
    assert noise <= promise.noise(max(1, samples // 2))


def mixtures(reader):
    """GEMD lies between 0 and 2, and is 0 for everyone together."""
    count = reader.integer(1, 8)
    counts = reader.rng().integers(0, 9, (count, reader.integer(1, 5)))
    if reader.flag():
        counts = np.abs(reader.array(counts.shape))
    rng, low = reader.rng(), -1 if reader.rarely() else 0
    ids = rng.integers(low, count, 0 if reader.rarely() else reader.integer(1, 6))
    value = gemd(counts, ids)
    assert 0 <= value <= 2 + 1e-9
    assert gemd(counts, np.arange(count)) < 1e-9


# -- files -------------------------------------------------------------------------------------

_TYPES = ("<f8", "<f4", "|u1", "<i8", "<i2", "|b1", "<U3", "|S2", "<c16", "<M8[s]", "|O", ">f4")


def federation_files(reader):
    """`.npz` federations: with arrays of every kind, and with damaged bytes."""
    rng = reader.rng()
    count = reader.integer(0, 6)
    arrays = {
        "x": rng.normal(size=(count, *((3,), (2, 2), (1, 2, 2), ())[reader.integer(0, 3)])),
        "y": rng.integers(0, 3, count),
        "client": rng.integers(0, 3, count),
    }
    for name in ("x", "y", "client", "clients", "x_test", "y_test"):
        if reader.rarely():
            arrays[name] = strange_array(reader)
        if reader.rarely():
            arrays.pop(name, None)
    dataset = load_file(damaged(reader, packed(arrays)))
    assert len(dataset.x_train) == len(dataset.y_train) > 0
    assert np.isfinite(dataset.x_train).all()
    assert np.isfinite(dataset.y_train).all()
    if dataset.task == "classification":
        assert 0 <= dataset.y_train.min() <= dataset.y_train.max() < dataset.classes
    if dataset.client is not None:
        assert len(dataset.client) == len(dataset.y_train)
        assert 0 <= dataset.client.min() <= dataset.client.max() < len(dataset.client_names)


def strange_array(reader):
    shape = tuple(reader.integer(0, 3) for _ in range(reader.integer(0, 4)))
    values = reader.rng().integers(-3, 300, shape)
    return values.astype(np.dtype(reader.choice(_TYPES)))


def packed(arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def damaged(reader, content):
    """Change bytes inside the archive and, at times, members whose checksums stay right."""
    if reader.rarely():
        return reader.rest()
    if reader.flag():
        content = rewritten(reader, content)
    content = bytearray(content)
    for _ in range(reader.integer(0, 3) if reader.flag() else 0):
        content[reader.integer(0, len(content) - 1)] = reader.integer(0, 255)
    if reader.rarely():
        del content[reader.integer(0, len(content)) :]
    return bytes(content)


def rewritten(reader, content):
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            member = bytearray(old.read(name))
            if member and reader.flag():
                # Most of what can go wrong stands in the header.
                place = reader.integer(0, min(len(member), 128) - 1)
                member[place] = reader.integer(0, 255)
            new.writestr(name, bytes(member))
    return buffer.getvalue()


def load_file(content):
    with temporary(content) as path:
        return load_dataset(str(path))


@contextlib.contextmanager
def temporary(content):
    handle, name = tempfile.mkstemp(suffix=".npz")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        yield Path(name)
    finally:
        Path(name).unlink()


def checkpoints(reader):
    """The Flower server's state, damaged."""
    arrays = {
        "round": np.array(3),
        "selector": np.array("dp3s"),
        "model.names": np.array(["w"]),
        "model.0": np.ones(3),
        "first.names": np.array(["w"]),
        "first.0": np.ones(3),
        "part:selector.names": np.array(["client.size"]),
        "part:selector.0": np.ones(4),
    }
    for name in list(arrays):
        if reader.rarely():
            arrays[name] = strange_array(reader)
        if reader.rarely():
            del arrays[name]
    with temporary(damaged(reader, packed(arrays))) as path:
        loaded = Checkpoint.load(path)
        assert isinstance(loaded.round, int)


# -- Flower ------------------------------------------------------------------------------------


def some_array(reader):
    """Return what a client may send as an array: honest bytes, or a header that lies."""
    if reader.flag():
        return Array(np.asarray(reader.array((reader.integer(0, 5),)), np.float32))
    shape = [reader.integer(0, 4) for _ in range(reader.integer(0, 3))]
    if reader.rarely():
        shape = [2**40, 2**40]
    kind = reader.choice(_TYPES)
    header = f"{{'descr': '{kind}', 'fortran_order': {reader.flag()}, 'shape': {tuple(shape)}, }}"
    if reader.rarely():
        header = reader.text(60)
    encoded = header.encode() + b"\n"
    version = reader.choice((b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x09"))
    length = len(encoded).to_bytes(2 if version[0] == 1 else 4, "little")
    body = reader.take(reader.integer(0, 64))
    if reader.flag() and math.prod(shape) < 100 and kind != "|O":
        body = body.ljust(64, b"\0")[:1] * math.prod(shape) * np.dtype(kind).itemsize
    data = b"\x93NUMPY" + version + length + encoded + body
    stype = "numpy.ndarray" if not reader.rarely() else reader.text()
    return Array(dtype=kind, shape=tuple(shape), stype=stype, data=data)


def metric(reader):
    return reader.choice((1, 0, -1, 2**62, 0.5, float("nan"), float("inf"), 1e300, [1, 2], [0.5]))


def replies(reader):
    """What a node answers to queries and after training: mostly right, with things wrong."""
    kind = reader.integer(0, 2)
    training = kind == 2
    arrays = {"w": np.ones(3, np.float32)} if training else dict.fromkeys(_VECTORS, np.ones(4))
    record = {name: Array(values) for name, values in arrays.items()}
    metrics = {"num-examples": 7, "loss": 0.5, "train_loss": 0.25}
    names = {"client-id": "ward-7"}
    for _ in range(reader.integer(0, 3)):
        where = reader.integer(0, 5)
        if where in (0, 1):
            record[reader.choice((*record, reader.text(4)))] = some_array(reader)
        elif where == 2:
            metrics[reader.choice((*metrics, reader.text(4)))] = metric(reader)
        elif where == 3:
            names["client-id"] = reader.choice((reader.text(), 3, 0.5, "x" * 300))
        elif where == 4:
            lost = record if reader.flag() else metrics
            lost.pop(next(iter(lost), None), None)
        elif where == 5:
            names.clear()
    content = RecordDict({"arrays" if training else "vectors": ArrayRecord(record)})
    content["metrics"] = MetricRecord(metrics)
    content["fedcohort"] = ConfigRecord(names)
    for name in list(content):
        if reader.rarely():
            del content[name]
    limits = Limits()
    if kind == 0:
        needs = [need for need in (Need.PROFILE, Need.LABEL_COUNTS) if reader.flag()]
        said = read_introduction(content, needs, limits, expected={})
        assert 0 < said.size < math.inf
        for vector in said.vectors.values():
            assert vector.ndim == 1
            assert np.isfinite(vector).all()
    elif kind == 1:
        assert math.isfinite(read_loss(content, limits))
    else:
        sent = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
        reader_of = Replies("num-examples", ("train_loss", "loss"), True, True, limits)
        update = reader_of.update(4, SimpleNamespace(content=content), 0.1, sent)
        assert np.isfinite(update.change).all()
        assert update.change.shape == (3,)
        assert update.loss is None or math.isfinite(update.loss)


TARGETS = {
    function.__name__: function
    for function in (
        profiles,
        lives,
        kernels,
        configs,
        stored_configs,
        studies,
        words,
        advice,
        challenges,
        promises,
        mixtures,
        federation_files,
        checkpoints,
        replies,
        site_replies,
        jobs,
        stores,
        kernel_caches,
        references,
    )
}
