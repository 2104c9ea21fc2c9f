import re

import pytest
from figures import write_figures

from fedcohort import list_selectors
from fedcohort.simulation import RoundRecord, RunConfig, Store

ALL = ("accuracy", "gemd", "profiling", "profiles", "kernels", "initialisations")


@pytest.fixture(scope="module")
def drawn(varied_store, tmp_path_factory):
    return write_figures(varied_store, tmp_path_factory.mktemp("figures"))


def test_every_figure_of_the_paper_is_drawn_in_every_format(drawn):
    assert drawn.left_out == {}
    assert [p.name for p in drawn.paths] == [f"{n}.{e}" for n in ALL for e in ("pdf", "svg", "png")]
    starts = {".pdf": b"%PDF", ".svg": b"<?xml", ".png": b"\x89PNG"}
    for path in drawn.paths:
        assert path.read_bytes().startswith(starts[path.suffix])


def test_the_same_store_gives_the_same_bytes(drawn, varied_store, tmp_path):
    again = write_figures(varied_store, tmp_path, ("pdf", "svg"))
    before = {p.name: p.read_bytes() for p in drawn.paths}
    for path in again.paths:
        assert path.read_bytes() == before[path.name], path.name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("accuracy", ["(a) ξ = H, Digits", "(b) ξ = 1, Digits", "FL-DP³S", "FedAvg"]),
        ("gemd", ["ξ = H", "ξ = 1", "FL-DP³S", "FedAvg"]),
        ("profiling", ["FC-1", "gradients", "repr. gradients"]),
        ("profiles", ["Xavier normal", "Kaiming uniform"]),
        ("kernels", ["Xavier normal", "Kaiming uniform", "similarity"]),
        ("initialisations", ["FL-DP³S, Xavier normal", "FedAvg, Kaiming uniform"]),
    ],
)
def test_a_figure_says_what_it_shows(drawn, name, words):
    (path,) = [p for p in drawn.paths if p.name == f"{name}.svg"]
    text = path.read_text()
    assert [word for word in words if word not in text] == []


def test_what_is_not_in_the_store_is_left_out_with_the_reason(store, tmp_path):
    result = write_figures(store, tmp_path, ("png",))
    assert [p.name for p in result.paths] == ["accuracy.png", "gemd.png"]
    assert set(result.left_out) == set(ALL[2:])
    assert "profiling method" in result.left_out["profiling"]


def test_an_empty_store_draws_nothing(store, copy_runs, tmp_path):
    result = write_figures(copy_runs(store, keep=lambda *_: False), tmp_path / "out")
    assert result.paths == []
    assert set(result.left_out) == set(ALL)


def _flat_run(store, config, last):
    """Enter a run whose curves are flat, up to its round `last`."""
    store.begin(config, {"clients": 4, "device": "CPU", "train_evaluated_on": 10}, {})
    records = [
        RoundRecord(round=r, train_score=0.5, gemd=0.5, cohort=(0, 1) if r else ())
        for r in range(last + 1)
    ]
    store.save({config.key: records}, done=last == config.rounds)


def test_an_unfinished_run_does_not_cut_curves_short(tmp_path):
    with Store(tmp_path / "store") as store:
        for seed, last in ((0, 80), (1, 20)):
            config = RunConfig(clients=4, cohort=2, rounds=80, selector="fedavg", seed=seed)
            _flat_run(store, config, last)
        write_figures(store, tmp_path / "out", ("svg",))
    assert ">80<" in (tmp_path / "out" / "accuracy.svg").read_text()


def test_many_selectors_can_be_told_apart(tmp_path):
    """There are seven colours: from the eighth selector on lines are dashed and bars hatched."""
    names = [name for name in list_selectors() if name != "fedavg"][:9]
    with Store(tmp_path / "store") as store:
        for selector in names:
            config = RunConfig(clients=4, cohort=2, rounds=3, selector=selector)
            _flat_run(store, config, 3)
        write_figures(store, tmp_path / "out", ("svg",))
    curves = re.findall(
        r'style="fill: none; ([^"]*stroke-width: 1.3[^"]*)"',
        (tmp_path / "out" / "accuracy.svg").read_text(),
    )
    assert len({style.replace("; stroke-linecap: square", "") for style in curves}) == len(names)
    assert 'id="h' in (tmp_path / "out" / "gemd.svg").read_text(), "no bar is hatched"
