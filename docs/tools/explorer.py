"""The cohort explorer of the Start page, from a real run: ``python docs/tools/explorer.py``.

It is the report's own component, written as one piece of HTML to ``build/explorer.html``; a hook
of the site puts it where the page has its place for it.
"""

import sys
from pathlib import Path

from fedcohort import simulate
from fedcohort.report import summarise
from fedcohort.report.html import render_explorer
from fedcohort.simulation import Store

MADE = Path(__file__).parents[2] / "build" / "explorer.html"
SELECTORS = ("fedavg", "dp3s", "match")


def explorer(rounds: int = 80) -> str:
    """Return the explorer of a federation of digits with one class per client."""
    results = simulate(
        selectors=SELECTORS, skew="1", clients=50, rounds=rounds, lr=0.5, progress=False
    )
    with Store.existing(results.folder) as store:
        return render_explorer(store, summarise(store, None))


def main() -> int:
    """Write the explorer."""
    MADE.parent.mkdir(parents=True, exist_ok=True)
    MADE.write_text(explorer(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
