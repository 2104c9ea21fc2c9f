"""What an object's digest depends on, and what it does not."""

import collections
import copy
import dataclasses
import enum
import functools
import importlib
import io
import logging
import os
import pickle
import subprocess
import sys
import threading
import types
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedcohort.errors import InvalidInputError
from fedcohort.simulation import fingerprint as module
from fedcohort.simulation.fingerprint import common_fingerprint, fingerprint

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


def of(thing):
    return fingerprint(thing, "the loss mine:loss")


class Weighted:
    def __init__(self, a):
        self.a = a

    def __call__(self, x):
        return x * self.a


class Slotted:
    __slots__ = ("a", "self")

    def __init__(self, a):
        self.a, self.self = a, [self]


def closure(a):
    return lambda x: x * a


def default(a):
    def times(x, a=a):
        return x * a

    return times


def keyword(a):
    def times(x, *, a=a):
        return x * a

    return times


def inner(a):
    def outer(x):
        return [(lambda: y * a)() for y in x]

    return outer


def cached(a):
    return functools.lru_cache(closure(a))


def decorated(a):
    return torch.no_grad()(closure(a))


def attribute(a):
    def times(x):
        return x * times.a

    times.a = a
    return times


def method(a):
    return Weighted(a).__call__


def own_class(a):
    class Own(Weighted):
        share = a

    return Own


def derived(a):
    class Base:
        def factor(self):
            return a

    class Own(Base):
        pass

    return Own


def descriptors(a):
    class Own:
        @property
        def one(self):
            return a

        @staticmethod
        def two():
            return a

    return Own()


def parameters(a):
    return dataclasses.make_dataclass("Own", [("a", float, dataclasses.field(default=a))])


def members(a):
    return enum.Enum("Own", {"A": a})


def executed(a):
    space = {}
    exec(f"def times(x):\n    return x * {a}", space)
    return space["times"]


def named(a):
    space = {"HELD": a}
    exec("def times(x):\n    return helper(x)\ndef helper(x):\n    return x * HELD", space)
    return space["times"]


def long_tensor(a):
    held = torch.ones(5000)
    held[2500] = a
    return lambda x: x * held


def hooked(a):
    layer = nn.ReLU()
    layer.register_forward_hook(lambda *given: given[2] * a)
    return layer


def layer(a):
    held = nn.Linear(2, 2)
    with torch.no_grad():
        for value in held.parameters():
            value.fill_(a)
    return held


class Scaled(nn.Module):
    a: float

    def __init__(self, a):
        super().__init__()
        self.a = a

    def forward(self, x):
        return x * self.a


def script(text):
    return torch.jit.CompilationUnit(f"def times({text}\n").times


def scripted_code(a):
    return script(f"x):\n    return x * {a}")


def scripted_default(a):
    return script(f"x, a: float = {a}):\n    return x * a")


def scripted_attribute(a):
    return torch.jit.script(Scaled(a))


def scripted_inside(a):
    return nn.Sequential(torch.jit.script(nn.LeakyReLU(a)))


def scripted_layer(a):
    return torch.jit.script(nn.Sequential(layer(a)))


def traced_hook(a):
    traced = traced_layer(1.0)
    traced.register_forward_hook(lambda *given: given[2] * a)
    return traced


def loaded(a):
    file = io.BytesIO()
    torch.jit.save(scripted_attribute(a), file)
    file.seek(0)
    return torch.jit.load(file)


def traced_constant(a):
    return torch.jit.trace(long_tensor(a), torch.ones(5000))


def traced_layer(a):
    return torch.jit.trace(layer(a), torch.ones(2, 2))


def traced_python(a):
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x * a

    return torch.jit.trace(lambda x: Own.apply(x) + 1, torch.ones(2))


def frozen(a):
    return torch.jit.freeze(scripted_attribute(a).eval())


def compiled_inside(a):
    return nn.Sequential(torch.compile(Scaled(a), backend="eager"))


def symbolic(a):
    return torch.fx.symbolic_trace(Scaled(a))


def symbolic_layer(a):
    return torch.fx.symbolic_trace(nn.Sequential(layer(a)))


def symbolic_graph(a):
    return symbolic(a).graph


def symbolic_call(a):
    graph = torch.fx.Graph()
    graph.output(graph.call_function(default(a), (graph.placeholder("x"),)))
    return graph


MAKERS = [
    *(scripted_code, scripted_default, scripted_attribute, scripted_inside, scripted_layer),
    *(traced_hook, loaded, frozen, traced_constant, traced_layer, traced_python, compiled_inside),
    *(symbolic, symbolic_layer, symbolic_graph, symbolic_call),
    *(closure, default, keyword, inner, cached, decorated, attribute, method, own_class, derived),
    *(descriptors, parameters, members, executed, named, long_tensor, hooked, layer),
    *(Weighted, Slotted, torch.tensor, np.float32, np.array, nn.LeakyReLU, str),
    *(lambda a: functools.partial(closure(2), a), lambda a: F.normalize if a < 1 else F.relu),
    *(lambda a: {"b": {a}, "a": [a]}, lambda a: collections.OrderedDict(a=a)),
    *(lambda a: collections.defaultdict(list, a=a), lambda a: np.array([a, None], object)),
    *(
        lambda a: np.ma.masked_array([1, 2], [0, a > 1]),
        lambda a: torch.ones(2, dtype=torch.half) * a,
    ),
    *(lambda a: np.random.default_rng(int(a)), lambda a: types.SimpleNamespace(a=a)),
    *(lambda a: layer(1).requires_grad_(a > 1), lambda a: torch.compile(closure(a))),
]


@pytest.mark.parametrize("make", [pytest.param(make, id=make.__name__) for make in MAKERS])
def test_what_an_object_holds_is_part_of_its_digest(make):
    assert of(make(0.5)) == of(make(0.5))
    assert of(make(0.5)) != of(make(1.5))


def test_running_code_does_not_change_it():
    times = named(3)
    before = of(times)
    for _ in range(1000):
        times(2)
    assert of(times) == before


def test_using_a_model_does_not_change_it():
    for model in (scripted_attribute(2.0), traced_layer(2.0), symbolic_layer(2.0)):
        before = of(model)
        for _ in range(3):
            copy.deepcopy(model)(torch.ones(2, 2))
            model(torch.ones(2, 2))
        assert of(model) == before


@pytest.mark.parametrize("use", [copy.copy, pickle.dumps], ids=["copy", "pickle"])
def test_copying_does_not_change_it(use, monkeypatch):
    class Plain:
        pass

    monkeypatch.setattr(sys.modules[__name__], "Plain", Plain, raising=False)
    Plain.__qualname__ = "Plain"
    before = of(Plain)
    use(Plain())
    assert "__slotnames__" in vars(Plain)
    assert of(Plain) == before


@pytest.mark.parametrize("end", ["return x * 3", "x.append('a')", "return lambda: 'a'"])
def test_comments_docstrings_and_lines_do_not_matter(end):
    def times(text):
        space = {}
        exec(text, space)
        return of(space["times"])

    plain = times(f"def times(x):\n    {end}")
    assert times(f"\n\n# A comment.\ndef times(x):\n    # More.\n\n    {end}") == plain
    assert times(f"def times(x):\n    'It times.'\n    {end}") == plain
    assert times(f"def times(x):\n    'a'\n    {end}") == plain
    branch = "x, n: int):\n    if n > 0:\n        {}x = x + n\n    return x"
    assert of(script(branch.format(""))) == of(script(branch.format("# More.\n\n        ")))


def test_docstrings_of_a_class_in_a_function_do_not_matter():
    def made(docstring, value="'a'"):
        space = {}
        lines = ("def make():", " class Own:", f"  {docstring}", f"  a = {value}", "  b = len(a)")
        lines += ("  def f(self):", f"   {docstring}", "   return self.a.upper", " return Own")
        exec("\n".join(lines), space)
        return of(space["make"])

    assert len({made(""), made("'It is.'"), made("'a'")}) == 1
    assert made("", "'b'") != made("")


def test_what_reads_as_a_docstring_and_is_none_does_matter():
    found = {of(eval(f"lambda: [{a!r} for _ in (1, 2)]")) for a in "ab"}
    found |= {of(eval(f"lambda: {a!r}")) for a in "ab"}
    assert len(found) == 4


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Return a function that writes modules and imports the first of them anew."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    written = set()

    def write(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
        written.update(texts)
        for name in written:
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module(next(iter(texts)))

    yield write
    for name in written:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "text",
    [
        "from own_acts import act\ndef loss(x): return act(x)",
        "import own_acts\ndef loss(x): return own_acts.act(x)",
        "import own_acts as a\nclass loss:\n    def f(self, x): return a.act(x)",
        "def loss(x):\n    from own_acts import act\n    return act(x)",
        "import own_acts\ndef loss(x): return getattr(own_acts, 'act')(x)",
    ],
    ids=["function", "attribute", "in a class", "inside", "whole"],
)
def test_helpers_in_other_files_are_part_of_it(files, text):
    acts = "import own_deep\ndef act(x): return own_deep.f(x) * {}"
    deep = "def f(x): return x * {}"
    found = [
        of(files(own_main=text, own_acts=acts.format(a), own_deep=deep.format(b)).loss)
        for a, b in ((1, 1), (1, 1), (1, 2), (2, 1))
    ]
    assert found[0] == found[1]
    assert len(set(found)) == 3


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("from own_acts import act\ndef loss(x): return act(x)", False),
        ("def loss(x):\n    from own_acts import act\n    return act(x)", True),
    ],
)
def test_docstrings_of_helpers_matter_where_their_whole_file_does(files, text, whole):
    acts = "def act(x):\n    '{}'\n    return x"
    one, two = (of(files(own_main=text, own_acts=acts.format(a)).loss) for a in ("One.", "Two."))
    assert (one != two) == whole


def test_values_that_are_set_in_a_module_of_settings_are_part_of_it(files):
    main = files(own_main="import own_cfg\ndef loss(x): return x * own_cfg.a", own_cfg="a = 1")
    before = of(main.loss)
    main.own_cfg.a = 2
    assert of(main.loss) != before


def test_what_is_imported_is_found_in_cycles(files):
    files(own_one="import own_two", own_two="import own_one")
    main = files(own_main="def loss(x):\n    import own_one, own_two, numpy, nowhere")
    assert of(main.loss) == of(main.loss)


def test_an_installed_package_is_its_name_and_its_files(tmp_path, monkeypatch):
    site = tmp_path / "site-packages"
    (site / "rules-1.dist-info").mkdir(parents=True)
    (site / "rules.py").write_text("import time\ndef rule(x): return x, time.time()")
    (site / "rules-1.dist-info" / "METADATA").write_text("Name: rules\nVersion: 1\n")
    monkeypatch.syspath_prepend(site)
    rule = importlib.import_module("rules").rule
    found = []
    try:
        for content in ("aa", "aa", "bb"):
            record = f"rules.py,sha256={content},9\n__pycache__/rules.pyc,,\n"
            (site / "rules-1.dist-info" / "RECORD").write_text(record)
            module._edition.cache_clear()
            found.append(of(rule))
    finally:
        del sys.modules["rules"]
        module._edition.cache_clear()
    assert found[0] == found[1] != found[2]


def test_what_is_installed_is_gone_through_once(monkeypatch):
    scans = []

    def scan():
        scans.append(1)
        return {"one": [], "two": []} if len(scans) == 1 else {"late": []}

    monkeypatch.setattr(module, "_distributions", {})
    monkeypatch.setattr(importlib.metadata, "packages_distributions", scan)
    for package in ("one", "two", "one"):
        module._edition.__wrapped__(package)
    assert len(scans) == 1
    module._edition.__wrapped__("late")
    assert len(scans) == 2, "it was installed since"


def test_what_cannot_change_a_result_is_passed_over(tmp_path):
    with (tmp_path / "log").open("w") as log:
        held = [threading.Lock(), threading.Event(), logging.getLogger("a"), log]
        held += [threading.RLock(), weakref.ref(Weighted), weakref.WeakKeyDictionary()]
        other = [threading.Lock(), threading.Event(), logging.getLogger("b"), log]
        other += [threading.RLock(), weakref.ref(Slotted), weakref.WeakKeyDictionary()]
        assert of(Weighted(held)) == of(Weighted(other))


def test_what_is_not_the_same_in_another_process_is_refused(tmp_path):
    (tmp_path / "x").write_text("")
    with (tmp_path / "x").open() as file:
        for held in (file, (x for x in ())):
            with pytest.raises(
                InvalidInputError,
                match=r"cannot say what the loss mine:loss → a is, of type .*: make it inside",
            ):
                of(Weighted(held))
    one, two = Weighted(1), Weighted(2)
    one.a, two.a = {two}, {one}
    with pytest.raises(InvalidInputError, match="whose sets or keys hold each other"):
        of(one)


def test_of_built_models_the_seeds_doing_is_left_out():
    def built(seed, a=2.0, wide=3):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(2, wide), nn.LSTM(wide, 2))
        model.noise, model.fixed, model.a = torch.randn(9), torch.full((9,), a), a
        model.register_buffer("own", torch.full((9,), a))
        return model

    def common(seeds, **settings):
        return common_fingerprint((built(seed, **settings) for seed in seeds), "the model")

    assert common((0, 1)) == common((2, 3))
    assert common((0, 1)) != common((0, 1), a=3.0)
    assert common((0, 1)) != common((0, 1), wide=4)
    assert common_fingerprint([layer(1), layer(1)], "m") != common_fingerprint([layer(2)] * 2, "m")


PROGRAM = """
import dataclasses, functools, logging
import numpy as np, torch
from torch import nn
from fedcohort import Cohort, Selector
from fedcohort.simulation.fingerprint import fingerprint

log = logging.getLogger(__name__)
NAMES = {"one", "two", "three", ("a", 1), 4.5}

@dataclasses.dataclass(kw_only=True, eq=False)
class Own(Selector):
    share: float = 0.5
    held: dict = dataclasses.field(default_factory=dict)

    def _choose(self, k, rows, rng):
        log.info(NAMES)
        return self._cohort(rows[:k])

class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign() if str(x) in {"a", "b", "c", "d"} else x

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_forward_hook(lambda *given: given[2])
        self.act = functools.partial(Sign.apply)
        self.kept = {name: np.float64(len(str(name))) for name in NAMES}

    def forward(self, x):
        from own_helper import helped
        return helped(self.act(x))

torch.manual_seed(0)
layers = nn.Sequential(nn.Flatten(), nn.Linear(2, 3), nn.ReLU())
things = [Own, Net, Net(), NAMES, torch.relu, np.exp, torch.jit.script(layers)]
things += [torch.jit.trace(layers, torch.ones(2, 2)), torch.fx.symbolic_trace(layers)]
things += [torch.jit.CompilationUnit("def one(x): return x + 1\\n").one]
print(*(fingerprint(thing, "it") for thing in things))
"""


MOVED = """# A comment.
import json, torch

class Other(torch.autograd.Function):
    pass

# What TorchScript compiles after these has other names.
torch.jit.script(torch.nn.Sequential(torch.nn.Linear(3, 2)))
torch.jit.trace(torch.nn.Sequential(torch.nn.Linear(3, 2)), torch.ones(2, 3))
"""


def test_it_is_the_same_in_another_process_and_folder(tmp_path):
    found = []
    for seed, text in (("1", PROGRAM), ("2", f"{MOVED}{PROGRAM}"), ("3", None)):
        folder = tmp_path / seed
        folder.mkdir()
        (folder / "own_helper.py").write_text("def helped(x): return x")
        (folder / "main.py").write_text(text or "")
        done = subprocess.run(
            [sys.executable, "-" if text is None else "main.py"],
            input=PROGRAM,
            cwd=folder,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.split())
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) == 10
