"""What choosing the cohort costs a Flower server, at 10,000 registered nodes.

    python benchmarks/flower_overhead.py [--quick] [--json]

The transport is a mock in this process that answers at once. A round's overhead is the time spent
in CohortStrategy outside the wrapped FedAvg and the mock; beside it stands the time Flower's own
FedAvg takes to sample as many of the same nodes. In the steady federation everyone stays; in the
restless one, 5 nodes are away in every round, other ones each time. The first round, which also
profiles everyone, is listed apart. --quick measures fewer rounds. Measure on an idle machine, or
with OPENBLAS_NUM_THREADS=1: on a busy one, threads of small matrix products wait for each other.
"""

import argparse
import contextlib
import itertools
import json
import logging
import statistics
import time
from collections.abc import Iterator

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from fedcohort import list_selectors
from fedcohort.flower import CohortStrategy
from fedcohort.flower.protocol import introduction_content
from fedcohort.selection import Need

NODES, COHORT, Q, GROUPS, AWAY = 10_000, 10, 500, 10, 5
SELECTORS = ("fedavg", "dp3s", "match")
TARGET_MS = 50.0


class Stopwatch:
    """Adds up the time that is not the adapter's."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        began = time.perf_counter()
        self._depth += 1
        yield
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - began


class MockGrid(Grid):
    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        rng = np.random.default_rng(0)
        centres = rng.standard_normal((GROUPS, Q), dtype=np.float32)
        noise = rng.standard_normal((NODES, Q), dtype=np.float32)
        profiles = centres[rng.integers(GROUPS, size=NODES)] + np.float32(0.3) * noise
        self.everyone = [int(n) for n in rng.integers(2**62, 2**63, size=NODES)]
        self.away: set[int] = set()
        self._introductions = {
            node: introduction_content(f"{i}", 100, {Need.PROFILE: profile})
            for i, (node, profile) in enumerate(zip(self.everyone, profiles, strict=True))
        }
        self._sent: dict[str, Message] = {}
        self._ids = itertools.count()

    def set_run(self, run): ...

    @property
    def run(self):
        return None

    def create_message(self, *_, **__):
        raise NotImplementedError

    def get_node_ids(self):
        with self._watch.running():
            return [node for node in self.everyone if node not in self.away]

    def push_messages(self, messages):
        with self._watch.running():
            ids = []
            for message in messages:
                ids.append(f"{next(self._ids)}")
                message.metadata.__dict__["_message_id"] = ids[-1]
                self._sent[ids[-1]] = message
            return ids

    def pull_messages(self, message_ids):
        with self._watch.running():
            return [self._reply(self._sent.pop(i)) for i in message_ids if i in self._sent]

    def send_and_receive(self, messages, **_):
        return self.pull_messages(self.push_messages(messages))

    def _reply(self, message: Message) -> Message:
        if message.metadata.message_type.startswith("query"):
            content = self._introductions[message.metadata.dst_node_id]
        else:
            metrics = MetricRecord({"num-examples": 100, "train_loss": 1.0})
            content = RecordDict({"arrays": model(), "metrics": metrics})
        return Message(content, reply_to=message)


class TimedFedAvg(FedAvg):
    def __init__(self, watch: Stopwatch) -> None:
        super().__init__(fraction_evaluate=0.0)
        self._watch = watch

    def configure_train(self, *arguments):
        with self._watch.running():
            return super().configure_train(*arguments)

    def aggregate_train(self, *arguments):
        with self._watch.running():
            return super().aggregate_train(*arguments)


def model() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(1000, np.float32))})


def overheads(selector: str, rounds: int, *, restless: bool) -> list[float]:
    """Milliseconds of overhead, one entry a round."""
    watch = Stopwatch()
    grid = MockGrid(watch)
    strategy = CohortStrategy(
        TimedFedAvg(watch), selector, cohort=COHORT, min_clients=NODES, identify=True
    )
    rng, arrays, found = np.random.default_rng(1), model(), []
    for round_ in range(1, rounds + 1):
        if restless and round_ > 1:
            grid.away = {grid.everyone[i] for i in rng.integers(NODES, size=AWAY)}
        watch.seconds = 0.0
        began = time.perf_counter()
        messages = list(strategy.configure_train(round_, arrays, ConfigRecord(), grid))
        own = time.perf_counter() - began - watch.seconds
        replies = grid.send_and_receive(messages)
        watch.seconds = 0.0
        began = time.perf_counter()
        strategy.aggregate_train(round_, replies)
        own += time.perf_counter() - began - watch.seconds
        assert len(strategy.history[-1].trained) == COHORT
        found.append(1e3 * own)
    return found


def flowers_own(rounds: int) -> float:
    """Milliseconds that Flower's FedAvg takes to sample and address a cohort of the same size."""
    grid = MockGrid(Stopwatch())
    strategy = FedAvg(fraction_train=COHORT / NODES, fraction_evaluate=0.0)
    arrays, times = model(), []
    for round_ in range(1, rounds + 1):
        began = time.perf_counter()
        assert len(list(strategy.configure_train(round_, arrays, ConfigRecord(), grid))) == COHORT
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    rounds = 10 if options.quick else 50

    flower = flowers_own(rounds)
    results = {"nodes": NODES, "target_ms": TARGET_MS, "flower_fedavg_ms": flower}
    print(f"{NODES} nodes, cohorts of {COHORT}; FedAvg alone samples in {flower:.2f} ms")
    print(f"{'selector':10} {'federation':10} {'median ms':>10} {'worst ms':>10} {'first ms':>10}")
    for selector in (name for name in SELECTORS if name in list_selectors()):
        for restless in (False, True):
            first, *later = overheads(selector, rounds + 1, restless=restless)
            kind = "restless" if restless else "steady"
            median, worst = statistics.median(later), max(later)
            print(f"{selector:10} {kind:10} {median:10.2f} {worst:10.2f} {first:10.0f}")
            results[f"{selector}_{kind}_ms"] = median
            results[f"{selector}_{kind}_worst_ms"] = worst
            results[f"{selector}_{kind}_first_ms"] = first
            results[f"{selector}_{kind}_over_flower"] = median / flower
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
