"""What came of an arena as tables: for people, as Markdown and LaTeX, and as plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from fedcohort.leaderboard.conditions import BASELINE, Condition
from fedcohort.leaderboard.entries import Entry, compare_entries
from fedcohort.leaderboard.standings import MEASURES, Entries, Standing, rounded
from fedcohort.leaderboard.versus import Versus
from fedcohort.report.comparison import Comparison
from fedcohort.report.wording import (
    MISSING,
    PARTS,
    decimal,
    difference,
    goal,
    rounds_interval,
    rounds_reached,
    scored,
    signed,
    too_few,
)
from fedcohort.simulation.scores import Target

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "ξ": r"$\xi$",
    "×": r"$\times$",
    "–": "--",
    "−": "$-$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    ">": "$>$",
}


@dataclasses.dataclass(frozen=True)
class PaperTable:
    """A table of texts, one row of which may stand out.

    Attributes
    ----------
    title : str
        What it shows.
    columns : tuple of str
        Their headings; the first holds names, all others numbers.
    rows : tuple of tuples of str
        The cells.
    marked : str or None
        The first cell of the row that stands out.
    note : str
        How to read it.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: str | None = None
    note: str = ""

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [self.columns, ("---", *("---:" for _ in self.columns[1:]))]
        lines += [
            tuple(f"**{cell}**" for cell in row) if row[0] == self.marked else row
            for row in self.rows
        ]
        body = "\n".join(
            f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
        )
        return f"{self.title}\n\n{body}\n\n{self.note}\n"

    def latex(self) -> str:
        """Return the table as LaTeX, for the package booktabs."""
        rows = [
            [rf"\textbf{{{_latex(cell)}}}" for cell in row]
            if row[0] == self.marked
            else [_latex(cell) for cell in row]
            for row in self.rows
        ]
        ending = r" \\"
        return "\n".join(
            [
                f"% {self.title}",
                f"% {self.note}",
                rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}",
                r"\toprule",
                " & ".join(map(_latex, self.columns)) + ending,
                r"\midrule",
                *(" & ".join(row) + ending for row in rows),
                r"\bottomrule",
                r"\end{tabular}",
                "",
            ]
        )


def standings_table(
    found: Sequence[Standing], marked: str, absent: Sequence[str] = ()
) -> PaperTable:
    """Return who was how fast over all conditions; the note names who was not in all of them."""
    own = list(found[0].entries.values())
    rows = tuple(
        (
            s.selector,
            f"{s.speed:.2f}",
            f"{s.least_speed:.2f}",
            f"{s.faster} / {s.slower}",
            decimal(s.bytes, 2),
            scored(s.mean("final"), own[0].score),
            decimal(s.mean("gemd")),
            " ".join(s.needs).replace("_", " ") or "nothing",
        )
        for s in found
    )
    return PaperTable(
        f"Standings over {_count(len(own), 'condition')}, {_count(len(own[0].seeds), 'seed')} each",
        ("selector", "speed", "least", "faster / slower", "bytes", "final", "GEMD", "must be told"),
        rows,
        marked,
        f"Speed: {BASELINE}'s rounds to the target over the selector's, geometric mean; least: the"
        f" lowest. Faster / slower: conditions in which the 95 % interval of the paired difference"
        f" to {BASELINE} leaves out 0. Bytes to the target: over {BASELINE}'s, where both arrived."
        f" Final: the last score on the test part, mean over the conditions."
        + _if_few(len(own[0].seeds))
        + (f" Without {', '.join(absent)}, not run in all of them." if absent else ""),
    )


def accuracy_table(found: Sequence[Standing], marked: str) -> PaperTable:
    """Return how good and how steady the models were over all conditions, and for whom."""
    score = next(iter(found[0].entries.values())).score
    rows = tuple(
        (
            s.selector,
            *(scored(s.mean(name), score) for name in ("final", "peak", "drop", "worst_decile")),
            decimal(s.mean("participation_variation"), 2),
            f"{s.selection_ms:.1f}",
        )
        for s in found
    )
    return PaperTable(
        "How good the models were",
        ("selector", "final", "peak", "drop", "worst decile", "variation", "selection, ms"),
        rows,
        marked,
        "Means over the conditions, on the test part where there is one. Drop: how far the mean"
        " curve ends below its peak. Worst decile: the final model's score on the tenth of the"
        " clients that it serves worst. Variation: of how often clients take part, 0 is even.",
    )


def rounds_table(
    found: Sequence[Standing], conditions: Sequence[Condition], marked: str
) -> PaperTable:
    """Return every selector's rounds to the target in every condition, with intervals."""
    rows = tuple(
        (
            s.selector,
            *(_with_interval(s.entries[condition.title]) for condition in conditions),
            f"{s.speed:.2f}",
        )
        for s in found
    )
    titles = [condition.title.split(", ", 1) for condition in conditions]
    one = len({data for data, _ in titles}) == 1
    return PaperTable(
        "Rounds to the target",
        ("selector", *(title[-1] if one else ", ".join(title) for title in titles), "speed"),
        rows,
        marked,
        f"Rounds until the mean curve reaches {_goals(found[0], conditions)}; in brackets the"
        " 95 % bootstrap interval over seeds.",
    )


def _goals(standing: Standing, conditions: Sequence[Condition]) -> str:
    """Say what rounds are counted to: by data set, or by condition where one data set has many."""
    by_data: dict[str, dict[str, list[str]]] = {}
    for condition in conditions:
        data, _, hardship = condition.title.partition(", ")
        score = standing.entries[condition.title].score
        number = goal(Target(condition.target.score), score)
        aim = f"{number} {PARTS[condition.target.on]} {score}"
        by_data.setdefault(data, {}).setdefault(aim, []).append(hardship)
    return "; ".join(
        f"{aim} on {data}" if len(aims) == 1 else f"{aim} on {data} with {', '.join(hardships)}"
        for data, aims in by_data.items()
        for aim, hardships in aims.items()
    )


def conditions_table(entries: Entries, conditions: Sequence[Condition], label: str) -> PaperTable:
    """Return how one selector did in each condition, beside fedavg and the fastest."""
    rows = []
    for condition in conditions:
        found = entries[condition.title]
        own, uniform = found[label], found[BASELINE]
        best = min(found.values(), key=lambda entry: entry.arrival)
        place = 1 + sum(entry.arrival < own.arrival for entry in found.values())
        arrived = best.rounds_to_target is not None
        rows.append(
            (
                condition.name,
                _with_interval(own),
                rounds_reached(uniform),
                MISSING if own is uniform else _paired(compare_entries(own, uniform)),
                f"{best.selector} {rounds_reached(best)}" if arrived else "nobody",
                f"{place}/{len(found)}" if arrived else MISSING,
            )
        )
    return PaperTable(
        f"{label} in each condition",
        ("condition", "rounds", BASELINE, "difference", "fastest", "place"),
        tuple(rows),
        None,
        "Rounds to the target with 95 % intervals; the difference is paired by seed, and negative"
        " where it is faster.",
    )


def rules_table(found: Sequence[Versus], conditions: int, seeds: int, label: str) -> PaperTable:
    """Return how one selector did against each of the others."""
    rows = tuple(
        (
            v.rule,
            f"{v.speed:.2f}" + ("" if v.low is None else f" ({v.low:.2f}–{v.high:.2f})"),
            f"{v.won} / {v.lost}",
            f"{v.seeds_won} / {v.seeds_lost} / {v.seeds_tied}",
        )
        for v in found
    )
    return PaperTable(
        f"{label} against each rule",
        ("rule", "times as fast", f"won / lost of {conditions}", "seeds: earlier / later / same"),
        rows,
        None,
        "Times as fast: the rule's rounds to the target over its own, geometric mean over the"
        " conditions, with the 95 % interval over pairs of seeds. Won / lost: conditions in which"
        " the 95 % interval of the paired difference leaves out 0." + _if_few(seeds),
    )


def pair_rows(
    found: Sequence[Versus], entries: Entries, conditions: Sequence[Condition], label: str
) -> list[dict[str, Any]]:
    """Return one row per condition and rule, as plain values."""
    rows = []
    for condition in conditions:
        for v in found:
            if condition.title not in v.comparisons:
                continue
            own, rule = (entries[condition.title][name] for name in (label, v.rule))
            c = v.comparisons[condition.title]
            rows.append(
                {
                    "condition": condition.name,
                    "target": condition.target.score,
                    "target_on": condition.target.on,
                    "seeds": len(own.seeds),
                    **_plain(own, "selector"),
                    **_plain(rule, "rule"),
                    "difference": c and c.difference,
                    "difference_low": c and c.low,
                    "difference_high": c and c.high,
                    "p_value": c and c.p_value,
                    "censored": c and c.censored,
                }
            )
    return rows


def entry_rows(entries: Entries, conditions: Sequence[Condition]) -> list[dict[str, Any]]:
    """Return one row per condition and selector, as plain values; the fastest first."""
    return [
        {
            "condition": condition.name,
            "selector": entry.selector,
            "seeds": len(entry.seeds),
            "rounds": entry.rounds,
            "target": entry.target.score,
            "target_on": entry.target.on,
            "rounds_to_target": entry.rounds_to_target,
            "interval_low": entry.interval and entry.interval.low,
            "interval_high": entry.interval and entry.interval.high,
            "megabytes_to_target": rounded(_megabytes(entry), 3),
            "time_to_target": rounded(entry.time_to_target, 3),
            **{name: rounded(measure(entry), 4) for name, measure in MEASURES.items()},
            "selection_ms": rounded(1e3 * float(entry.selection_seconds.mean()), 3),
        }
        for condition in conditions
        for entry in sorted(entries[condition.title].values(), key=lambda e: e.arrival)
    ]


def _megabytes(entry: Entry) -> float | None:
    return None if entry.bytes_to_target is None else entry.bytes_to_target / 1e6


def _plain(entry: Entry, who: str) -> Mapping[str, Any]:
    interval = entry.interval
    return {
        who: entry.selector,
        f"{who}_rounds": entry.rounds_to_target,
        f"{who}_rounds_low": interval and interval.low,
        f"{who}_rounds_high": interval and interval.high,
        f"{who}_bytes": entry.bytes_to_target,
        f"{who}_final_train": entry.final("train"),
        f"{who}_final_test": entry.final("test"),
        f"{who}_peak_test": entry.peak("test"),
        f"{who}_drop_test": entry.drop("test"),
        f"{who}_worst_decile": MEASURES["worst_decile"](entry),
    }


def _with_interval(entry: Entry) -> str:
    reached, interval = rounds_reached(entry), rounds_interval(entry)
    return reached if interval in ("", reached) else f"{reached} ({interval})"


def _paired(comparison: Comparison | None) -> str:
    if comparison is None:
        return MISSING
    low, high = signed(comparison.low), signed(comparison.high)
    return f"{difference(comparison)} ({low}, {high})"


def _if_few(seeds: int) -> str:
    """Say what intervals over few seeds do not show, as the end of a note."""
    return f" {said}" if (said := too_few(seeds)) else ""


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)
