"""What clients get that claim to hold a million times their data, with and without the limit.

    python benchmarks/claimed_sizes.py [--quick] [--json] [--save FILE]

100 clients of ten kinds with sizes of a log-normal law, cohorts of 10, 5 seeds × 40 rounds; the
profiles, updates and losses of the kinds are made up, since only what liars get is measured. One
liar or ten of 100 multiply their size by 10⁶. "Before" every claim counts, "after" a size counts up
to four upper quartiles of the others' (`fedcohort.selection.sizes`, the default in federations).
"""

import argparse
import json
from typing import Any

import numpy as np
from liars import claimed

from fedcohort import list_selectors, make_selector
from fedcohort.selection import Need, Outcome, bounded_sizes

CLIENTS, KINDS, COHORT = 100, 10, 10
CASES = {"1 liar": 1, "10 liars": 10}


class Clients:
    """Ten kinds of clients that answer whatever a selector asks."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        kinds = np.arange(CLIENTS) % KINDS
        self.sizes = np.ceil(100 * rng.lognormal(sigma=0.5, size=CLIENTS))
        self.counts = np.eye(KINDS)[kinds] * self.sizes[:, None]
        self.profiles = 3 + rng.normal(size=(KINDS, 30))[kinds] + 0.05 * rng.normal(size=(100, 30))
        updates = rng.normal(size=(KINDS, 50))[kinds] + 0.1 * rng.normal(size=(CLIENTS, 50))
        self.answers: dict[Need, Any] = {
            Need.PROFILE: self.profiles,
            Need.LOSS: rng.uniform(0.5, 3.0, CLIENTS),
            Need.UPDATE: updates.astype(np.float32),
            Need.DURATION: rng.uniform(1.0, 2.0, CLIENTS),
        }

    def play(self, selector, round_, seed):
        """Do one round and return its cohort."""
        rng = np.random.default_rng([seed, round_])
        for need, ids in selector.ask(COHORT, rng=rng).items():
            selector.tell(need, ids, self.answers[need][ids])
        cohort = selector.select(COHORT, rng=rng)
        ids = np.unique(cohort.ids)
        ones = np.ones(len(ids))
        selector.observe(
            Outcome(
                ids,
                ones > 0,
                losses=self.answers[Need.LOSS][ids] * 0.97**round_,
                updates=self.answers[Need.UPDATE][ids],
                durations=self.answers[Need.DURATION][ids],
                passes=ones,
                capacity=2 * ones,
            )
        )
        return cohort


def shares(name, liars, sizes_of, seeds, rounds):
    """Return the share of places and of weight that liars get."""
    places, weights = [], []
    for seed in seeds:
        clients = Clients(seed)
        rows = np.random.default_rng([seed, 1]).choice(CLIENTS, liars, replace=False)
        sizes = sizes_of(claimed(1e6)(clients.sizes, rows))
        selector = make_selector(name).fit(
            clients.profiles, sizes=sizes, label_counts=clients.counts
        )
        for round_ in range(rounds):
            cohort = clients.play(selector, round_, seed)
            lying = np.isin(cohort.ids, rows)
            places.append(lying.mean())
            weights.append(cohort.weights[lying].sum() / cohort.weights.sum())
    return float(np.mean(places)), float(np.mean(weights))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, 20 rounds")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    # Here, since tests import this file from where another package has that name.
    from markdown import add_save, save, table

    add_save(parser)
    options = parser.parse_args()
    seeds, rounds = (range(1), 20) if options.quick else (range(5), 40)
    results, rows = {}, []
    for name in list_selectors():
        results[name], cells = {}, []
        for case, liars in CASES.items():
            before = shares(name, liars, lambda sizes: sizes, seeds, rounds)
            after = shares(name, liars, bounded_sizes, seeds, rounds)
            results[name][case] = {"before": before, "after": after}
            cells += [f"{b:.2f} → {a:.2f}" for b, a in zip(before, after, strict=True)]
        rows.append([name, *cells])
    header = ["selector", *(f"{c}: {what}" for c in CASES for what in ("places", "weight"))]
    table("liars' share of places and of weight, every claim counts → limited", header, rows)
    save(options.save)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
