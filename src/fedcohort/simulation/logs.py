"""Rounds to TensorBoard or MLflow as they are saved: off unless asked for.

    tensorboard:FOLDER      a sub-folder a run, its scalars by round, its settings as text
    mlflow:URI              an MLflow run a run, its metrics by round, its settings as parameters

Only saved rounds are logged, so an interrupted study logs none twice.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedcohort.errors import InvalidParameterError, MissingPackageError
from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.scores import score_column
from fedcohort.simulation.store import RoundRecord

Log = Callable[[RunConfig, Sequence[RoundRecord], str], None]
"""Takes a run's configuration, its new rounds, and what its score is called."""

_METRICS = (
    "train_loss",
    "test_loss",
    "gemd",
    "bytes_down",
    "bytes_up",
    "seconds",
    "selection_seconds",
)
# What one call may hold, by MLflow's protocol.
_MOST_METRICS = 1000
# File systems take 255 bytes, and something stands behind the name.
_LONGEST_NAME = 200


@contextlib.contextmanager
def open_logs(targets: Sequence[str]) -> Iterator[Log]:
    """Open what rounds are logged to after every save: ``tensorboard:FOLDER`` or ``mlflow:URI``."""
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(_open(target)) for target in targets]

        def log(config: RunConfig, records: Sequence[RoundRecord], score: str) -> None:
            for each in logs:
                each(config, records, score)

        yield log


def parse_log(target: str) -> tuple[str, str]:
    """Split ``tensorboard:FOLDER`` or ``mlflow:URI`` into its kind and its place."""
    kind, _, place = target.partition(":")
    if kind not in ("tensorboard", "mlflow") or not place:
        raise InvalidParameterError(
            f"--log {target!r} cannot be read: write tensorboard:FOLDER or mlflow:URI."
        )
    return kind, place


def _open(target: str) -> contextlib.AbstractContextManager[Log]:
    kind, place = parse_log(target)
    return _tensorboard(place) if kind == "tensorboard" else _mlflow(place)


@contextlib.contextmanager
def _tensorboard(folder: str) -> Iterator[Log]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingPackageError("--log tensorboard", "tensorboard", error) from error
    writers: dict[str, Any] = {}

    def log(config: RunConfig, records: Sequence[RoundRecord], score: str) -> None:
        if config.key not in writers:
            writers[config.key] = SummaryWriter(str(Path(folder) / run_name(config)))
        writer = writers[config.key]
        for record in records:
            if record.round == 0:
                writer.add_text("settings", config.to_json())
            for name, value in _values(record, score).items():
                writer.add_scalar(name, value, record.round)
        writer.flush()
        if records[-1].round == config.rounds:
            writers.pop(config.key).close()

    try:
        yield log
    finally:
        for writer in writers.values():
            writer.close()


@contextlib.contextmanager
def _mlflow(uri: str) -> Iterator[Log]:
    try:
        from mlflow import MlflowClient
        from mlflow.entities import Metric
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        raise MissingPackageError("--log mlflow", "mlflow", error) from error
    try:
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name("fedcohort")
        experiment = found.experiment_id if found else client.create_experiment("fedcohort")
    except MlflowException as error:
        raise InvalidParameterError(f"--log mlflow:{uri} cannot be used ({error}).") from error
    runs: dict[str, str] = {}

    def log(config: RunConfig, records: Sequence[RoundRecord], score: str) -> None:
        if config.key not in runs:
            tag = f"tags.`fedcohort.run` = '{config.key}'"
            earlier = client.search_runs([experiment], tag)
            runs[config.key] = earlier[0].info.run_id if earlier else begin(config)
        now = int(1000 * time.time())
        metrics = [
            Metric(name, value, now, record.round)
            for record in records
            for name, value in _values(record, score).items()
        ]
        for start in range(0, len(metrics), _MOST_METRICS):
            client.log_batch(runs[config.key], metrics[start : start + _MOST_METRICS])
        if records[-1].round == config.rounds:
            client.set_terminated(runs.pop(config.key))

    def begin(config: RunConfig) -> str:
        tags = {"fedcohort.run": config.key}
        run = client.create_run(experiment, tags=tags, run_name=run_name(config)).info.run_id
        for name, value in dataclasses.asdict(config).items():
            client.log_param(run, name, value)
        return str(run)

    yield log


def run_name(config: RunConfig) -> str:
    """Return what a run is called where people look: unique, and fit for a folder's name."""
    words = [Path(config.dataset).stem, config.skew, config.selector, f"seed{config.seed}"]
    plain = "-".join(words).translate({ord(c): "_" for c in ":/\\, ="})
    short = plain.encode()[:_LONGEST_NAME].decode(errors="ignore")
    return f"{short}-{config.key[:8]}"


def _values(record: RoundRecord, score: str) -> dict[str, float]:
    found = {
        score_column("train", score): record.train_score,
        score_column("test", score): record.test_score,
    } | {name: getattr(record, name) for name in _METRICS}
    return {name: float(value) for name, value in found.items() if value is not None}
