import dataclasses
import sys

import pytest

from fedcohort.errors import InvalidParameterError, MissingPackageError
from fedcohort.simulation import RoundRecord, RunConfig
from fedcohort.simulation.logs import open_logs, parse_log, run_name

CONFIG = RunConfig(rounds=3, selector="fedsae:beta=0.05", seed=4)
ROUNDS = [
    RoundRecord(round=0, train_score=0.1),
    RoundRecord(round=1, gemd=0.5, cohort=(1, 2)),
    RoundRecord(round=2, train_score=0.2, gemd=0.25),
    RoundRecord(round=3, train_score=0.3, gemd=0.125),
]


def logged_in_two_sittings(target):
    """Log a run that is interrupted after two of its rounds."""
    for part in (ROUNDS[:2], ROUNDS[2:]):
        with open_logs([target]) as log:
            log(CONFIG, part, "accuracy")


def test_tensorboard_reads_what_was_logged(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logged_in_two_sittings(f"tensorboard:{tmp_path}")
    (folder,) = tmp_path.iterdir()
    assert folder.name == run_name(CONFIG)
    events = EventAccumulator(str(folder)).Reload()
    assert [(e.step, round(e.value, 6)) for e in events.Scalars("train_accuracy")] == [
        (0, 0.1),
        (2, 0.2),
        (3, 0.3),
    ]
    assert [e.step for e in events.Scalars("gemd")] == [1, 2, 3]
    (text,) = events.Tensors("settings/text_summary")
    assert CONFIG.to_json().encode() in text.tensor_proto.string_val[0]


def test_mlflow_reads_what_was_logged(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    # MLflow discourages folders, but a database would take it seconds to set up.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = tmp_path.as_uri()
    logged_in_two_sittings(f"mlflow:{uri}")
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("fedcohort")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == run_name(CONFIG)
    assert run.data.params["selector"] == CONFIG.selector
    history = client.get_metric_history(run.info.run_id, "train_accuracy")
    assert [(m.step, m.value) for m in history] == [(0, 0.1), (2, 0.2), (3, 0.3)]


def test_runs_of_other_settings_have_other_names():
    assert run_name(CONFIG) != run_name(dataclasses.replace(CONFIG, lr=0.2))
    assert not set(run_name(CONFIG)) & set(":/= ")
    long = dataclasses.replace(CONFIG, selector=f"only(match; {'ö' * 150})")
    assert 200 < len(run_name(long).encode()) < 220


@pytest.mark.parametrize("target", ["", "tensorboard", "tensorboard:", "paper:here"])
def test_other_places_are_refused(target):
    with pytest.raises(InvalidParameterError, match="tensorboard:FOLDER or mlflow:URI"):
        parse_log(target)


def test_a_server_that_is_not_there_is_named():
    with (
        pytest.raises(InvalidParameterError, match="mlflow:gopher"),
        open_logs(["mlflow:gopher://nowhere"]),
    ):
        pass


@pytest.mark.parametrize(
    ("target", "module"), [("tensorboard:x", "torch.utils.tensorboard"), ("mlflow:x", "mlflow")]
)
def test_a_missing_package_says_what_to_install(target, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with (
        pytest.raises(MissingPackageError, match=rf"fedcohort\[{target.partition(':')[0]}\]"),
        open_logs([target]),
    ):
        pass
