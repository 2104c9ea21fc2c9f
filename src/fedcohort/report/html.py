"""The HTML report: one self-contained file about all runs of a store."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
import numpy.typing as npt

from fedcohort.errors import StoreError
from fedcohort.files import replace_file
from fedcohort.report import wording
from fedcohort.report.command import redo_commands
from fedcohort.report.explorer import explorer_data, rounded
from fedcohort.report.grouping import dataset_title
from fedcohort.report.palette import CLASSES, selector_styles
from fedcohort.report.summary import (
    Curve,
    Summary,
    Targets,
    by_panel,
    common_score,
    common_target,
    shown_settings,
    summarise,
    timed,
)
from fedcohort.simulation.config import SETTINGS

if TYPE_CHECKING:
    from fedcohort.simulation.store import Store

_SHOWN_SETTINGS = (
    "clients",
    "cohort",
    "rounds",
    "epochs",
    "batch_size",
    "lr",
    "momentum",
    "model",
    "init",
    "profile",
    "inputs",
    "samples_per_client",
    "size_spread",
    "eval_every",
)


# More clients than this are thinned out evenly in the participation curves.
_MOST_POINTS = 400
_MOST_SETTINGS_LISTED = 6
# More lines than this in a chart are hard to tell apart.
_MOST_LINES = 8
_EXPLAINED = {
    "F1": "F1 is the harmonic mean of precision and recall, over all labels together.",
    "AUROC": "AUROC is the probability that a sample with the label has a larger output than one"
    " without it; the mean over the labels that have both.",
    "R²": "R² is the share of the targets’ variance that the model explains, mean over the targets:"
    " 1 is perfect, 0 is no better than the mean. Charts leave out what is below −1.",
    "perplexity": "Perplexity is exp of the mean test loss: among how many tokens, equally likely,"
    " the model is as much in doubt.",
}


def write_report(store: Store, path: str | Path, target: Targets) -> Path:
    """Write the report of all runs in a store, whole or not at all, and return its path.

    The target is what rounds and bytes are counted to: one for all, or one by run.
    Raises `StoreError` when no round is finished yet, or the file cannot be written.
    """
    summaries = summarise(store, target)
    if not summaries:
        raise StoreError(f"There is no finished round in {str(store.folder)!r} to report on yet.")
    destination = Path(path)
    with replace_file(destination) as file:
        file.write(render(store, summaries).encode())
    return destination


def render(store: Store, summaries: Sequence[Summary]) -> str:
    """Return the report as text."""
    environment = _environment()
    panels = by_panel(summaries)
    styles = selector_styles([s.label for s in summaries])
    scripts = [_source(environment, f"{name}.js") for name in ("charts", "explorer", "report")]
    score = common_score(summaries)
    return environment.get_template("report.html").render(
        headline=_headline(panels),
        about=_about(panels),
        evaluation=_evaluation(summaries),
        serving=_serving(summaries),
        panels=panels,
        summaries=summaries,
        aimed=any(s.target is not None for s in summaries),
        goal=_goal(summaries),
        aim=_aim(summaries, score),
        tested_first={s.target.on for s in summaries if s.target is not None} == {"test"},
        score=score,
        score_title=score[0].upper() + score[1:],
        explained=[text for name, text in _EXPLAINED.items() if name in _words_used(summaries)],
        styles=styles,
        ticked=_ticked(list(styles)),
        scripts=scripts,
        script_hashes=[_csp_hash(script) for script in scripts],
        style=_explorer_style(environment) + _source(environment, "report.css"),
        data=_embedded(_data(store, panels, styles)),
        settings=_settings(summaries),
        commands=redo_commands(summaries, store.folder.name),
        versions=_versions(store, summaries),
        devices=sorted({s.device for s in summaries}),
    )


def render_explorer(store: Store, summaries: Sequence[Summary]) -> str:
    """Return the cohort explorer alone, as a piece of another page that loads nothing.

    It stands in a shadow root, so that the styles of the page and its own leave each other alone,
    and follows the page's ``color-scheme``. There must be at least one group to show.
    """
    environment = _environment()
    panels = by_panel(summaries)
    groups = [{"panel": list(panels).index(s.panel), "label": s.label} for s in summaries]
    explorer = explorer_data(store, summaries)
    for federation in explorer["federations"].values():
        del federation["kernel"]
    return environment.get_template("embedded.html").render(
        panels=panels,
        style=_explorer_style(environment),
        scripts=[_source(environment, f"{name}.js") for name in ("charts", "explorer")],
        data=_embedded({"groups": groups, "explorer": explorer}),
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedcohort.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals |= {
        "words": wording,
        "mark": _interval_mark,
        "arrived": lambda members: any(s.rounds_to_target is not None for s in members),
        "leaders": leaders,
        "winners": winners,
        "plain": plain,
        "rival": _rival,
        "goal_of": _goal,
        "timed": timed,
    }
    return environment


def _data(
    store: Store,
    panels: dict[str, list[Summary]],
    styles: dict[str, dict[str, str]],
) -> dict[str, Any]:
    """Return what the charts are drawn from, as plain values."""
    titles = list(panels)
    summaries = [s for members in panels.values() for s in members]
    groups = [
        {
            "panel": titles.index(s.panel),
            "label": s.label,
            "train": _curve(s.train, s.evaluated_rounds),
            "test": s.test and _curve(s.test, s.evaluated_rounds),
            "reached": s.rounds_to_target,
            "reached_on": s.target and s.target.on,
            "gemd": rounded(s.gemd, 4),
            "gemd_sd": rounded(s.gemd_sd, 4),
            "variation": rounded(s.participation_variation, 4),
            "megabytes": rounded(s.bytes_to_target and s.bytes_to_target / 1e6, 3),
            # Clients have other names under every seed: their order by participation is comparable.
            "participation": rounded(_sorted_participation(s), 2),
        }
        for s in summaries
    ]
    return {
        "targets": [
            (found := common_target(members)) and dataclasses.asdict(found)
            for members in panels.values()
        ],
        "scores": [common_score(members) for members in panels.values()],
        "panels": titles,
        "styles": styles,
        "groups": groups,
        "explorer": explorer_data(store, summaries),
    }


def _curve(curve: Curve, rounds: npt.NDArray[np.int64]) -> dict[str, Any]:
    known = ~np.isnan(curve.mean)
    drawn = {name: rounded(getattr(curve, name)[known], 4) for name in ("mean", "low", "high")}
    return {"rounds": rounds[known].tolist(), **drawn}


def _sorted_participation(summary: Summary) -> Any:
    mean = -np.sort(-summary.participation, axis=1).mean(axis=0)
    return mean[np.linspace(0, len(mean) - 1, min(len(mean), _MOST_POINTS)).astype(int)]


def leaders(members: Sequence[Summary]) -> list[Summary]:
    """Return those of a panel that are first at the target, or else have the best score shown."""
    if found := winners(members):
        return found
    finals = [wording.final(s, s.part) for s in members]
    best = max((score for score in finals if score is not None), default=None)
    shown = wording.scored(best, members[0].score)
    return [s for s in members if wording.final_score(s, s.part) == shown]


def winners(members: Sequence[Summary]) -> list[Summary]:
    """Return those of a panel that are first at the target; none where nobody got there."""
    first = min(s.arrival for s in members)
    return [s for s in members if s.rounds_to_target == first]


def plain(members: Sequence[Summary]) -> Sequence[Summary]:
    """Return a panel's selectors without their variants, if that leaves some to compare."""
    found = [s for s in members if s.label == s.selector]
    return found if len(found) > 1 else members


def _words_used(summaries: Sequence[Summary]) -> set[str]:
    perplexity = {"perplexity"} if any(s.test_perplexity for s in summaries) else set()
    return {s.score for s in summaries} | perplexity


def _about(panels: dict[str, list[Summary]]) -> str:
    """Say which settings a report is about; of many, only the data sets."""
    if len(panels) <= _MOST_SETTINGS_LISTED:
        return ": " + "; ".join(panels)
    *first, last = dict.fromkeys(dataset_title(m[0].dataset) for m in panels.values())
    datasets = f"{', '.join(first)} and {last}" if first else last
    return f" in {len(panels)} settings of {datasets}"


def _rival(members: Sequence[Summary], best: Sequence[Summary]) -> Summary | None:
    """Return what the leaders are named beside: their baseline, or else the next best."""
    others = [s for s in members if s not in best]
    if (comparison := best[0].comparison) is not None:
        others = [s for s in others if s.label == comparison.baseline] or others
    return leaders(others)[0] if others else None


def _goal(members: Sequence[Summary]) -> str:
    """Return the target that groups share, or words if they do not."""
    score, target = common_score(members), common_target(members)
    return "the target" if target is None or score == "score" else wording.goal(target, score)


def _aim(members: Sequence[Summary], score: str) -> str:
    """Return the target with the score that it is of."""
    measured = {s.target.on for s in members if s.target is not None}
    return f"{_goal(members)} {'training ' if measured == {'train'} else ''}{score}"


def _headline(panels: dict[str, list[Summary]]) -> str:
    target = common_target(s for members in panels.values() for s in members)
    if len(panels) > 1 or target is None:
        selectors = len({s.selector for members in panels.values() for s in members})
        return f"Who trains next? {_count(selectors, 'selector')}, {_count(len(panels), 'setting')}"
    (members,) = panels.values()
    first = leaders(members)
    best = first[0]
    goal = wording.goal(target, best.score)
    if not any(s.rounds for s in members):
        return "No round is finished yet"
    if best.rounds_to_target is None:
        return f"No selector reached {goal} within {_count(best.rounds, 'round')}"
    other = _rival(members, first)
    names = " and ".join(s.label for s in first) if len(first) < 4 else f"{len(first)} selectors"
    verb = "reaches" if len(first) == 1 else "reach"
    sentence = f"{names} {verb} {goal} in {_count(best.rounds_to_target, 'round')}"
    if other is None:
        return sentence
    if other.rounds_to_target is None:
        return f"{sentence}, {other.label} not within {other.rounds}"
    return f"{sentence}, {other.label} in {other.rounds_to_target}"


def _ticked(labels: Sequence[str]) -> list[str]:
    """Return the labels that are drawn at first: not the variants, where lines would be many."""
    plain = [label for label in labels if " · " not in label]
    return list(labels) if len(labels) <= _MOST_LINES or not plain else plain


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _evaluation(summaries: Sequence[Summary]) -> str:
    """Say how the training score was measured."""
    whole = "measured on the whole training set."
    sizes = sorted({s.train_evaluated_on for s in summaries if s.train_on_subset})
    if not sizes:
        return whole
    count = " or ".join(f"{size:,}" for size in sizes)
    text = (
        f"measured on a fixed stratified subset of {count} training samples; the last round on"
        " the whole training set."
    )
    return text if all(s.train_on_subset for s in summaries) else f"{text} Elsewhere {whole}"


def _serving(summaries: Sequence[Summary]) -> str:
    """Say which samples clients were measured on in the end; nothing if none was."""
    parts = {summary.served[-1].part for summary in summaries if summary.served}
    where = {"train": "the samples that it trains on", "test": "the samples of each test client"}
    return ", or ".join(words for part, words in where.items() if part in parts)


def _settings(members: Sequence[Summary]) -> dict[str, str]:
    """Return the settings in words; where groups differ, all values."""
    all_values = [shown_settings(s.config, s.participation.shape[1]) for s in members]
    found = {
        name.replace("_", " "): ", ".join(
            dict.fromkeys(SETTINGS[name].to_text(values[name]) for values in all_values)
        )
        for name in _SHOWN_SETTINGS
    }
    promises = dict.fromkeys(s.config.promise for s in members)
    nothing = "none, profiles are sent as they are"
    found["promise"] = ", ".join(nothing if p is None else str(p) for p in promises)
    if read := dict.fromkeys(s.profile for s in members if s.profile):
        found["profiles read from"] = ", ".join(read)
    return found


def _interval_mark(summary: Summary, members: Sequence[Summary]) -> dict[str, float] | None:
    """Return where a row's interval lies, in percent of the longest run of its panel."""
    longest = max(s.rounds for s in members)
    if summary.interval is None or summary.interval.low is None or not longest:
        return None
    high = summary.interval.high
    middle = summary.rounds_to_target
    return {
        "low": 100 * summary.interval.low / longest,
        "high": 100 if high is None else 100 * high / longest,
        "middle": 100 if middle is None else 100 * middle / longest,
    }


def _versions(store: Store, summaries: Sequence[Summary]) -> dict[str, str]:
    torch = {store.facts(s.config.key)["torch"] for s in summaries}
    return {
        "fedcohort": metadata.version("fedcohort"),
        "PyTorch": ", ".join(sorted(torch)),
        "NumPy": metadata.version("numpy"),
        "Python": platform.python_version(),
    }


def _explorer_style(environment: jinja2.Environment) -> str:
    colours = [f"--class-{k}: light-dark({a}, {b});" for k, (a, b) in enumerate(CLASSES)]
    return _source(environment, "explorer.css") + f":root, :host {{ {' '.join(colours)} }}\n"


def _source(environment: jinja2.Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _csp_hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _embedded(data: dict[str, Any]) -> str:
    """Return JSON that cannot end the script element it stands in."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
