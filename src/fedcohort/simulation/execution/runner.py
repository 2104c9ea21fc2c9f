"""One way to run a study, whoever asks and wherever it is trained."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fedcohort.errors import StudyError
from fedcohort.simulation.config import SETTINGS, RunConfig
from fedcohort.simulation.content import with_content
from fedcohort.simulation.devices import device_for
from fedcohort.simulation.execution.here import here
from fedcohort.simulation.execution.work import Executor, Work
from fedcohort.simulation.groups import groups_of
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.packing import packer
from fedcohort.simulation.planning import Entered, enter_study
from fedcohort.simulation.progress import Progress
from fedcohort.simulation.store import Store
from fedcohort.simulation.study import Study

# Runs that share these can be built from the data, or none of them can.
_SHAPING = [name for name, s in SETTINGS.items() if s.federation and name != "seed"]
_SHAPING += ["cohort", "score"]


@dataclasses.dataclass(frozen=True)
class PreparedStudy:
    """A study of which everything that can be wrong with its input has been looked for.

    Attributes
    ----------
    study : Study
        All of it.
    wanted : tuple of RunConfig
        The runs to do now.
    materials : Materials
        What runs start from.
    device : torch.device
        Where they are trained.
    """

    study: Study
    wanted: tuple[RunConfig, ...]
    materials: Materials
    device: torch.device


def prepare_study(
    study: Study,
    *,
    parts: Sequence[str] = (),
    device: str = "auto",
    materials: Materials | None = None,
) -> PreparedStudy:
    """Load what a study needs, and refuse what cannot be done, before anything is written.

    The parts to do now are all if none is named; `materials` has objects that configurations name.
    """
    materials = materials or Materials()
    where = device_for((study.only(parts) if parts else study).configs, device)
    checked: set[tuple[Any, ...]] = set()
    for config in study.configs:
        shape = tuple(getattr(config, name) for name in _SHAPING)
        if shape not in checked:
            checked.add(shape)
            materials.federation(config)
            materials.model(config)
    _check_targets(study, materials)
    complete = with_content(study, materials)
    wanted = complete.only(parts).configs if parts else complete.configs
    return PreparedStudy(complete, wanted, materials, where)


def _check_targets(study: Study, materials: Materials) -> None:
    """Refuse to count rounds to a score on test samples that are not there."""
    tested = {
        config.dataset: config
        for part in study.parts
        if part.target is not None and part.target.on == "test"
        for config in part.configs
    }
    for name, config in tested.items():
        if not len(materials.dataset(config).y_test):
            raise StudyError(
                f"Rounds cannot be counted to a test score on {name!r}, which has no test samples:"
                " count them to a training score."
            )


def run_study(
    prepared: PreparedStudy,
    store: Store,
    executor: Executor = here,
    *,
    entered: Callable[[Entered], None] = lambda _: None,
    report: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    deadline: float = math.inf,
    logs: Sequence[str] = (),
    keep_models: bool = False,
) -> bool:
    """Do all runs of a study that the store does not hold yet, resuming where they were left.

    Parameters
    ----------
    prepared : PreparedStudy
        From `prepare_study`.
    store : Store
        Where results go, and where interrupted runs resume from.
    executor : Executor
        Where groups are trained: `here`, `Processes` or `OnRay`.
    entered : callable
        Hears what of the study was there already, before training begins.
    report, stop, deadline, logs, keep_models
        As in `Work`.

    Returns
    -------
    bool
        Whether all runs are finished.
    """
    materials, device = prepared.materials, prepared.device
    entered(enter_study(store, prepared.study, packer(materials, device)))
    return executor(
        Work(
            store,
            groups_of(store, prepared.wanted),
            materials,
            device.type,
            report,
            stop,
            deadline,
            tuple(logs),
            keep_models,
        )
    )
