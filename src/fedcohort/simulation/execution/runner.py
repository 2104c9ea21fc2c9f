"""One way to run a study, whoever asks and wherever it is trained."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from fedcohort.errors import CohortSizeError, InvalidModelError, StudyError
from fedcohort.federation import Federation
from fedcohort.selection import Need
from fedcohort.simulation.config import SETTINGS, RunConfig
from fedcohort.simulation.content import once, with_content
from fedcohort.simulation.devices import device_for
from fedcohort.simulation.execution.here import here
from fedcohort.simulation.execution.work import Executor, Work
from fedcohort.simulation.groups import groups_of
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.packing import packer
from fedcohort.simulation.planning import Entered, enter_study
from fedcohort.simulation.profiling import check_layer
from fedcohort.simulation.progress import Progress
from fedcohort.simulation.store import Store
from fedcohort.simulation.study import Study
from fedcohort.simulation.system import parse_availability
from fedcohort.training.inputs import some_samples

# Runs that share these can be built from the data, or none of them can.
_SHAPING = [name for name, s in SETTINGS.items() if s.federation and name != "seed"]
_SHAPING += ["cohort", "score"]
# Profiles of runs that share these can be read from their layer, or none of them can.
_PROFILED = ("dataset", "task", "model", "profile_layer", "profile_epsilon")


@dataclasses.dataclass(frozen=True)
class PreparedStudy:
    """A study of which everything that can be wrong with its input has been looked for.

    Attributes
    ----------
    study : Study
        Its runs also say what the names in them stand for.
    materials : Materials
        What runs start from.
    device : torch.device
        Where they are trained.
    """

    study: Study
    materials: Materials
    device: torch.device


def prepare_study(
    study: Study, *, device: str = "auto", materials: Materials | None = None
) -> PreparedStudy:
    """Load what a study needs, and refuse what cannot be done, before anything is written.

    `materials` has objects that configurations name.
    """
    materials = materials or Materials()
    where = device_for(study.configs, device)
    # First of all, since a model that is built or run may change what its code refers to.
    study = with_content(study, materials)
    needs = once(lambda config: _check_selector(config, materials), *_SHAPING, "selector")
    read_layer = once(
        lambda config: check_layer(
            config, materials.model(config), some_samples(materials.dataset(config))[0]
        ),
        *_PROFILED,
    )
    check_availability = once(
        lambda config: parse_availability(config.availability).check(
            len(materials.federation(config))
        ),
        *_SHAPING,
        "availability",
    )
    for config in study.configs:
        check_availability(config)
        if reason := materials.check_model(config):
            _check_batches(config, materials.federation(config), reason)
        if Need.PROFILE in needs(config) and config.profile == "fc1":
            read_layer(config)
    _check_targets(study, materials)
    return PreparedStudy(study, materials, where)


def _check_selector(config: RunConfig, materials: Materials) -> frozenset[Need]:
    """Refuse one that does not fit the model, or may choose among too few; return its needs."""
    clients, selector = len(materials.federation(config)), materials.selector(config)
    left = len(selector.eligible(np.arange(clients)))
    if left < min(config.cohort, clients):
        raise CohortSizeError(
            f"Selector {config.selector!r} may choose among {left} of the {clients} clients, and a"
            f" cohort has {config.cohort}: let it choose among more, or lower the cohort."
        )
    return selector.needs


def _check_batches(config: RunConfig, federation: Federation, reason: str) -> None:
    """Refuse batches of one sample, for a model that takes none."""
    sizes = federation.sizes
    last = sizes if config.batch_size is None else (sizes - 1) % config.batch_size + 1
    if (last > 1).all():
        return
    client = int((last == 1).argmax())
    raise InvalidModelError(
        f"Model {config.model!r} cannot train on a batch of one sample, which client {client} of"
        f" seed {config.seed} has (samples: {sizes[client]}, batch size:"
        f" {config.batch_size or 'full'}): {reason}. Choose another batch size or other clients, or"
        " GroupNorm in place of a BatchNorm."
    )


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
            groups_of(store, prepared.study.configs),
            materials,
            device.type,
            report,
            stop,
            deadline,
            tuple(logs),
            keep_models,
        )
    )
