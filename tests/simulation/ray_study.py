"""Do a study on a small Ray cluster that loses a node while it trains.

    python ray_study.py STUDY.toml FOLDER lost|gone

`lost` removes one of two nodes once both have saved something, and adds a third; `gone` removes the
only one, and wishes to stop once it is said that there is none. Prints one JSON document: whether
the study is finished, what was said, and from which rounds groups resumed.
"""

import json
import os
import sys
import warnings
from pathlib import Path

os.environ["RAY_DEDUP_LOGS_SKIP_REGEX"] = r"[\s\S]"
# A node that is gone is missed in a second, not in fifteen.
os.environ["RAY_health_check_period_ms"] = "200"  # noqa: SIM112 (as Ray writes it)

import ray
from ray.cluster_utils import Cluster

from fedcohort.simulation import Store, group_training
from fedcohort.simulation.claims import Claims
from fedcohort.simulation.execution import on_ray
from fedcohort.simulation.execution.on_ray import OnRay
from fedcohort.simulation.execution.runner import prepare_study, run_study
from fedcohort.simulation.groups import group_states
from fedcohort.simulation.study import read_study


def main(file, folder, what):
    # A save after every round: there is something to resume from.
    on_ray.SECONDS_BETWEEN_SAVES = group_training.SECONDS_BETWEEN_SAVES = 0.0
    group_training._SAVING_SHARE = 0
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(1 if what == "gone" else 2)]
    init, claim = ray.init, Claims.claim
    ray.init = lambda **options: init(address=cluster.address, **options)
    removed, waiting, resumed = [], [], []

    def report(progress):
        saved = [group.round for group in group_states(store) if group.holder]
        if not removed and len(saved) == len(nodes) and min(saved) >= 2:
            removed.append(nodes[0])
            cluster.remove_node(nodes[0], allow_graceful=False)
            if what == "lost":
                cluster.add_node(num_cpus=1)
        if progress.note.startswith("waiting for a machine"):
            waiting.append(progress)

    def claim_and_note(self, names):
        found = claim(self, names)
        if found is not None and found.states:
            resumed.append(found.states[0][0])
        return found

    Claims.claim = claim_and_note
    try:
        prepared = prepare_study(read_study(file), device="cpu")
        with Store(Path(folder)) as store, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            stop = lambda: what == "gone" and bool(waiting)  # noqa: E731
            finished = run_study(prepared, store, OnRay(), report=report, stop=stop)
            left = sum(bool(group.holder) for group in group_states(store))
    finally:
        cluster.shutdown()
    messages = sorted({str(one.message) for one in said if "fedcohort" in one.filename})
    found = {"finished": finished, "said": messages, "resumed": resumed, "held": left}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
