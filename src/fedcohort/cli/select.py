"""One cohort from a file of profiles."""

from pathlib import Path

from fedcohort.cli.advise import read_numbers, read_profiles
from fedcohort.errors import InvalidInputError, InvalidProfilesError, MissingKnowledgeError
from fedcohort.randomness import generator
from fedcohort.selection import Need, make_selector

_KNOWN_FROM_A_FILE = frozenset({Need.PROFILE})


def select_once(profiles: Path, k: int, spec: str, seed: int, sizes: Path | None) -> list[int]:
    """Return the ids of one cohort: rows of the profiles file."""
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
    table, held = read_profiles(profiles)
    if table.ndim != 2 or table.shape[0] == 0 or table.shape[1] == 0:
        raise InvalidProfilesError(
            f"{str(profiles)!r} has shape {list(table.shape)}: profiles must be [C, Q], one row per"
            " client."
        )
    selector.fit(table, sizes=held if sizes is None else read_numbers(sizes))
    return [int(c) for c in selector.select(k, rng=generator(seed, "selection", 1)).ids]
