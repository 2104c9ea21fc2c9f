"""Who enters the arena, and what has to run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fedcohort.errors import FedcohortError, InvalidInputError, InvalidParameterError
from fedcohort.leaderboard.conditions import BASELINE, Condition, choose
from fedcohort.leaderboard.published import Published
from fedcohort.parameters import listed
from fedcohort.selection import Selector, make_selector
from fedcohort.selection.registry import blamed, spec_of
from fedcohort.simulation.study import Part, Study
from fedcohort.specs import format_spec, meaning, parse_spec
from fedcohort.testing import check_selector

USUAL = ("digits",)


@dataclasses.dataclass(frozen=True)
class Challenge:
    """A selector, and the published runs that it is put beside.

    Attributes
    ----------
    spec, label : str
        The selector as it is made, and what tables call it.
    published : Published
        The runs of the others.
    conditions : tuple of Condition
        Where they are compared.
    seeds : tuple of int
        With which seeds.
    """

    spec: str
    label: str
    published: Published
    conditions: tuple[Condition, ...]
    seeds: tuple[int, ...]

    @property
    def new(self) -> tuple[Condition, ...]:
        """The conditions in which the selector is not published, so that it has to run."""
        return tuple(c for c in self.conditions if self.spec not in c.selectors)

    def check(self, device: str) -> Study:
        """Return the runs that tell whether this machine repeats the published ones.

        One of fedavg for each data set, since whom it chooses does not depend on how training
        went: what differs is arithmetic.
        """
        firsts = {condition.config.dataset: condition for condition in reversed(self.new)}
        return Study(
            "arena check",
            tuple(
                Part(c.name, tuple(_on(device, c).runs(BASELINE, self.seeds[:1])), c.target)
                for c in self.new
                if c in firsts.values()
            ),
        )

    def study(self, device: str) -> Study:
        """Return the selector's own runs, a part for each condition."""
        return Study(
            "arena",
            tuple(
                Part(c.name, tuple(_on(device, c).runs(self.spec, self.seeds)), c.target)
                for c in self.new
            ),
        )


def challenge(
    selector: str | Selector | type[Selector],
    conditions: Sequence[str] = USUAL,
    seeds: Sequence[int] | None = None,
    published: Published | None = None,
) -> Challenge:
    """Settle who runs where, and refuse what cannot be done.

    Parameters
    ----------
    selector : str, Selector or class
        A spec, or a selector of your own.
    conditions : sequence of str
        Names of conditions or of data sets, which stand for all their conditions.
    seeds : sequence of int, optional
        Some of the published seeds; all if not given.
    published : Published, optional
        The runs of the others; those that come with the package if not given.
    """
    conditions = listed("conditions", conditions, '["digits-1"]')
    if seeds is not None:
        seeds = listed("seeds", seeds, "[0]")
    spec = selector if isinstance(selector, str) else spec_of(selector)
    made = make_selector(spec)
    known = published or Published()
    chosen = choose(known.conditions, conditions)
    meant = meaning(spec)
    spec = next((n for c in chosen for n in c.selectors if meaning(n) == meant), spec)
    common = [seed for seed in chosen[0].seeds if all(seed in c.seeds for c in chosen)]
    for seed in seeds or ():
        if seed not in common:
            raise InvalidParameterError(
                f"There are no published runs with seed {seed!r} in {', '.join(conditions)}: choose"
                f" among {', '.join(map(str, common))}."
            )
    label = format_spec(made.name, parse_spec(spec)[1])
    taken = {name for condition in chosen for name in condition.selectors} - {spec}
    asked = Challenge(
        spec,
        f"{label} (yours)" if label in taken else label,
        known,
        tuple(chosen),
        tuple(sorted(seeds or common)),
    )
    if asked.new:
        _check_fairness(spec, type(made.innermost))
    return asked


def _check_fairness(spec: str, kind: type[Selector]) -> None:
    """Refuse a rule that breaks, or that the others could not be compared with.

    One that takes more clients than it may would win.
    """
    failed = f"Selector {spec!r} does not do what every selector must"
    with blamed(kind, failed):
        try:
            check_selector(spec)
        except (AssertionError, FedcohortError) as error:
            raise InvalidInputError(
                f"{failed} ({str(error).rstrip('.')}): try it with"
                " fedcohort.testing.check_selector first."
            ) from error


def _on(device: str, condition: Condition) -> Condition:
    """Return a condition as a device can run it: bfloat16 needs a GPU."""
    if device != "cpu":
        return condition
    config = dataclasses.replace(condition.config, precision="float32")
    return dataclasses.replace(condition, config=config)
