import dataclasses
import shlex

from fedcohort.report import summarise
from fedcohort.report.command import redo_commands


def test_runs_that_differ_in_selector_and_seed_are_one_command(store):
    (command,) = redo_commands(summarise(store, 0.8), "my results")
    words = shlex.split(command)
    assert words[:2] == ["fedcohort", "run"]
    options = {w: words[i + 1] for i, w in enumerate(words) if w.startswith("--")}
    assert options["--skew"] == "1"
    assert options["--clients"] == "20"
    assert options["--epochs"] == "3"
    assert options["--seeds"] == "0..2"
    assert options["--target"] == "0.8"
    assert options["--out"] == "my results"
    # The command line evaluates on a part by default; these runs did not.
    assert options["--eval-samples"] == "all"
    assert [words[i + 1] for i, w in enumerate(words) if w == "--selector"] == ["dp3s", "fedavg"]


def test_unusual_settings_are_named(store, copy_runs):
    changed = copy_runs(
        store,
        change=lambda c: dataclasses.replace(
            c, seed=2 * c.seed, batch_size=8, reuse=True, init="xavier-normal", eval_samples=100
        ),
    )
    (command,) = redo_commands(summarise(changed, None), "out")
    for part in ("--batch-size 8", "--reuse --", "--init xavier-normal", "--eval-samples 100"):
        assert part in command
    assert "--seeds 0,2,4" in command
    assert "--target" not in command
