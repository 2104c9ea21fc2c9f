"""Which way of local training is fastest on this CPU, measured once and remembered.

What wins depends on the model, the batch, the number of jobs and the machine: oneDNN's
convolutions, one client a core, for large models; all clients as one program for small ones. All
ways compute the same thing: they agree with each other as far as float32 rounding allows. On one
machine the choice for a shape is made once and kept in the user's cache folder, so that a run that
is repeated or resumed there is trained the same way again, and has the same result to the last bit.
"""

import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from fedcohort.federation.sources import user_cache
from fedcohort.training.chain import read_chain
from fedcohort.training.clients import PerClient
from fedcohort.training.compiled.compiler import kernels
from fedcohort.training.compiled.trainer import Compiled
from fedcohort.training.local import Parameters, Trainer, train_batched
from fedcohort.training.plan import Jobs, LocalWork
from fedcohort.training.processor import processor
from fedcohort.training.stacked import Stacked
from fedcohort.training.workers import Workers

# Of the trainers below: a change that makes old choices wrong raises it.
_VERSION = 2
_MEASURED_FLOPS = 3e9
_MEASURED_JOBS = 32
_TRIALS = 4
# A way that is slower than the best one by this factor is not tried again.
_HOPELESS = 3.0
# A less likely way must be faster by this factor: other programs disturb a measurement.
_CLEARLY = 1.25
# Floating-point operations a sample below which many models are usually better trained as one.
_SMALL_MODEL_FLOPS = 1_000_000

_remembered: dict[str, str] = {}


@dataclasses.dataclass(frozen=True)
class Workload:
    """What the choice depends on besides the model and the machine.

    Attributes
    ----------
    input_shape : tuple of int
        Of one sample.
    classes : int
        The model's outputs.
    batch : int
        Samples a step.
    jobs : int
        Local trainings at once.
    """

    input_shape: tuple[int, ...]
    classes: int
    batch: int
    jobs: int

    def rounded(self) -> "Workload":
        """Return the one that stands for all similar ones: sizes are powers of two."""
        return dataclasses.replace(self, batch=_power(self.batch), jobs=_power(self.jobs))


def choose_trainer(model: nn.Module, workload: Workload) -> tuple[str, Trainer]:
    """Return the fastest way to train `model` on this machine's CPU, and its name.

    Parameters
    ----------
    model : nn.Module
        The architecture.
    workload : Workload
        What it will be trained with.
    """
    workload = workload.rounded()
    trainers = _trainers(model, workload)
    key = _key(model, workload)
    file = user_cache() / "trainers" / f"{key}.json"
    name = _remembered.get(key) or _recall(file)
    if name not in trainers:
        name = _fastest(trainers, model, workload)
        # Another process may have measured at the same time; the first one decides for all.
        name = _store(file, name, trainers)
    _remembered[key] = name
    return name, trainers[name]


def _trainers(model: nn.Module, workload: Workload) -> dict[str, Trainer]:
    """Return the ways there are, the likely ones first."""
    cores = torch.get_num_threads()
    beside = min(cores, workload.jobs)
    ways = list(dict.fromkeys([Workers(beside, cores // beside), Workers(1, cores)]))
    per_client: dict[str, Trainer] = {f"per client, {way}": PerClient(way) for way in ways}
    per_client["batched"] = train_batched
    layers = read_chain(model, workload.input_shape)
    if layers is None:
        return per_client
    ways = list(dict.fromkeys([Workers(1, 1), *ways]))
    stacked: dict[str, Trainer] = {f"stacked, {way}": Stacked(layers, way) for way in ways}
    if kernels() is not None:
        stacked = {"compiled": Compiled(layers, beside)} | stacked
    small = _flops(model, workload.input_shape) <= _SMALL_MODEL_FLOPS
    return stacked | per_client if small else per_client | stacked


def _fastest(trainers: dict[str, Trainer], model: nn.Module, workload: Workload) -> str:
    """Measure, all ways by turns, so that other programs disturb all of them alike."""
    problem = _problem(model, workload)
    best = dict.fromkeys(trainers, math.inf)
    for _ in range(_TRIALS):
        for name, trainer in trainers.items():
            # The first trial of each also warms it up, but shows what is hopeless.
            if best[name] == math.inf or best[name] <= _HOPELESS * min(best.values()):
                began = time.perf_counter()
                trainer(*problem)
                best[name] = min(best[name], time.perf_counter() - began)
    close = _CLEARLY * min(best.values())
    return next(name for name in trainers if best[name] <= close)


def _problem(
    model: nn.Module, workload: Workload
) -> tuple[nn.Module, Parameters, Jobs, tuple[Tensor, Tensor], Tensor, LocalWork]:
    """Make a small training of this shape: one step a job, of made-up samples."""
    flops = 3 * max(1, _flops(model, workload.input_shape))
    enough = max(2 * torch.get_num_threads(), int(_MEASURED_FLOPS / flops / workload.batch))
    jobs = min(workload.jobs, enough, _MEASURED_JOBS)
    batch = min(workload.batch, max(32, int(_MEASURED_FLOPS / flops / jobs)))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, *workload.input_shape, generator=generator)
    y = torch.randint(workload.classes, (batch,), generator=generator)
    stacked = {name: p.detach()[None].clone() for name, p in model.named_parameters()}
    nothing = torch.zeros(jobs, dtype=torch.int64)
    each = Jobs(nothing, nothing, nothing + batch, nothing, torch.ones(jobs, dtype=torch.float64))
    work = LocalWork(batch, lr=0.0)
    return model, stacked, each, (x, y), torch.arange(batch), work


def _flops(model: nn.Module, input_shape: Sequence[int]) -> int:
    """Count the floating-point operations of one sample's forward pass, of products with weights.

    PyTorch's own counter would be exact, and take a second to import.
    """
    found: list[int] = []

    def count(module: nn.Module, _inputs: object, output: object) -> None:
        weight = getattr(module, "weight", None)
        if isinstance(output, Tensor) and isinstance(weight, Tensor) and weight.dim() > 1:
            found.append(2 * weight.numel() * (output.numel() // len(weight)))

    hooks = [module.register_forward_hook(count) for module in model.modules()]
    try:
        with torch.no_grad():
            model(torch.zeros(1, *input_shape))
    finally:
        for hook in hooks:
            hook.remove()
    return sum(found)


def _power(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


def _key(model: nn.Module, workload: Workload) -> str:
    """Return what the measurement depends on, hashed."""
    parts = {
        "version": _VERSION,
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "model": repr(model),
        "parameters": [(name, list(p.shape)) for name, p in model.named_parameters()],
        "workload": dataclasses.astuple(workload),
    }
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _recall(file: Path) -> str | None:
    try:
        return str(json.loads(file.read_text())["trainer"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _store(file: Path, name: str, known: dict[str, Trainer]) -> str:
    """Keep a choice unless there is a usable one already; return the one that is kept."""
    own = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(json.dumps({"trainer": name}) + "\n")
        earlier = _recall(file)
        if earlier in known:
            own.unlink()
            return str(earlier)
        own.replace(file)
    except OSError:
        pass  # a machine without a writable cache measures again in the next process
    return name
