"""The leaderboard: all selectors in all conditions, against uniform sampling.

    fedcohort study run studies/leaderboard.toml --out leaderboard
    python studies/leaderboard.py leaderboard [-o FOLDER] [--csv FILE]

writes `standings.csv`, a row per selector, and the figure `leaderboard`: the rounds of every
selector in every condition. It takes three conditions that the same six selectors or more share.
What a standing is: `fedcohort.leaderboard.standings`.
"""

from __future__ import annotations

from collections.abc import Sequence

from drawing import TARGET, NotInStoreError, read_options, run_script, write_table_and_figure

from fedcohort.leaderboard.conditions import conditions_of
from fedcohort.leaderboard.entries import read_entry
from fedcohort.leaderboard.picture import leaderboard_figure
from fedcohort.leaderboard.standings import Standing, needs_of, standing_rows, standings
from fedcohort.simulation import RunConfig, Store

_FEWEST_CONDITIONS = 3


def standings_in(store: Store) -> list[Standing]:
    """Return the standings over the conditions in which the most selectors are finished.

    Raises
    ------
    NotInStoreError
        When there are not enough conditions.
    """
    done = [c for c in store.configs() if store.is_done(c.key) and _is_of_today(c)]
    targets = store.targets() or {config.key: TARGET for config in done}
    found = conditions_of(done, targets)
    most = max((len(condition.selectors) for condition in found), default=0)
    full = [condition for condition in found if len(condition.selectors) == most]
    if len(full) < _FEWEST_CONDITIONS:
        raise NotInStoreError(
            f"no {_FEWEST_CONDITIONS} conditions with a target and the same six selectors or more"
        )
    entries = {
        condition.title: {
            selector: read_entry(store, condition.runs(selector), selector, condition.target)
            for selector in condition.selectors
        }
        for condition in full
    }
    return standings(entries, needs_of(full[0].selectors))


def _is_of_today(config: RunConfig) -> bool:
    """Tell whether a run is of its rule as it is now, not of an earlier revision."""
    return config.selector_revision == config.make_selector().revision


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table and the figure of a study."""
    options = read_options(__doc__, arguments, table="standings.csv")
    try:
        with Store.existing(options.study) as store:
            found = standings_in(store)
    except NotInStoreError as reason:
        raise NotInStoreError(
            f"There are no standings in {options.study}: it has {reason}. Run a study such as"
            " studies/leaderboard.toml first."
        ) from None
    write_table_and_figure(
        "leaderboard", standing_rows(found), lambda: leaderboard_figure(found), options
    )


if __name__ == "__main__":
    run_script(main)
