"""The simulator: runs of one shape, trained in lockstep, round by round.

    for each round:  ask → select → train → aggregate → observe → evaluate → record

Every draw comes from (seed, purpose, round, client), and no model's arithmetic depends on what it
is computed beside, so a run is the same to the last bit whatever it is grouped with.
"""

import copy
import dataclasses
import functools
import itertools
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcohort import __version__
from fedcohort.errors import InvalidParameterError
from fedcohort.profiles import representative_gradient_profiles
from fedcohort.profiles.fc1 import describe_layer
from fedcohort.selection import Cohort, Need, Outcome
from fedcohort.simulation.assignment import Assignment, assign
from fedcohort.simulation.client_groups import client_groups, mean_by_size
from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.device_data import load_device_data
from fedcohort.simulation.device_updates import as_told, keep_on_device, stay_on_device
from fedcohort.simulation.devices import describe_device
from fedcohort.simulation.final_scores import final_groups
from fedcohort.simulation.jobs import jobs_of, slots_of
from fedcohort.simulation.local_work import local_work
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.member import FLOAT_BYTES, Member
from fedcohort.simulation.own_normalisation import OwnNormalisation
from fedcohort.simulation.profiling import client_profiles
from fedcohort.simulation.scores import FinalScore
from fedcohort.simulation.store import RoundRecord, RunState
from fedcohort.simulation.system import parse_availability
from fedcohort.simulation.transfers import Landing, event_on, fetch, to_host
from fedcohort.training.accelerators.choice import choose_trainer
from fedcohort.training.modules import (
    load_state,
    named_state,
    normalisation_names,
    read_traits,
    sent_values,
    trained_names,
)
from fedcohort.training.plan import to_device
from fedcohort.training.problem import (
    NO_JOBS,
    Data,
    Groups,
    Jobs,
    LocalProblem,
    Parameters,
    Trained,
    per_model,
)
from fedcohort.training.server import fresh_state, part_of
from fedcohort.training.task import Task
from fedcohort.training.trainer import Trainer
from fedcohort.training.workers import one_thread_per_operation, worker_count

# While a GPU works on some of the runs, the host selects for others: in so many parts at most, each
# larger than the one before, so that the GPU begins early and has work until the next is ready.
_PARTS, _GROWTH, _RUNS_PER_PART = 3, 1.4, 20
_LARGEST_STORED_PROFILES = 1_000_000


class Lockstep:
    """Runs that share a data set, a model and a schedule, trained as one program.

    Parameters
    ----------
    configs : sequence of RunConfig
        Runs with the same `RunConfig.lockstep_key`.
    materials : Materials
        What they start from.
    device : torch.device
        Where to train.
    trainer : Trainer, optional
        How to train and evaluate; by default what the rule says of the model and the device.
    """

    @one_thread_per_operation()
    def __init__(
        self,
        configs: Sequence[RunConfig],
        materials: Materials,
        device: torch.device,
        *,
        trainer: Trainer | None = None,
    ) -> None:
        shared = configs[0]
        self.configs = list(configs)
        self.round = 0
        self._device, self._materials = device, materials
        dataset = materials.dataset(shared)
        self._data = load_device_data(dataset, shared, device)
        self._task = materials.task(shared)
        states = [dict(named_state(materials.model(config))) for config in configs]
        self._stacked: Parameters = {
            name: torch.stack([state[name].detach() for state in states]).to(device)
            for name in states[0]
        }
        self._model: nn.Module = copy.deepcopy(materials.model(shared)).to(device)
        self._traits = read_traits(materials.model(shared), self._data.train[0][:4].cpu())
        self._pool = torch.zeros(0, dtype=torch.int64, device=device)
        self._trainer = trainer or choose_trainer(self._problem(NO_JOBS), shared.precision)
        local = shared.normalisation == "local"
        self._kept = normalisation_names(self._model) if local else []
        self._learned = [n for n in trained_names(self._model) if n not in self._kept]
        self._server = shared.make_server()
        self._memory = fresh_state(self._server, self._learned_of(self._stacked))
        self._threads = ThreadPoolExecutor(worker_count())
        self._members = self._enter(materials)
        self._own: OwnNormalisation | None = None
        if local:
            self._own = OwnNormalisation.at_first(self._stacked, self._kept, self._members)
        pools = [member.federation.partition.indices for member in self._members]
        self._pool = torch.from_numpy(np.concatenate(pools)).to(device)
        self._parts = _parts(len(configs)) if device.type != "cpu" else [range(len(configs))]

    def _enter(self, materials: Materials) -> list[Member]:
        """Let the runs in; those that differ in the selector alone share their profiles."""
        members: list[Member] = []
        sent: dict[str, NDArray[np.float32]] = {}
        model_bytes = FLOAT_BYTES * sent_values(self._model, self._kept)
        pool_start = 0
        for place, config in enumerate(self.configs):
            federation, selector = materials.federation(config), materials.selector(config)
            profiles = None
            if Need.PROFILE in selector.needs:
                profiles = sent.get(config.federation_key)
                if profiles is None:
                    model = copy.deepcopy(materials.model(config)).to(self._device)
                    first = dataclasses.replace(self._problem(NO_JOBS), model=model)
                    profiles = client_profiles(config, first, federation, self._trainer)
                    sent[config.federation_key] = profiles
            there = parse_availability(config.availability)
            member = Member(
                *(place, pool_start, config, federation, selector, there),
                profiles=profiles,
                model_bytes=model_bytes,
            )
            with member.calling("as clients join"):
                selector.fit(profiles, sizes=federation.sizes, label_counts=federation.label_counts)
            keep_on_device(selector, len(federation), self._device)
            members.append(member)
            pool_start += len(federation.partition.indices)
        return members

    # -- what the store keeps ----------------------------------------------------------------

    def facts(self) -> list[dict[str, Any]]:
        """Return what is worth knowing about each run besides its configuration."""
        return [
            {
                "clients": len(member.federation),
                "client_sizes": [int(sizes.min()), int(sizes.max())],
                "model_bytes": member.model_bytes,
                "profile_bytes": member.profile_bytes,
                "profile": self._read_from(member),
                "selector": member.describe(),
                "train_evaluated_on": self._evaluated_on(member),
                "device": describe_device(self._device),
                "trainer": self._trainer.name,
                "task": self._task.name,
                "score": self._task.score,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "fedcohort": __version__,
            }
            for member in self._members
            for sizes in (member.federation.sizes,)
        ]

    def _evaluated_on(self, member: Member) -> int:
        """Return how many training samples are measured until the last round."""
        if self._own is None:
            return len(self._data.subset[1])
        held, most = int(member.federation.sizes.sum()), member.config.eval_samples
        return held if most is None else min(most, held)

    def _read_from(self, member: Member) -> str | None:
        """Say what a run's profiles are read from; None if it has none."""
        if member.profiles is None or member.config.profile != "fc1":
            return None
        return describe_layer(self._model, member.config.profile_layer)

    def federations(self) -> list[dict[str, NDArray[Any]]]:
        """Return who holds what in each run, as the store keeps it for reports."""
        found: list[dict[str, NDArray[Any]]] = []
        for member in self._members:
            arrays: dict[str, NDArray[Any]] = {"label_counts": member.federation.label_counts}
            for name in ("client_names", "test_client_names"):
                if names := getattr(member.federation.dataset, name):
                    arrays[name] = np.array(names)
            if member.profiles is not None and member.profiles.size <= _LARGEST_STORED_PROFILES:
                arrays["profiles"] = member.profiles
            found.append(arrays)
        return found

    def states(self) -> list[RunState]:
        """Return where each run stands: its round, its model and its selector's state."""
        found: list[RunState] = []
        for r, member in enumerate(self._members):
            state = {f"model.{name}": values for name, values in self.models(r).items()}
            for kind, memory in self._memory.items():
                for name, values in memory.items():
                    state[f"server.{kind}.{name}"] = values[r].cpu().numpy()
            if self._own is not None:
                kept = self._own.state(member)
                state |= {f"own.{name}": values for name, values in kept.items()}
            with member.calling("as it is saved"):
                known = member.selector.state()
            found.append((self.round, state | {f"selector.{n}": v for n, v in known.items()}))
        return found

    def resume(self, states: Sequence[RunState]) -> None:
        """Continue from saved states, one per run, all of the same round."""
        for r, (member, (round_, state)) in enumerate(zip(self._members, states, strict=True)):
            self.round = round_
            for name, values in self._stacked.items():
                values[r] = torch.from_numpy(state[f"model.{name}"])
            for kind, memory in self._memory.items():
                for name, values in memory.items():
                    values[r] = torch.from_numpy(state[f"server.{kind}.{name}"])
            if self._own is not None:
                self._own.restore(member, _below("own.", state))
            with member.calling("as it resumes"):
                member.selector.restore(_below("selector.", state))

    def profiles(self, r: int) -> NDArray[np.float32] | None:
        """Return what the clients of one run sent, [C, Q]; None if its selector needs none."""
        return self._members[r].profiles

    def models(self, r: int) -> dict[str, NDArray[np.float32]]:
        """Return the global model of one run as it is now."""
        return {name: values[r].cpu().numpy() for name, values in self._stacked.items()}

    def state_dict(self, r: int) -> dict[str, NDArray[Any]]:
        """Return the global model of one run as it is now, by all names of its `state_dict()`.

        What no client changes is as the model was built.
        """
        model = copy.deepcopy(self._materials.model(self.configs[r]))
        load_state(model, {name: values[r] for name, values in self._stacked.items()})
        values = model.state_dict()
        return {name: v.numpy() for name, v in values.items() if isinstance(v, Tensor)}

    @one_thread_per_operation()
    def final_scores(self, r: int) -> list[FinalScore]:
        """Measure one run's global model by client and by class."""
        member, found = self._members[r], []
        for asked in final_groups(member.federation, self._device):
            data = self._data.test if asked.part == "test" else self._data.train
            task = dataclasses.replace(self._task, score=asked.score or self._task.score)
            found += asked.scored(*self._measure(member, asked.groups, asked.ids, data, task))
        return found

    @property
    def parameters(self) -> Parameters:
        """The global models, stacked: dict of float32 [R, ...]."""
        return self._stacked

    # -- rounds ------------------------------------------------------------------------------

    @one_thread_per_operation()
    def start(self) -> list[RoundRecord]:
        """Evaluate the initial models: the records of round 0."""
        scores = fetch([self._evaluate(range(len(self._members)), exact=False)])
        return [dataclasses.replace(RoundRecord(round=0), **score) for score in scores]

    @one_thread_per_operation()
    def advance(self) -> list[RoundRecord]:
        """Do one round of every run and return its records, in the order of the runs."""
        began = time.perf_counter()
        self.round += 1
        last = self.round == self.configs[0].rounds
        scored = self.configs[0].evaluates(self.round)
        assignments: list[Assignment] = []
        landings: list[Landing | None] = []
        evaluations: list[dict[str, Tensor]] = []
        for part in self._parts:
            members = self._members[part.start : part.stop]
            chosen = self._assignments(members)
            landings.append(self._train_and_aggregate(part, chosen))
            evaluations.append(self._evaluate(part, exact=last) if scored else {})
            assignments += chosen
        facts = [self._known(*known) for known in zip(self._members, assignments, strict=True)]
        outcomes: list[Outcome] = []
        hearing: list[Future[None]] = []
        for part, landing in zip(self._parts, landings, strict=True):
            outcomes += self._observe(part, assignments[part.start : part.stop], landing, hearing)
        scores = fetch(evaluations) if scored else [{} for _ in self._members]
        # Not left for later: outside of a round, products may be split over threads, in other sums.
        for heard in hearing:
            heard.result()
        seconds = (time.perf_counter() - began) / len(self._members)
        return [
            RoundRecord(
                **fact,
                **score,
                left_out=tuple(outcome.ids[~outcome.trained].tolist()),
                seconds=seconds,
            )
            for fact, score, outcome in zip(facts, scores, outcomes, strict=True)
        ]

    def _assignments(self, members: Sequence[Member]) -> list[Assignment]:
        """Have some runs ask, and choose, whom they train in this round."""
        return [assign(m, self.round, functools.partial(self._answer, m)) for m in members]

    def _train_and_aggregate(
        self, part: range, assignments: Sequence[Assignment]
    ) -> Landing | None:
        """Train the cohorts of some runs together, and move their global models.

        On a GPU nothing has happened yet when this returns. None says that nobody trained.
        """
        counts = [int(assignment.working.sum()) for assignment in assignments]
        before = self._sent(self._models_of(part))
        if sum(counts) == 0:
            self._move(part, before, before, torch.ones(len(part), device=self._device))
            return None
        members = self._members[part.start : part.stop]
        assigned = list(zip(members, assignments, strict=True))
        received = {
            member.place: to_host(self._losses_of(member, assignment.ids[assignment.working]))
            for member, assignment in assigned
            if member.selector.reported_loss == "received" and assignment.working.any()
        }
        trained = self._train(assigned)
        updates: dict[int, Tensor] = {}
        ends = np.cumsum(counts).tolist()
        for member, end, count in zip(members, ends, counts, strict=True):
            if Need.UPDATE in member.selector.needs and count:
                sent = self._updates(trained.parameters, slice(end - count, end), member)
                updates[member.place] = sent if stay_on_device(member.selector) else to_host(sent)
        slots, weights = (
            to_device(torch.from_numpy(table), self._device) for table in slots_of(assignments)
        )
        moved, used = self._trainer.aggregate(
            before, trained.parameters, slots, weights, trained.losses.isfinite()
        )
        self._move(part, before, moved, weights.sum(1))
        if self._own is not None:
            self._own.keep(self._own.rows_of(assigned), trained.parameters, used)
            for member in members:
                self._own.average_into(self._stacked, member)
        landed = to_host(used), to_host(trained.losses)
        return Landing(*landed, received, updates, event_on(self._device))

    def _train(self, assigned: Sequence[tuple[Member, Assignment]]) -> Trained:
        """Have the clients that answer train, run after run."""
        problem = self._problem(jobs_of(self.round, assigned))
        if self._own is not None:
            of, rows = problem.jobs.model.to(self._device), self._own.rows_of(assigned)
            each = dataclasses.replace(problem.jobs, model=torch.arange(len(rows)))
            models = self._own.models(self._stacked, of, rows)
            problem = dataclasses.replace(problem, stacked=models, jobs=each)
        return self._trainer.train(problem)

    def _sent(self, models: Parameters) -> Parameters:
        """Return models without what clients keep for themselves."""
        return {name: values for name, values in models.items() if name not in self._kept}

    def _learned_of(self, models: Parameters) -> Parameters:
        """Return the parameters of models that are trained, and sent."""
        return {name: models[name] for name in self._learned}

    def _problem(self, jobs: Jobs) -> LocalProblem:
        """Return what a trainer is given to do these jobs in this round."""
        work = local_work(self.configs[0], max(1, self.round))
        return LocalProblem(
            self._model,
            self._stacked,
            jobs,
            self._data.train,
            self._pool,
            work,
            self._task,
            self._traits,
        )

    def _models_of(self, part: range) -> Parameters:
        """Return some runs' global models."""
        return {name: values[part.start : part.stop] for name, values in self._stacked.items()}

    def _move(self, part: range, before: Parameters, means: Parameters, weights: Tensor) -> None:
        """Let the server move some runs' global models, given their clients' weighted means.

        It moves what is learned. Running statistics become those of the clients on average: with a
        server's momentum, or weights [R] that sum to more than 1, a variance could fall below 0.
        """
        memory = part_of(self._memory, slice(part.start, part.stop))
        moved = self._server.step(self._learned_of(before), self._learned_of(means), memory)
        parts = torch.where(weights > 0, 1 / weights, 1.0)
        for name, values in before.items():
            if name in moved:
                values.copy_(moved[name])
            else:
                values.lerp_(means[name], per_model(parts.to(values.dtype), values))

    def _updates(self, local: Parameters, own: slice, member: Member) -> Tensor:
        """Return what local training changed of one run's parameters, float32 [m, d]."""
        before = self._learned_of(self._stacked)
        return representative_gradient_profiles(
            {n: values[member.place] for n, values in before.items()},
            {n: local[n][own] for n in before},
        )

    def _observe(
        self,
        part: range,
        assignments: Sequence[Assignment],
        landing: Landing | None,
        hearing: list[Future[None]],
    ) -> list[Outcome]:
        """Wait for some runs' training, and tell their selectors what came of it.

        Those that compare updates, which takes long, are put into `hearing` until they are done.
        """
        if landing is not None:
            landing.wait()
        outcomes: list[Outcome] = []
        end = 0
        for r, assignment in zip(part, assignments, strict=True):
            mask = assignment.working
            done, losses = mask.copy(), None
            if landing is not None:
                own = slice(end, end := end + int(mask.sum()))
                losses = np.full(len(mask), np.nan)
                done[mask] = landing.used.numpy()[own]
                told = landing.received.get(r)
                losses[mask] = (landing.losses[own] if told is None else told).numpy()
            member = self._members[r]
            durations = None
            if Need.DURATION in member.selector.needs and assignment.durations is not None:
                durations = np.where(done, assignment.durations, np.nan)
            outcome = Outcome(
                assignment.ids,
                done,
                losses if member.reports_loss else None,
                passes=assignment.passes,
                capacity=assignment.capacity,
                durations=durations,
            )
            if landing is not None and r in landing.updates:
                updates = landing.updates[r]
                heard = self._threads.submit(member.hear, self.round, outcome, updates, mask)
                hearing.append(heard)
            else:
                member.observe(self.round, outcome)
            outcomes.append(outcome)
        return outcomes

    def _evaluate(self, part: range, *, exact: bool) -> dict[str, Tensor]:
        """Measure some runs' global models: float64 [R] by what was measured.

        Where clients keep their normalisation, the training samples are measured by those who hold
        them, each with its own, and the test samples with the mean of those that have trained.
        """
        parts = {"train": self._data.train if exact else self._data.subset, "test": self._data.test}
        if self._own is not None:
            del parts["train"]
        models = self._models_of(part)
        scores: dict[str, Tensor] = {}
        for name, data in parts.items():
            if len(data[1]):
                score, loss = self._trainer.evaluate(self._model, models, data, self._task)
                scores |= {f"{name}_score": score, f"{name}_loss": loss}
        if self._own is not None:
            most = None if exact else self.configs[0].eval_samples
            found = [self._by_holders(self._members[r], most) for r in part]
            columns = (torch.stack(column) for column in zip(*found, strict=True))
            scores |= dict(zip(("train_score", "train_loss"), columns, strict=True))
        return scores

    def _by_holders(self, member: Member, most: int | None) -> tuple[Tensor, Tensor]:
        """Return the mean score and loss of a run's clients on their own samples, by size."""
        ids, groups = client_groups(member.federation, self._device, most)
        score, loss = self._measure(member, groups, ids)
        return mean_by_size(score, groups.sizes), mean_by_size(loss, groups.sizes)

    def _measure(
        self,
        member: Member,
        groups: Groups,
        ids: NDArray[np.int64] | None,
        data: Data | None = None,
        task: Task | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Measure a run's global model, as each of the clients `ids` [m] has it, on m groups.

        As nobody in particular has it, if `ids` is None. The groups are of training samples if no
        other data are given.
        """
        models = {name: values[member.place][None] for name, values in self._stacked.items()}
        if self._own is not None and ids is not None:
            of = torch.full((len(ids),), member.place, device=self._device)
            models = self._own.models(self._stacked, of, self._own.rows(member, ids))
            each = torch.arange(len(ids), device=self._device)
            groups = dataclasses.replace(groups, model=each)
        data, task = data or self._data.train, task or self._task
        return self._trainer.measure(self._model, models, data, groups, task)

    def _known(self, member: Member, assignment: Assignment) -> dict[str, Any]:
        """Return what a round's record holds that is known before training has ended."""
        return {
            "round": self.round,
            "gemd": member.gemd(assignment.cohort),
            "elapsed": assignment.elapsed,
            "cohort": tuple(assignment.cohort.ids.tolist()),
            "bytes_down": assignment.bytes_down,
            "bytes_up": assignment.bytes_up,
            "selection_seconds": assignment.seconds,
        }

    # -- what selectors ask for --------------------------------------------------------------

    def _answer(self, member: Member, need: Need, ids: NDArray[np.int64]) -> Any:
        """Have the clients of one run measure what its selector asks for."""
        if need is Need.LOSS:
            return self._losses_of(member, ids).cpu().numpy()
        if need is Need.UPDATE:
            return as_told(member.selector, self._updates_of(member, ids))
        raise InvalidParameterError(
            f"Selector {member.selector.name!r} asks for the {need.value} of clients before a"
            " round, which the simulator cannot answer: it answers losses and updates."
        )

    def _updates_of(self, member: Member, ids: NDArray[np.int64]) -> Tensor:
        """Have clients train on the global model without being averaged, float32 [m, d]."""
        passes = np.full(len(ids), member.config.epochs)
        asked = Assignment(Cohort(ids, passes), ids, passes, passes)
        trained = self._train([(member, asked)])
        return self._updates(trained.parameters, slice(0, len(ids)), member)

    def _losses_of(self, member: Member, ids: NDArray[np.int64]) -> Tensor:
        """Have clients measure the global model's loss on their data, float64 [m]."""
        partition = member.federation.partition
        samples = np.concatenate([partition.of(int(client)) for client in ids])
        groups = Groups(
            torch.from_numpy(samples).to(self._device),
            torch.from_numpy(partition.sizes[ids]).to(self._device),
        )
        return self._measure(member, groups, ids)[1]


def _below(prefix: str, state: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return what stands under a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def _parts(runs: int) -> list[range]:
    """Divide runs into parts of growing size."""
    count = max(1, min(_PARTS, runs // _RUNS_PER_PART))
    ends = np.cumsum(_GROWTH ** np.arange(count))
    bounds = [0, *np.round(ends / ends[-1] * runs).astype(int).tolist()]
    return [range(a, b) for a, b in itertools.pairwise(bounds)]
