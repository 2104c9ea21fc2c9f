"""The simulator from Python: `simulate` compares selectors, `Results` holds what came of it."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcohort.errors import (
    InvalidInputError,
    InvalidModelError,
    InvalidParameterError,
    MissingPackageError,
    StoreError,
    UnknownNameError,
)
from fedcohort.parameters import Interval, listed
from fedcohort.selection import Selector
from fedcohort.selection.registry import selector_class, spec_of

try:
    import torch
    from torch import nn

    from fedcohort.federation import Dataset, Progress
    from fedcohort.report.export import rounds_of, summary_row
    from fedcohort.report.grouping import group_runs
    from fedcohort.report.served import final_score_rows
    from fedcohort.report.shown import shown_downloads, shown_progress
    from fedcohort.report.summary import summarise
    from fedcohort.simulation import RunConfig, Store
    from fedcohort.simulation.config import SETTINGS
    from fedcohort.simulation.execution.here import here
    from fedcohort.simulation.execution.processes import Processes
    from fedcohort.simulation.execution.runner import prepare_study, run_study
    from fedcohort.simulation.kept_models import read_model
    from fedcohort.simulation.materials import Materials
    from fedcohort.simulation.scores import Kind, Part, Target, score_column, score_name, score_of
    from fedcohort.simulation.study import check_target, check_target_on, study_of_runs
    from fedcohort.training.task import Losses
except ImportError as error:
    raise MissingPackageError("fedcohort.simulate", "sim", error) from error

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

ModelFactory = Callable[[tuple[int, ...], int], nn.Module]

# What a run has one of, and a simulation several.
_LISTS = {"selector": "selectors", "seed": "seeds"}


def simulate(
    *,
    dataset: str | Path | Dataset = "digits",
    model: str | ModelFactory = "auto",
    loss: str | Losses = "auto",
    selectors: Iterable[str | Selector | type[Selector]] = ("dp3s", "fedavg"),
    seeds: Iterable[int] = (0,),
    out: str | Path | None = None,
    device: str = "auto",
    workers: int = 1,
    progress: bool = True,
    **settings: Any,
) -> Results:
    """Train with several selectors over several seeds, and return what came of it.

    Parameters
    ----------
    dataset : str, Path or Dataset
        A name (``digits``, ``mnist``, …), a file, or a data set of your own.
    model : str or callable
        A name, a reference (``module:factory``, ``FILE.py:factory``), or a factory of your own that
        takes (input_shape, classes) and returns an `nn.Module`.
    loss : str or callable
        A name, a reference (``module:function``, ``FILE.py:function``), or a function of your own
        that takes (outputs, targets) of a batch and returns one loss per sample.
    selectors : iterable of str, Selector or class
        Specs such as ``"match:guard=profiles"``, or selectors of your own. An object is a pattern:
        every run makes its own selector with the same parameters.
    seeds : iterable of int
        One run per selector and seed.
    out : path-like, optional
        The folder of the results. What is there already is not done again, and what was
        interrupted resumes. Without it, results live as long as the `Results`.
    device : {"auto", "cpu", "cuda"}
        Where to train.
    workers : int
        Processes; the numbers are the same with any number of them.
    progress : bool
        Whether to show a progress bar, in a terminal or in a notebook.
    **settings
        Any other setting of a run, such as ``skew``, ``clients``, ``cohort``, ``rounds``, ``lr``:
        see `fedcohort.simulation.RunConfig`.

    Examples
    --------
    >>> from fedcohort import simulate
    >>> results = simulate(selectors=["match", "fedavg"], rounds=5, progress=False)
    >>> results.rounds.groupby("selector").gemd.mean().idxmin()
    'match'
    """
    if not (count := Interval(1, integral=True))(workers):
        raise InvalidParameterError(f"workers must be {count}, not {workers!r}.")
    rules, numbers = listed("selectors", selectors, '["match"]'), listed("seeds", seeds, "[0]")
    specs = [given if isinstance(given, str) else spec_of(given) for given in rules]
    own = {selector_class(s) for s, given in zip(specs, rules, strict=True) if s is not given}
    with shown_downloads(progress) as heard:
        materials, named = _named(dataset, model, loss, own, settings, heard)
        seeded = [{"seed": _plain(seed), **named} for seed in numbers]
        configs = [RunConfig(selector=spec, **setting) for spec in specs for setting in seeded]
        prepared = prepare_study(study_of_runs(configs), device=device, materials=materials)
    folder = _Folder(out)
    executor = Processes(workers) if workers > 1 else here
    with Store(folder.path) as store, shown_progress(progress) as report:
        run_study(prepared, store, executor, report=report, keep_models=True)
    return Results(folder, prepared.study.configs)


def _named(
    dataset: str | Path | Dataset,
    model: str | ModelFactory,
    loss: str | Losses,
    selectors: Collection[type[Selector]],
    settings: Mapping[str, Any],
    heard: Progress | None,
) -> tuple[Materials, dict[str, Any]]:
    """Give objects names, and return them with the settings of all runs."""
    chosen = _settings(settings)
    datasets: dict[str, Dataset] = {}
    factories: dict[str, ModelFactory] = {}
    losses: dict[str, Losses] = {}
    if isinstance(dataset, Dataset):
        # A name of its own, since the arrays may be others than those that the name stands for.
        given, dataset = dataset, f"{dataset.name} (object)"
        datasets[dataset] = given
        if given.client is not None:
            chosen.setdefault("skew", "natural")
    elif not isinstance(dataset, str | Path):
        raise InvalidInputError(
            f"dataset must be a name, a file or a Dataset, not a {type(dataset).__name__}: make a"
            " Dataset of arrays."
        )
    if isinstance(model, nn.Module):
        raise InvalidModelError(
            f"model is a {type(model).__name__} that is made already, and every run makes its own:"
            " give what makes it, such as lambda shape, classes: Net(...)."
        )
    if not isinstance(model, str):
        factory, model = model, _reference(model)
        factories[model] = factory
    if not isinstance(loss, str):
        function, loss = loss, _reference(loss)
        losses[loss] = function
    named = {"dataset": str(dataset), "model": model, "loss": loss}
    return Materials(datasets, factories, losses, selectors, heard), chosen | named


def _reference(given: Callable[..., Any]) -> str:
    """Return what an object is called in configurations; of one without a name, its class is."""
    owner = given if hasattr(given, "__qualname__") else type(given)
    return f"{owner.__module__}:{owner.__qualname__}"


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as a run has them, and refuse what is none."""
    known = [name for name, declared in SETTINGS.items() if declared.group and name not in _LISTS]
    for name, value in given.items():
        if name in _LISTS:
            lists = _LISTS[name]
            raise InvalidInputError(
                f"There is no {name} here but {lists}: give {lists}=[{value!r}]."
            )
        if name not in known:
            raise UnknownNameError("setting", name, known)
    plain = {name: _plain(value) for name, value in given.items()}
    # None says here what a word says in a study file.
    return {n: v if v is None else SETTINGS[n].from_toml(v) for n, v in plain.items()}


def _plain(value: Any) -> Any:
    """Return a number of NumPy's as one of Python's."""
    return value.item() if isinstance(value, np.generic) else value


def _goal(target: float, target_on: Part) -> Target:
    """Return what rounds are counted to."""
    return Target(check_target(target, "target"), check_target_on(target_on, "target_on"))


class Results:
    """What came of a simulation.

    Attributes
    ----------
    folder : Path
        Where it is stored; ``fedcohort report`` and ``fedcohort study export`` read it too.

    Examples
    --------
    >>> from fedcohort import simulate
    >>> results = simulate(selectors=["match", "fedavg"], rounds=2, progress=False)
    >>> results.summary(target=0.1).index.tolist()
    ['match', 'fedavg']
    """

    def __init__(self, folder: _Folder, configs: Iterable[RunConfig]) -> None:
        self._folder, self._configs = folder, tuple(configs)

    @classmethod
    def load(cls, folder: str | Path) -> Results:
        """Return the results of all runs in a folder."""
        with Store.existing(folder) as store:
            return cls(_Folder(folder), store.configs())

    @property
    def folder(self) -> Path:
        """Where the results are stored."""
        return self._folder.path

    @property
    def rounds(self) -> pd.DataFrame:
        """One row per run and round: selector, seed, settings that differ, scores, GEMD, bytes."""
        with Store.existing(self.folder) as store:
            return self._table(rounds_of(store, self._configs))

    @property
    def clients(self) -> pd.DataFrame:
        """One row per run and client: how the final global model does on the client's samples.

        `part` is ``train`` for the samples that the client trains on; data sets with clients in
        their test part have rows with ``test`` besides. Each part numbers its clients anew; `name`
        is the same in both, and empty where the data name no clients.
        """
        return self._final("client")

    @property
    def classes(self) -> pd.DataFrame:
        """One row per run and class: the share of its samples that the final model recognises.

        They are test samples, or training samples where there is no test part. Empty where samples
        have no one class.
        """
        return self._final("class")

    def _final(self, kind: Kind) -> pd.DataFrame:
        rows = []
        with Store.existing(self.folder) as store:
            for config, row in final_score_rows(store, self._configs, kind):
                score = "accuracy" if kind == "class" else score_of(store.facts(config.key))
                named = {score_name(score) if n == "score" else n: v for n, v in row.items()}
                rows.append((config, named))
        return self._table(rows)

    def _table(self, rows: Iterable[tuple[RunConfig, dict[str, Any]]]) -> pd.DataFrame:
        """Return rows with the run that each is about, and its setting if there are several."""
        import pandas as pd

        groups = group_runs(self._configs)
        several = len({group.panel for group in groups}) > 1
        named = {
            c.key: {"label": group.label} | ({"setting": group.panel} if several else {})
            for group in groups
            for c in group.configs
        }
        return pd.DataFrame(
            {**named[c.key], "selector": c.selector, "seed": c.seed, **row} for c, row in rows
        )

    def summary(self, target: float = 0.9, target_on: Part = "train") -> pd.DataFrame:
        """Return one row per selector and setting, over its seeds.

        Parameters
        ----------
        target : float
            The score that rounds are counted to.
        target_on : {"train", "test"}
            Whether that is the score on training or on test samples.
        """
        import pandas as pd

        goal = _goal(target, target_on)
        with Store.existing(self.folder) as store:
            found = summarise(store, goal, self._configs)
        scores = tuple(dict.fromkeys(summary.score for summary in found))
        several = len({summary.panel for summary in found}) > 1
        rows = (
            {"selector": summary.label}
            | ({"setting": summary.panel} if several else {})
            | summary_row(summary, scores)
            for summary in found
        )
        table = pd.DataFrame(rows).set_index("selector")
        # What does not apply is left out; a target that nobody reached does.
        unknown = table.columns[table.isna().all()].difference(["rounds_to_target"])
        return table.drop(columns=unknown)

    def plot(self, score: str | None = None, ax: Axes | None = None) -> Axes:
        """Draw the mean of a score over the seeds, a line per selector and setting, with its range.

        Parameters
        ----------
        score : str, optional
            A column of `rounds`; if not given, the test score of the first run, such as
            ``test_accuracy`` or ``test_r2``.
        ax : matplotlib Axes, optional
            Where to draw; a new figure if not given.
        """
        import matplotlib.pyplot as plt

        table = self.rounds
        if score is None:
            with Store.existing(self.folder) as store:
                score = score_column("test", score_of(store.facts(self._configs[0].key)))
        if score not in table:
            raise UnknownNameError("score", score, table.columns)
        axes = plt.subplots()[1] if ax is None else ax
        apart = [name for name in ("setting", "label") if name in table]
        for names, rows in table.dropna(subset=[score]).groupby(apart, sort=False):
            curve = rows.groupby("round")[score].agg(["mean", "min", "max", "count"])
            # A mean of those that are left would get better where the worst has diverged.
            curve = curve[curve["count"] == rows["seed"].nunique()]
            (line,) = axes.plot(curve.index, curve["mean"], label=": ".join(names))
            axes.fill_between(
                curve.index, curve["min"], curve["max"], color=line.get_color(), alpha=0.15
            )
        axes.set_xlabel("round")
        axes.set_ylabel(score.replace("_", " "))
        axes.legend()
        return axes

    def report(
        self, path: str | Path = "report.html", target: float = 0.9, target_on: Part = "train"
    ) -> Path:
        """Write the HTML report, one self-contained file, and return its path."""
        from fedcohort.report.html import write_report

        goal = _goal(target, target_on)
        with Store.existing(self.folder) as store:
            return write_report(store, Path(path), goal)

    @property
    def models(self) -> Mapping[tuple[str, int], dict[str, torch.Tensor]]:
        """The final global models as state dicts, by (selector, seed).

        Where these have several settings they name no one model, and asking for it is refused.
        """
        keys: dict[tuple[str, int], list[str]] = {}
        for config in self._configs:
            keys.setdefault((config.selector, config.seed), []).append(config.key)
        return _Models(self._folder, keys)

    def __repr__(self) -> str:
        runs = len(self._configs)
        selectors = ", ".join(dict.fromkeys(config.selector for config in self._configs))
        return f"Results({runs} runs of {selectors} in {str(self.folder)!r})"

    def _repr_html_(self) -> str:
        return str(self.summary()._repr_html_())


@dataclasses.dataclass
class _Folder:
    """A folder that was named, or one that goes with the last who knows it."""

    named: str | Path | None

    def __post_init__(self) -> None:
        if self.named is not None:
            self.path = Path(self.named)
            return
        # Not a TemporaryDirectory, which complains of being left to the end.
        self.path = Path(tempfile.mkdtemp(prefix="fedcohort-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class _Models(Mapping[tuple[str, int], dict[str, torch.Tensor]]):
    """Models that are read when they are asked for."""

    def __init__(self, folder: _Folder, keys: dict[tuple[str, int], list[str]]) -> None:
        self._folder, self._keys = folder, keys

    def __getitem__(self, key: tuple[str, int]) -> dict[str, torch.Tensor]:
        selector, seed = key
        if len(own := self._keys[key]) > 1:
            raise StoreError(
                f"{str(self._folder.path)!r} has {len(own)} models of {selector!r} with seed"
                f" {seed}, in different settings: give each setting a folder of its own to tell"
                " them apart."
            )
        arrays = read_model(self._folder.path, own[0])
        return {name: torch.from_numpy(values) for name, values in arrays.items()}

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
