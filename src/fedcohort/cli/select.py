"""One cohort from a file of profiles."""

from pathlib import Path

from fedcohort.cli.advise import read_profiles
from fedcohort.errors import InvalidInputError, MissingKnowledgeError
from fedcohort.randomness import generator
from fedcohort.selection import Cohort, Need, make_selector
from fedcohort.selection.registry import blamed

_KNOWN_FROM_A_FILE = frozenset({Need.PROFILE})


def select_once(profiles: Path, k: int, spec: str, seed: int, sizes: Path | None) -> Cohort:
    """Return one cohort, whose ids are rows of the profiles file, from 0 on."""
    if seed < 0:
        raise InvalidInputError(f"--seed must be 0 or more, not {seed}.")
    selector = make_selector(spec)
    missing = selector.needs - _KNOWN_FROM_A_FILE
    if missing:
        wanted = ", ".join(sorted(need.value for need in missing))
        raise MissingKnowledgeError(
            f"Selector {selector.name!r} also needs the {wanted} of clients, which a file of"
            " profiles does not hold: choose one that needs profiles only, such as dp3s."
        )
    table, counts = read_profiles(profiles, sizes)
    with blamed(type(selector.innermost), f"Selector {spec!r} fails"):
        selector.fit(table, sizes=counts)
        return selector.select(k, rng=generator(seed, "selection", 1))
