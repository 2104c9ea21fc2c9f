"""How far a study is."""

import dataclasses
from typing import Any

from rich.console import Console

from fedcohort.cli.document import print_document
from fedcohort.report.table import plain_grid
from fedcohort.report.wording import duration, time_left
from fedcohort.simulation import Store
from fedcohort.simulation.groups import dataset_of, group_states, part_states
from fedcohort.simulation.progress import seconds_left


def show_status(store: Store, *, json: bool) -> None:
    """Print how far each part is and who works on what, as tables or as one JSON document."""
    found = status_of(store)
    if json:
        print_document(found)
        return
    console = Console()
    table = plain_grid()
    for title in ("part", "done", "running", "left", "rounds", "time left"):
        table.add_column(title, justify="left" if title == "part" else "right")
    for part in found["parts"]:
        left = part["seconds_left"]
        table.add_row(
            part["part"] or "(named by no study any more)",
            str(part["done"]),
            str(part["running"]),
            str(part["left"]),
            f"{part['rounds_done']:,} of {part['rounds']:,}",
            "" if part["left"] + part["running"] == 0 else "?" if left is None else duration(left),
        )
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
