"""How far a study is."""

import dataclasses
import math
from typing import Any

from rich.console import Console

from fedcohort.cli.document import print_document
from fedcohort.report.table import Column, fitting
from fedcohort.report.wording import duration, time_left
from fedcohort.simulation import Store
from fedcohort.simulation.groups import dataset_of, group_states, part_states
from fedcohort.simulation.progress import seconds_left

_Part = dict[str, Any]


def _share(part: _Part) -> str:
    """Return how far the rounds of a part are, and 100 % only when all of them are done."""
    return f"{math.floor(1000 * part['rounds_done'] / part['rounds']) / 10:.1f} %"


def _time_left(part: _Part) -> str:
    if part["left"] + part["running"] == 0:
        return ""
    return "?" if part["seconds_left"] is None else duration(part["seconds_left"])


_COLUMNS = [
    Column[_Part]("part", "part", lambda part: part["part"] or "(named by no study any more)"),
    Column[_Part]("done", "done", lambda part: f"{part['done']:,} of {part['runs']:,}"),
    Column[_Part]("running", "running", lambda part: f"{part['running']:,}", leaves=2),
    Column[_Part]("rounds", "rounds", _share, leaves=1),
    Column[_Part]("time left", "time left", _time_left),
]


def show_status(store: Store, *, json: bool) -> None:
    """Print how far each part is and who works on what, as tables or as one JSON document."""
    found = status_of(store)
    if json:
        print_document(found)
        return
    console = Console()
    table, _ = fitting(_COLUMNS, found["parts"], console, console.options)
    console.print(table)
    for group in found["held"]:
        console.print(
            f"{group['holder']}: {group['runs']} runs of {group['dataset']}, round"
            f" {group['live']} of {group['rounds']} ({group['round']} saved)",
            highlight=False,
        )
    rate = found["run_rounds_per_second"]
    if found["finished"]:
        console.print("Finished.")
    else:
        speed = "" if rate is None else f"; {rate:,.1f} rounds of single runs a second so far"
        console.print(time_left(found["seconds_left"]).capitalize() + speed + ".", highlight=False)


def status_of(store: Store) -> dict[str, Any]:
    """Return how far the studies of a store are, as plain values."""
    groups = group_states(store)
    held = [group for group in groups if group.holder]
    spent = sum(group.seconds for group in groups)
    parts = []
    for part in part_states(store):
        values = dataclasses.asdict(part)
        names = values.pop("groups")
        own = [group for group in groups if group.name in names]
        values["left"] = part.runs - part.done - part.running
        workers = sum(bool(group.holder) for group in own)
        # Runs that are named here but planned elsewhere have no time that could be told.
        values["seconds_left"] = seconds_left(own, workers, groups) if own else None
        parts.append(values)
    known = all(part["left"] == 0 or part["seconds_left"] is not None for part in parts)
    return {
        "finished": all(part["done"] == part["runs"] for part in parts),
        "parts": parts,
        "held": [
            {
                "group": group.name,
                "holder": group.holder,
                "runs": group.runs,
                "round": group.round,
                "live": group.live,
                "rounds": group.rounds,
                "dataset": dataset_of(store, group),
            }
            for group in held
        ],
        "groups": {"done": sum(group.done for group in groups), "all": len(groups)},
        "run_rounds_per_second": (
            sum(group.runs * group.round for group in groups) / spent if spent else None
        ),
        "seconds": spent,
        "seconds_left": seconds_left(groups, len(held)) if known else None,
    }
