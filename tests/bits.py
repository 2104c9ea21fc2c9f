"""Runs of which every bit is compared, and what came of them.

    python bits.py MODEL...

prints one line per run of the models' groups: a hash of all its records, its last model and what
its selector knows then. ``products`` is a group of selectors that leave large products to NumPy.
"""

import dataclasses
import hashlib
import sys

import numpy as np
from running import lockstep_of, without_times

from fedcohort.federation import load_dataset
from fedcohort.simulation import RunConfig

SELECTORS = (
    *("clustered", "divfl", "fedsae:workload=ira", "pow-d", "hics"),
    *("match", "dp3s", "fedavg", "fedcor", "oort", "afl"),
)
UNEQUAL = RunConfig(
    clients=30,
    cohort=6,
    skew="dirichlet:0.3",
    size_spread=1.0,
    momentum=0.5,
)
# Clients have from 15 to several hundred samples: of each batch size below, some clients have one
# batch and others several.
SHAPES = {
    "mlp": dataclasses.replace(UNEQUAL, model="mlp", lr=0.5, batch_size=30, rounds=5),
    "cnn-small": dataclasses.replace(UNEQUAL, model="cnn-small", lr=0.3, batch_size=30, rounds=4),
    "cnn": dataclasses.replace(
        UNEQUAL,
        model="cnn",
        dataset="mnist",
        skew="1",
        clients=20,
        size_spread=0.5,
        samples_per_client=15,
        batch_size=15,
        lr=0.1,
        rounds=2,
        eval_samples=50,
    ),
}

# Updates and profiles so wide, and clients so many, that a BLAS shares a product among its threads.
LARGE_PRODUCTS = ("clustered", "divfl", "dp3s:kernel=low-rank,rank=40", "match")
WIDE = RunConfig(clients=80, cohort=10, rounds=3, model="mlp:hidden=1000", batch_size=30, lr=0.2)


def datasets():
    """Return a part of MNIST, so small that evaluating on all of it takes no time."""
    whole = load_dataset("mnist")
    return {
        "mnist": dataclasses.replace(
            whole,
            x_train=whole.x_train[:1000],
            y_train=whole.y_train[:1000],
            x_test=whole.x_test[:100],
            y_test=whole.y_test[:100],
        )
    }


def start(configs):
    """Return runs in lockstep, before their first round."""
    dataset = datasets()["mnist"] if configs[0].dataset == "mnist" else None
    return lockstep_of(*configs, dataset=dataset)


def runs_of(model):
    """Return a group: every selector, and others of another kind beside them."""
    if model == "products":
        return [dataclasses.replace(WIDE, selector=selector) for selector in LARGE_PRODUCTS]
    base, seeds = SHAPES[model], range(1 if model == "cnn" else 2)
    runs = [dataclasses.replace(base, selector=s, seed=seed) for s in SELECTORS for seed in seeds]
    beside = [
        # Larger cohorts and more work than the others': they decide how wide all tables are.
        dataclasses.replace(base, selector="fedavg", cohort=15, epochs=2.0, seed=7),
        dataclasses.replace(base, selector="match", dropout=0.4, availability="0.6", seed=8),
        dataclasses.replace(base, selector="pow-d", clients=12, skew="iid", size_spread=0.0),
    ]
    return runs + beside


@dataclasses.dataclass(frozen=True)
class Bits:
    """All rounds of a run, without what the clock says, and its state after the last one."""

    records: list
    state: dict

    def __eq__(self, other):
        """Tell whether two are the same to the last bit."""
        return (
            self.records == other.records
            and self.state.keys() == other.state.keys()
            and all(_same(values, other.state[name]) for name, values in self.state.items())
        )

    __hash__ = None

    def digest(self):
        """Return 16 digits that change with any bit of the records and the state."""
        hashed = hashlib.sha256(repr(self.records).encode())
        for name, values in sorted(self.state.items()):
            hashed.update(name.encode() + values.tobytes())
        return hashed.hexdigest()[:16]


def _same(one, other):
    return (one.dtype, one.shape) == (other.dtype, other.shape) and (
        np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()
    )


def finish(lockstep, records=None):
    """Do the rest of the rounds, and return what came of each run."""
    columns = records or [[record] for record in lockstep.start()]
    while lockstep.round < lockstep.configs[0].rounds:
        for column, record in zip(columns, lockstep.advance(), strict=True):
            column.append(record)
    return [
        Bits(list(map(without_times, column)), state)
        for column, (_, state) in zip(columns, lockstep.states(), strict=True)
    ]


def bits_of(configs):
    """Train runs in lockstep, to their end."""
    return finish(start(configs))


def main(models):
    for model in models:
        for config, bits in zip(runs_of(model), bits_of(runs_of(model)), strict=True):
            sys.stdout.write(f"{model} {config.selector} {config.seed} {bits.digest()}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
