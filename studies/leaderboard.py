"""The leaderboard: all selectors in all conditions, against uniform sampling.

    fedcohort study run studies/leaderboard.toml --out leaderboard
    python studies/leaderboard.py leaderboard [-o FOLDER] [--csv FILE] [--condition NAME]...

writes `standings.csv`, a row per selector; `rounds.csv`, a row per selector and condition; and the
figure `leaderboard`: the rounds of every selector in every condition. Instead of the study's folder
it also takes a file that studies/publish.py wrote. Standings are over the conditions that are named
(or all of a data set, by its name); if none is, over those that the most selectors share, three or
more, and six selectors or more. What a standing is: `fedcohort.leaderboard.standings`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from drawing import (
    TARGET,
    NotInStoreError,
    finished_runs,
    read_options,
    run_script,
    write_table_and_figure,
)

from fedcohort.leaderboard.conditions import Condition, choose, conditions_of
from fedcohort.leaderboard.entries import Entry, read_entry
from fedcohort.leaderboard.picture import leaderboard_figure
from fedcohort.leaderboard.published import Published
from fedcohort.leaderboard.standings import (
    missing_somewhere,
    needs_of,
    standing_rows,
    standings,
)
from fedcohort.leaderboard.tables import entry_rows
from fedcohort.report.export import write_csv
from fedcohort.simulation import Store

_FEWEST_CONDITIONS = 3

Board = dict[Condition, dict[str, Entry]]


def board_of(path: Path, wanted: Sequence[str] = ()) -> Board:
    """Return what the selectors did in the conditions that are asked for.

    Parameters
    ----------
    path : Path
        A study's folder, or a file of published runs.
    wanted : sequence of str
        Names of conditions or data sets; if empty, conditions that the most selectors share.

    Raises
    ------
    NotInStoreError
        When there are not enough conditions.
    """
    if path.is_file():
        published = Published(path)
        chosen = _chosen(published.conditions, wanted)
        return {condition: published.entries(condition, condition.seeds) for condition in chosen}
    with Store.existing(path) as store:
        # Not of an earlier revision of something.
        done = [config for config in finished_runs(store) if config == config.of_today()]
        targets = store.targets() or {config.key: TARGET for config in done}
        return {
            condition: {
                selector: read_entry(store, condition.runs(selector), selector, condition.target)
                for selector in condition.selectors
            }
            for condition in _chosen(conditions_of(done, targets), wanted)
        }


def _chosen(conditions: Sequence[Condition], wanted: Sequence[str]) -> Sequence[Condition]:
    if wanted:
        return choose(conditions, wanted)
    most = max((len(condition.selectors) for condition in conditions), default=0)
    full = [condition for condition in conditions if len(condition.selectors) == most]
    if len(full) < _FEWEST_CONDITIONS:
        raise NotInStoreError(
            f"no {_FEWEST_CONDITIONS} conditions with a target and the same six selectors or more"
        )
    return full


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the tables and the figure of a study."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--condition", action="append", default=[], metavar="NAME", help="of these alone"
    )
    options = read_options(__doc__, arguments, table="standings.csv", parser=parser)
    try:
        board = board_of(options.study, options.condition)
    except NotInStoreError as reason:
        raise NotInStoreError(
            f"There are no standings in {options.study}: it has {reason}. Run a study such as"
            " studies/leaderboard.toml first."
        ) from None
    entries = {condition.title: found for condition, found in board.items()}
    names = {selector for found in entries.values() for selector in found}
    ranked = standings(entries, needs_of(names))
    if absent := missing_somewhere(entries):
        print(f"Not in all conditions, and left out: {', '.join(absent)}.", file=sys.stderr)
    rounds = options.output / "rounds.csv"
    write_csv(rounds, entry_rows(entries, list(board)))
    print(rounds)
    write_table_and_figure(
        "leaderboard", standing_rows(ranked), lambda: leaderboard_figure(ranked), options
    )


if __name__ == "__main__":
    run_script(main)
