import dataclasses
import shlex

from fedcohort.report import summarise
from fedcohort.report.command import redo_commands
from fedcohort.simulation.scores import Target


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
    assert "--target-on" not in options
    assert options["--out"] == "my results"
    # The command line evaluates on a part by default, and in the fastest precision.
    assert options["--eval-samples"] == "all"
    assert options["--precision"] == "float32"
    assert not {"--dropout", "--seed", "--content"} & options.keys()
    assert [words[i + 1] for i, w in enumerate(words) if w == "--selector"] == ["dp3s", "fedavg"]


def test_a_target_on_test_samples_is_named_as_such(store):
    (command,) = redo_commands(summarise(store, Target(0.8, "test")), "out")
    assert "--target 0.8 --target-on test" in command


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


def test_data_with_clients_of_their_own_are_not_divided_again(store, copy_runs):
    # Versions that ignored the skew and the clients wrote them down.
    changed = copy_runs(store, change=lambda c: dataclasses.replace(c, dataset="my.npz"))
    changed.db.execute("UPDATE runs SET config = json_remove(config, '$.content')")
    (command,) = redo_commands(summarise(changed, None), "out")
    assert "--dataset my.npz --cohort 5" in command
    assert "--skew" not in command
    assert "--clients" not in command


def test_data_that_were_replaced_cannot_be_trained_on_again(store, copy_runs):
    changed = copy_runs(store, change=lambda c: dataclasses.replace(c, content="a" * 16))
    for config in store.configs():
        changed.begin(config, store.facts(config.key), store.federation(config))
        changed.save({config.key: store.records(config.key)}, done=True)
    (command,) = redo_commands(summarise(changed, None), "out")
    assert command.count("--selector") == 2
