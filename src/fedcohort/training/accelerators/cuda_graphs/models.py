"""Local training in slots, replayed from a CUDA graph."""

import dataclasses
import heapq
import itertools

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedcohort.training.accelerators.cuda_graphs.layout import FlatLayout
from fedcohort.training.accelerators.cuda_graphs.program import Program, as_input, can_map
from fedcohort.training.modules import output_of
from fedcohort.training.plan import make_plan, step_keys, to_device
from fedcohort.training.problem import Data, LocalProblem, Parameters, Trained, joined
from fedcohort.training.task import Task

# Clients that train side by side as one program. Always so many, whoever trains: what is added up
# how must not depend on it. Runs that train fewer clients than `_FEW` would wait for empty slots,
# and models with more numbers than `_SMALL` gain nothing: their kernels take long enough.
_WIDE, _FEW, _SMALL = 10, 6, 1_000_000
# Clients that train side by side on streams of their own otherwise.
STREAMS = 20
_EVALUATED_AT_ONCE = 2500


class GraphedModels:
    """Trains and evaluates many models of one architecture, which is on the device.

    What is multiplied is of `precision`, float32 or bfloat16, the type `dtype`; master weights are
    float32 always. Images are `channels_last` if the model takes that.
    """

    def __init__(self, model: nn.Module, precision: str, channels_last: bool = True) -> None:
        self._layout = FlatLayout(model, channels_last)
        self.dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self._kept: dict[int, Program] = {}
        self._maps: bool | None = None

    @torch.no_grad()
    def train(self, problem: LocalProblem) -> Trained:
        """Train; see `Trainer`."""
        problem.model.train()
        if self._maps is None:
            self._maps = self._layout.size <= _SMALL and can_map(problem, self.dtype)
        model = problem.jobs.model
        many = (torch.bincount(model)[model] >= _FEW) & self._maps
        if many.all() or not many.any():
            return self._train(problem, _WIDE if many.all() else 1)
        wide, alone = (own.nonzero()[:, 0] for own in (many, ~many))
        found = joined(
            [self._train(problem.only(own), width) for own, width in ((wide, _WIDE), (alone, 1))]
        )
        order = torch.cat([wide, alone]).argsort().to(problem.device)
        whole = {name: values[order] for name, values in found.parameters.items()}
        return Trained(whole, found.losses[order])

    def _train(self, problem: LocalProblem, width: int) -> Trained:
        jobs, work = problem.jobs, problem.work
        plan = make_plan(jobs, problem.pool, work)
        counts = _steps_of(problem)
        program = self._program(problem, counts, width)
        queues = _deal(counts, program.places)
        keys = to_device(step_keys(jobs.key, len(plan.sample)), problem.device)
        turns = to_device(_turns(queues, counts), problem.device)
        program.fill(*_taken(turns, (plan.sample, plan.counts, keys)))
        first = self._layout.flatten(problem.stacked)
        local = first.new_empty(len(jobs), self._layout.size)
        losses = torch.zeros(len(jobs), dtype=torch.float64, device=problem.device)
        starts = jobs.model.tolist()
        program.lr.fill_(work.lr)
        for place, queue in enumerate(queues):
            slots, s = program.place(place)
            if queue:
                slots.load(s, first[starts[queue[0]]])
        done = 0
        for end, place, job, following in _ends(queues, counts):
            program.advance(end - done)
            done = end
            slots, s = program.place(place)
            slots.store(s, local[job], losses[job])
            if following is not None:
                slots.load(s, first[starts[following]])
        samples = plan.counts.sum(0)
        return Trained(self._layout.unflatten(local), losses / samples)

    def _program(self, problem: LocalProblem, counts: list[int], width: int) -> Program:
        """Return enough slots with room for all their steps, recorded anew if need be."""
        work = dataclasses.replace(problem.work, lr=0.0)
        places = width if width > 1 else min(STREAMS, len(counts))
        steps = max(sum(counts[j] for j in queue) for queue in _deal(counts, places))
        known = self._kept.get(width)
        if known is None or known.work != work or known.places < places or known.room < steps:
            # Twice the room: later rounds may have more to do.
            room = places // width, width, 2 * steps
            known = self._kept[width] = Program(problem, work, self._layout, self.dtype, room)
        return known

    @torch.no_grad()
    def evaluate(
        self, model: nn.Module, stacked: Parameters, data: Data, task: Task
    ) -> tuple[Tensor, Tensor]:
        """Return the score and the mean loss of R models on the same data, float64 [R] each."""
        model.eval()
        samples, rows = len(data[1]), self._layout.flatten(stacked)
        scores, losses = [], []
        for r in range(len(rows)):
            own = self._layout.views(rows[r].to(self.dtype))
            judged, lost = [], []
            for x, y in zip(*(torch.split(d, _EVALUATED_AT_ONCE) for d in data), strict=True):
                inputs = as_input(x[None], self.dtype, self._layout.channels_last)[0]
                outputs = output_of(functional_call(model, own, (inputs,))).float()
                judged.append(task.judge(outputs, y))
                lost.append(task.losses(outputs, y).double().sum())
            scores.append(task.score_of(torch.cat(judged)))
            losses.append(torch.stack(lost).sum() / samples)
        return torch.stack(scores), torch.stack(losses)


def _steps_of(problem: LocalProblem) -> list[int]:
    """Return how many steps each job has, as `make_plan` lays them out."""
    assert problem.work.batch_size is not None
    batches = -(-problem.jobs.size // problem.work.batch_size)
    return (problem.jobs.passes * batches).round().clamp(min=1).long().tolist()


def _deal(counts: list[int], slots: int) -> list[list[int]]:
    """Deal jobs to slots, the longest first, each to the slot that is free first."""
    queues: list[list[int]] = [[] for _ in range(slots)]
    free = [(0, slot) for slot in range(slots)]
    for job in sorted(range(len(counts)), key=lambda j: (-counts[j], j)):
        busy, slot = heapq.heappop(free)
        queues[slot].append(job)
        heapq.heappush(free, (busy + counts[job], slot))
    return queues


def _turns(queues: list[list[int]], counts: list[int]) -> Tensor:
    """Return which job [0] and which of its steps [1] each slot takes when, int64 [2, S, T].

    A slot that is done has no job: -1.
    """
    most = max(sum(counts[job] for job in queue) for queue in queues)
    turns = np.full((2, len(queues), most), -1)
    for slot, queue in enumerate(queues):
        own = np.array([counts[job] for job in queue], np.int64)
        total = int(own.sum())
        turns[0, slot, :total] = np.repeat(queue, own)
        turns[1, slot, :total] = np.arange(total) - np.repeat(own.cumsum() - own, own)
    return torch.from_numpy(turns)


def _taken(turns: Tensor, plan: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return samples [S, T, B], counts and keys [S, T] of the slots' turns, count 0 where none."""
    job, step = turns
    sample, count, key = (values[step.clamp(min=0), job.clamp(min=0)] for values in plan)
    return sample, count * (job >= 0), key


def _ends(queues: list[list[int]], counts: list[int]) -> list[tuple[int, int, int, int | None]]:
    """Return after how many steps which slot ends which job, and which job follows, in order."""
    found: list[tuple[int, int, int, int | None]] = []
    for slot, queue in enumerate(queues):
        end = 0
        for job, following in itertools.zip_longest(queue, queue[1:]):
            end += counts[job]
            found.append((end, slot, job, following))
    return sorted(found, key=lambda own: own[:2])
