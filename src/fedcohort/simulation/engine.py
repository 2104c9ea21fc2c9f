"""The simulator: runs of one shape, trained in lockstep, round by round.

    for each round:  ask → select → train → aggregate → observe → evaluate → record

Every draw comes from (seed, purpose, round, client), so a run's partition, first model, data order
and cohorts are the same whatever it is batched with.
"""

import dataclasses
import itertools
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcohort.errors import InvalidParameterError
from fedcohort.federation import Dataset, Federation
from fedcohort.metrics import gemd_from
from fedcohort.randomness import generator
from fedcohort.selection import Cohort, Need, Outcome, Selector
from fedcohort.simulation.capacity import affordable_passes, completed_passes
from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.setting import (
    DeviceData,
    client_count,
    client_profiles,
    federation_of,
    initial_model,
    load_device_data,
    order_keys,
)
from fedcohort.simulation.store import Checkpoint, RoundRecord
from fedcohort.simulation.system import Availability, attend, over_selected, parse_availability
from fedcohort.training.backend import Backend, choose_backend
from fedcohort.training.choice import Workload
from fedcohort.training.local import Parameters
from fedcohort.training.plan import Jobs, LocalWork, to_device
from fedcohort.training.server import fresh_state, part_of

_FLOAT_BYTES = 4
# While a GPU works on some of the runs, the host selects for others: in so many parts at most, each
# larger than the one before, so that the GPU begins early and has work until the next is ready.
_PARTS, _GROWTH, _RUNS_A_PART = 3, 1.4, 20
_LARGEST_STORED_PROFILES = 1_000_000


@dataclasses.dataclass
class _Run:
    """One run's place in the group."""

    config: RunConfig
    federation: Federation
    selector: Selector
    availability: Availability
    profiles: NDArray[np.float32] | None
    pool_start: int
    mean_size: float
    everyone: NDArray[np.float64]  # the label distribution of all clients [N]
    hearing: Future[None] | None = None

    def hear(self, outcome: Outcome, updates: NDArray[np.float32], mask: NDArray[np.bool_]) -> None:
        """Tell the selector what came of a cohort, with the updates [n, d] of those in `mask`."""
        if not mask.all():
            known, updates = updates, np.full((len(mask), updates.shape[1]), np.nan, np.float32)
            updates[mask] = known
        self.selector.observe(dataclasses.replace(outcome, updates=updates))

    def listen(self) -> Selector:
        """Return the selector once it has heard what came of the last round."""
        if self.hearing is not None:
            self.hearing.result()
            self.hearing = None
        return self.selector

    @property
    def profile_bytes(self) -> int:
        """What one client's profile costs to send."""
        return 0 if self.profiles is None else _FLOAT_BYTES * self.profiles.shape[1]

    @property
    def joining_bytes(self) -> int:
        """What one client sends once: its profile, and its label counts if they are needed."""
        counts = self.federation.label_counts.shape[1]
        told = Need.LABEL_COUNTS in self.selector.needs
        return self.profile_bytes + (_FLOAT_BYTES * counts if told else 0)


@dataclasses.dataclass(frozen=True)
class _Assignment:
    """The distinct clients of one run's cohort, and what each is to do in this round."""

    cohort: Cohort
    ids: NDArray[np.int64]
    weights: NDArray[np.float64]
    passes: NDArray[np.float64]
    capacity: NDArray[np.float64] | None = None
    durations: NDArray[np.float64] | None = None
    elapsed: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class _Training:
    """What came of some runs' local training, on its way to the host.

    Attributes
    ----------
    counts : list of int
        Clients that trained, of each run.
    used : bool [M], optional
        Whose local model was finite and counted; None if nobody trained.
    losses : float64 [M], optional
        Mean loss of each.
    updates : dict of float32 [m, d]
        By run, where the selector needs them.
    done : torch.Event, optional
        When all of it is there; None if it is.
    """

    counts: list[int]
    used: Tensor | None
    losses: Tensor | None
    updates: dict[int, Tensor]
    done: torch.Event | None


class Lockstep:
    """Runs that share a data set, a model and a schedule, trained as one program.

    Parameters
    ----------
    configs : sequence of RunConfig
        Runs with the same `RunConfig.lockstep_key`.
    dataset : Dataset
        What they train on.
    device : torch.device
        Where.
    backend : Backend, optional
        How to train and evaluate; by default what suits the device and the model.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        dataset: Dataset,
        device: torch.device,
        *,
        backend: Backend | None = None,
    ) -> None:
        shared = configs[0]
        self.configs = list(configs)
        self.round = 0
        self._device = device
        self._data: DeviceData = load_device_data(dataset, shared, device)
        self._work = LocalWork(shared.batch_size, shared.lr, shared.momentum, shared.proximal)
        models = [initial_model(config, dataset).to(device) for config in configs]
        self._model: nn.Module = models[0]
        self._backend = backend or choose_backend(
            self._model, _workload(configs, dataset), device, shared.precision
        )
        self._stacked: Parameters = {
            name: torch.stack([dict(model.named_parameters())[name].detach() for model in models])
            for name, _ in self._model.named_parameters()
        }
        self._server = shared.make_server()
        self._memory = fresh_state(self._server, self._stacked)
        self._model_bytes = _FLOAT_BYTES * sum(v[0].numel() for v in self._stacked.values())
        self._runs: list[_Run] = []
        pools: list[NDArray[np.int64]] = []
        seen: dict[str, tuple[Federation, NDArray[np.float32] | None]] = {}
        for config, model in zip(configs, models, strict=True):
            self._runs.append(self._enter(config, model, dataset, seen, sum(map(len, pools))))
            pools.append(self._runs[-1].federation.partition.indices)
        self._pool = torch.from_numpy(np.concatenate(pools)).to(device)
        self._parts = _parts(len(configs)) if device.type != "cpu" else [range(len(configs))]
        self._threads = ThreadPoolExecutor(os.cpu_count())
        self._ahead: dict[int, _Assignment] = {}

    def _enter(
        self,
        config: RunConfig,
        model: nn.Module,
        dataset: Dataset,
        seen: dict[str, tuple[Federation, NDArray[np.float32] | None]],
        pool_start: int,
    ) -> _Run:
        """Build one run; runs that differ in the selector alone share federation and profiles."""
        key = config.federation_key
        federation, profiles = seen.get(key, (None, None))
        if federation is None:
            federation = federation_of(config, dataset)
        selector = config.make_selector()
        needs_profile = Need.PROFILE in selector.needs
        if needs_profile and profiles is None:
            profiles = client_profiles(
                config, model, federation, self._data.train, self._backend.train, self._work
            )
        seen[key] = (federation, profiles)
        sent = profiles if needs_profile else None
        selector.fit(sent, sizes=federation.sizes, label_counts=federation.label_counts)
        availability = parse_availability(config.availability)
        mean_size = float(federation.sizes.mean())
        counts = federation.label_counts.sum(0)
        everyone = counts / counts.sum()
        return _Run(
            config, federation, selector, availability, sent, pool_start, mean_size, everyone
        )

    # -- saving ----------------------------------------------------------------------------

    def facts(self) -> list[dict[str, Any]]:
        """Return what is worth knowing about each run besides its configuration."""
        return [
            {
                "clients": len(run.federation),
                "client_sizes": [int(run.federation.sizes.min()), int(run.federation.sizes.max())],
                "model_bytes": self._model_bytes,
                "profile_bytes": run.profile_bytes,
                "selector": run.selector.describe(),
                "train_evaluated_on": len(self._data.subset[1]),
                "device": _device_name(self._device),
                "torch": torch.__version__,
            }
            for run in self._runs
        ]

    def federations(self) -> list[dict[str, NDArray[Any]]]:
        """Return who holds what in each run, as the store keeps it for reports."""
        found: list[dict[str, NDArray[Any]]] = []
        for run in self._runs:
            arrays: dict[str, NDArray[Any]] = {"label_counts": run.federation.label_counts}
            if run.profiles is not None and run.profiles.size <= _LARGEST_STORED_PROFILES:
                arrays["profiles"] = run.profiles
            found.append(arrays)
        return found

    def checkpoints(self) -> dict[str, Checkpoint]:
        """Return where each run stands: its round, its model and its selector's state."""
        saved: dict[str, Checkpoint] = {}
        for r, run in enumerate(self._runs):
            model = {f"model.{n}": v[r].cpu().numpy() for n, v in self._stacked.items()}
            memory = {
                f"server.{kind}.{n}": v[r].cpu().numpy()
                for kind, values in self._memory.items()
                for n, v in values.items()
            }
            state = {f"selector.{n}": v for n, v in run.listen().state().items()}
            saved[run.config.key] = self.round, model | memory | state
        return saved

    def restore(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Go on from checkpoints, one a run, all of the same round."""
        self._ahead.clear()
        for r, (run, (round_, state)) in enumerate(zip(self._runs, checkpoints, strict=True)):
            self.round = round_
            for name, values in self._stacked.items():
                values[r] = torch.from_numpy(state[f"model.{name}"])
            for kind, memory in self._memory.items():
                for name, values in memory.items():
                    values[r] = torch.from_numpy(state[f"server.{kind}.{name}"])
            prefix = "selector."
            run.selector.restore(
                {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            )

    @property
    def parameters(self) -> Parameters:
        """The global models, stacked: dict of float32 [R, ...]."""
        return self._stacked

    # -- a round ---------------------------------------------------------------------------

    def start(self) -> list[RoundRecord]:
        """Evaluate the initial models: the records of round 0."""
        scores = _fetch([self._evaluate(range(len(self._runs)), exact=False)])
        return [dataclasses.replace(RoundRecord(round=0), **score) for score in scores]

    def advance(self) -> list[RoundRecord]:
        """Do one round of every run and return its records, in the order of the runs."""
        began = time.perf_counter()
        self.round += 1
        last = self.round == self.configs[0].rounds
        scored = last or self.round % self.configs[0].eval_every == 0
        assignments: list[_Assignment] = []
        trainings: list[_Training] = []
        evaluations: list[dict[str, Tensor]] = []
        for part in self._parts:
            assignments += [
                self._ahead.pop(r) if r in self._ahead else self._assign(r) for r in part
            ]
            trainings.append(self._train(part, assignments[part.start :]))
            evaluations.append(self._evaluate(part, exact=last) if scored else {})
        # While a GPU trains, all that can be known before it has finished.
        if not last:
            self._look_ahead()
        facts: list[dict[str, Any]] = [
            {
                "round": self.round,
                "gemd": _gemd(run, assignment.cohort),
                "elapsed": assignment.elapsed,
                "cohort": tuple(assignment.cohort.ids.tolist()),
                "bytes_down": assignment.bytes_down,
                "bytes_up": assignment.bytes_up,
                "selection_seconds": assignment.seconds,
            }
            for run, assignment in zip(self._runs, assignments, strict=True)
        ]
        outcomes = []
        for part, training in zip(self._parts, trainings, strict=True):
            outcomes += self._conclude(part, assignments[part.start : part.stop], training)
        scores = _fetch(evaluations) if scored else [{}] * len(self._runs)
        if last:
            for run in self._runs:
                run.listen()
        seconds = (time.perf_counter() - began) / len(self._runs)
        return [
            RoundRecord(
                **fact,
                **score,
                left_out=tuple(outcome.ids[~outcome.trained].tolist()),
                seconds=seconds,
            )
            for fact, score, outcome in zip(facts, scores, outcomes, strict=True)
        ]

    def _look_ahead(self) -> None:
        """While the device trains, choose the next cohorts of selectors that hear nothing of it."""
        if self._device.type == "cpu":
            return
        for r, run in enumerate(self._runs):
            if run.selector.is_deaf:
                self._ahead[r] = self._assign(r, ahead=1)

    def _assign(self, r: int, *, ahead: int = 0) -> _Assignment:
        """Let one run's selector ask and choose, and see who answers in time."""
        began = time.perf_counter()
        round_ = self.round + ahead
        run = self._runs[r]
        config, selector = run.config, run.listen()
        rng = generator(config.seed, "selection", round_)
        clients = len(run.federation)
        there = run.availability.of(config.seed, round_, clients)
        present = clients if there is None else len(there)
        wanted = min(config.cohort, present)
        asked = over_selected(wanted, config.over_selection, present)
        receivers, up = [], 0
        if round_ == 1:
            everyone = np.arange(clients)
            receivers += [everyone] if Need.PROFILE in selector.needs else []
            up += run.joining_bytes * clients
        if asked == 0:
            cohort = Cohort(np.empty(0, np.int64), np.empty(0))
        else:
            for need, ids in selector.ask(asked, there, rng=rng).items():
                answers = self._answer(r, need, ids)
                selector.tell(need, ids, answers)
                receivers.append(ids)
                up += _FLOAT_BYTES * answers.size
            cohort = selector.select(asked, there, rng=rng)
        ids, place = np.unique(cohort.ids, return_inverse=True)
        weights = np.bincount(place, cohort.weights, minlength=len(ids)).astype(np.float64)
        passes, capacity = np.full(len(ids), config.epochs), None
        if cohort.work is not None:
            tasks = np.empty((len(ids), 2))
            tasks[place] = cohort.work
            capacity = affordable_passes(config.seed, round_, ids)
            passes = completed_passes(tasks, capacity)
        sizes = run.federation.sizes[ids]
        attendance = attend(
            config.seed,
            round_,
            ids,
            passes * sizes / run.mean_size,
            wanted,
            spread=config.speed_spread,
            dropout=config.dropout,
            deadline=config.deadline,
        )
        passes = np.where(attendance.answered, passes, 0.0)
        reached = np.unique(np.concatenate([*receivers, ids])) if receivers else ids
        down = self._model_bytes * len(reached)
        extra = _FLOAT_BYTES if Need.LOSS in selector.needs else 0
        up += (self._model_bytes + extra) * int((passes > 0).sum())
        elapsed = time.perf_counter() - began
        return _Assignment(
            cohort,
            ids,
            weights,
            passes,
            capacity,
            attendance.durations,
            attendance.elapsed,
            down,
            up,
            elapsed,
        )

    def _answer(self, r: int, need: Need, ids: NDArray[np.int64]) -> NDArray[Any]:
        """Have clients measure what a selector asked for before it chooses."""
        if need is Need.LOSS:
            return self._losses_of(r, ids)
        if need is Need.UPDATE:
            return self._updates_of(r, ids)
        raise InvalidParameterError(
            f"Selector {self._runs[r].selector.name!r} asks for the {need.value} of clients before"
            " a round, which the simulator cannot answer: it answers losses and updates."
        )

    def _updates_of(self, r: int, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Have clients train on the global model without being averaged, float32 [m, d]."""
        passes = np.full(len(ids), self._runs[r].config.epochs)
        asked = _Assignment(Cohort(ids, passes), ids, passes, passes)
        jobs = self._jobs(range(r, r + 1), [asked])
        trained = self._backend.train(
            self._model, self._stacked, jobs, self._data.train, self._pool, self._work
        )
        updates = _difference(trained.parameters, self._stacked, slice(0, len(ids)), r)
        return updates.cpu().numpy()

    def _losses_of(self, r: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Have clients measure the global model's loss on their data, float64 [m]."""
        partition = self._runs[r].federation.partition
        samples = np.concatenate([partition.of(int(client)) for client in ids])
        losses = self._backend.client_losses(
            self._model,
            {name: values[r] for name, values in self._stacked.items()},
            self._data.train,
            torch.from_numpy(samples).to(self._device),
            torch.from_numpy(partition.sizes[ids]).to(self._device),
        )
        return losses.cpu().numpy()

    def _train(self, part: range, assignments: Sequence[_Assignment]) -> _Training:
        """Train the cohorts of some runs together, and move their global models.

        On a GPU nothing has happened yet when this returns.
        """
        working = [assignment.passes > 0 for assignment in assignments]
        counts = [int(mask.sum()) for mask in working]
        if sum(counts) == 0:
            before = self._models(part)
            self._move(part, before, before)
            return _Training(counts, None, None, {}, None)
        jobs = self._jobs(part, assignments)
        trained = self._backend.train(
            self._model, self._stacked, jobs, self._data.train, self._pool, self._work
        )
        updates, start = {}, 0
        for r, count in zip(part, counts, strict=True):
            own = slice(start, start + count)
            start += count
            if Need.UPDATE in self._runs[r].selector.needs and count:
                update = _difference(trained.parameters, self._stacked, own, r)
                updates[r] = to_host(update)
        slots, weights = _slots(assignments, working)
        before = self._models(part)
        moved, used = self._backend.aggregate(
            before,
            trained.parameters,
            to_device(torch.from_numpy(slots), self._device),
            to_device(torch.from_numpy(weights), self._device),
            trained.losses.isfinite(),
        )
        self._move(part, before, moved)
        landed = to_host(used), to_host(trained.losses)
        done = torch.cuda.current_stream().record_event() if self._device.type == "cuda" else None
        return _Training(counts, *landed, updates, done)

    def _models(self, part: range) -> Parameters:
        """Return some runs' global models."""
        return {name: values[part.start : part.stop] for name, values in self._stacked.items()}

    def _move(self, part: range, before: Parameters, means: Parameters) -> None:
        """Let the server move some runs' global models, given their clients' means."""
        memory = part_of(self._memory, slice(part.start, part.stop))
        for name, values in self._server.step(before, means, memory).items():
            before[name].copy_(values)

    def _conclude(
        self, part: range, assignments: Sequence[_Assignment], training: _Training
    ) -> list[Outcome]:
        """Wait for some runs' training, and tell their selectors what came of it."""
        if training.done is not None:
            training.done.synchronize()
        used = None if training.used is None else training.used.numpy()
        heard = None if training.losses is None else training.losses.numpy()
        ends = np.cumsum(training.counts).tolist()
        owned = [slice(end - count, end) for end, count in zip(ends, training.counts, strict=True)]

        def hear(r: int, assignment: _Assignment, own: slice) -> Outcome:
            mask = assignment.passes > 0
            done, losses = mask.copy(), None
            if used is not None and heard is not None:
                losses = np.full(len(mask), np.nan)
                done[mask] = used[own]
                losses[mask] = heard[own]
            outcome = Outcome(
                assignment.ids,
                done,
                losses,
                passes=assignment.passes,
                capacity=assignment.capacity,
                durations=assignment.durations,
            )
            run = self._runs[r]
            if r in training.updates:
                # Comparing whole updates takes long: meanwhile, other runs go on.
                updates = training.updates[r].numpy()
                run.hearing = self._threads.submit(run.hear, outcome, updates, mask)
            else:
                run.selector.observe(outcome)
            return outcome

        return [hear(*one) for one in zip(part, assignments, owned, strict=True)]

    def _jobs(self, part: range, assignments: Sequence[_Assignment]) -> Jobs:
        columns: list[tuple[Any, ...]] = []
        for r, assignment in zip(part, assignments, strict=True):
            run, mask = self._runs[r], assignment.passes > 0
            ids = assignment.ids[mask]
            partition = run.federation.partition
            columns.append(
                (
                    np.full(len(ids), r),
                    run.pool_start + partition.offsets[ids],
                    partition.sizes[ids],
                    order_keys(run.config.seed, self.round, ids),
                    assignment.passes[mask],
                )
            )
        return Jobs(*(torch.from_numpy(np.concatenate(c)) for c in zip(*columns, strict=True)))

    def _evaluate(self, part: range, *, exact: bool) -> dict[str, Tensor]:
        """Measure some runs' global models: float64 [R] by what was measured."""
        parts = {"train": self._data.train if exact else self._data.subset, "test": self._data.test}
        models = self._models(part)
        scores: dict[str, Tensor] = {}
        for name, data in parts.items():
            if len(data[1]):
                accuracy, loss = self._backend.evaluate(self._model, models, data)
                scores |= {f"{name}_accuracy": accuracy, f"{name}_loss": loss}
        return scores


def _workload(configs: Sequence[RunConfig], dataset: Dataset) -> Workload:
    """Return what the runs train with, before their federations are known."""
    shared = configs[0]
    samples = shared.samples_per_client or -(-len(dataset.y_train) // client_count(shared, dataset))
    return Workload(
        input_shape=dataset.x_train.shape[1:],
        classes=dataset.classes,
        batch=min(samples, shared.batch_size or samples),
        jobs=sum(config.cohort for config in configs),
    )


def _parts(runs: int) -> list[range]:
    """Divide runs into parts of growing size."""
    count = max(1, min(_PARTS, runs // _RUNS_A_PART))
    ends = np.cumsum(_GROWTH ** np.arange(count))
    bounds = [0, *np.round(ends / ends[-1] * runs).astype(int).tolist()]
    return [range(a, b) for a, b in itertools.pairwise(bounds)]


def _gemd(run: _Run, cohort: Cohort) -> float | None:
    counts = run.federation.label_counts[cohort.ids]
    return gemd_from(run.everyone, counts) if len(cohort) else None


def to_host(values: Tensor) -> Tensor:
    """Begin to copy a tensor to the host; on a GPU it has come when the next event has."""
    if values.device.type != "cuda":
        return values
    pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return pinned.copy_(values, non_blocking=True)


def _fetch(evaluations: Iterable[Mapping[str, Tensor]]) -> list[dict[str, Any]]:
    """Wait for evaluations, and return each run's scores; a loss that is not finite is None."""
    scores: list[dict[str, Any]] = []
    for evaluation in evaluations:
        columns = {name: values.tolist() for name, values in evaluation.items()}
        for row in zip(*columns.values(), strict=True):
            pairs = zip(columns, row, strict=True)
            scores.append({name: v if np.isfinite(v) else None for name, v in pairs})
    return scores


def _slots(
    assignments: Sequence[_Assignment], working: Sequence[NDArray[np.bool_]]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Lay out which jobs belong to which run, and their weights, for `aggregate`: [R, k] each."""
    widest = max(int(mask.sum()) for mask in working)
    slots = np.full((len(working), widest), -1)
    weights = np.zeros((len(working), widest))
    start = 0
    for row, (assignment, mask) in enumerate(zip(assignments, working, strict=True)):
        count = int(mask.sum())
        slots[row, :count] = np.arange(start, start + count)
        weights[row, :count] = assignment.weights[mask]
        start += count
    return slots, weights


def find_device(name: str) -> torch.device:
    """Return the device called ``auto``, ``cpu`` or ``cuda``."""
    if name not in ("auto", "cpu", "cuda"):
        raise InvalidParameterError(f"The device must be auto, cpu or cuda, not {name!r}.")
    if name == "cuda" and not torch.cuda.is_available():
        raise InvalidParameterError(
            "There is no CUDA device that PyTorch can use here: take --device cpu."
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        # Matrix products with 10-bit mantissas, as PyTorch's convolutions have by default.
        torch.backends.cuda.matmul.allow_tf32 = True
    return torch.device(name)


def device_for(configs: Iterable[RunConfig], name: str) -> torch.device:
    """Return the device called `name`, and refuse runs that cannot be done on it."""
    device = find_device(name)
    if device.type == "cpu" and any(config.precision == "bfloat16" for config in configs):
        raise InvalidParameterError(
            "Runs in bfloat16 need a GPU: take --precision float32 on this machine."
        )
    return device


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


def _difference(local: Parameters, before: Parameters, part: slice, r: int) -> Tensor:
    return torch.cat([(local[n][part] - before[n][r]).flatten(1) for n in before], dim=1)
