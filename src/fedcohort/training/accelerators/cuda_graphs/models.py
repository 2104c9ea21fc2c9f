"""Local training in slots, replayed from a CUDA graph."""

import contextlib
import dataclasses
import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedcohort.training.accelerators.cuda_graphs.layout import FlatLayout
from fedcohort.training.modules import output_of
from fedcohort.training.plan import make_plan, step_keys, to_device
from fedcohort.training.problem import Data, LocalProblem, LocalWork, Parameters, Trained
from fedcohort.training.task import Task

# Clients that train side by side: enough to fill a GPU with small batches.
_SLOTS = 20
_EVALUATED_AT_ONCE = 2500

_Models = tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]


class GraphedModels:
    """Trains and evaluates many models of one architecture, which is on the device.

    What is multiplied is of `precision`, float32 or bfloat16, the type `dtype`; master weights are
    float32 always.
    """

    def __init__(self, model: nn.Module, precision: str) -> None:
        self._layout = FlatLayout(model)
        self.dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self._kept: _Program | None = None

    @torch.no_grad()
    def train(self, problem: LocalProblem) -> Trained:
        """Train; see `Trainer`."""
        jobs, work = problem.jobs, problem.work
        plan = make_plan(jobs, problem.pool, work)
        counts = _steps_of(problem)
        program = self._program(problem, counts)
        queues = _deal(counts, len(program.slots))
        keys = to_device(step_keys(jobs.key, len(plan.sample)), problem.device)
        first = self._layout.flatten(problem.stacked)
        local = first.new_empty(len(jobs), self._layout.size)
        losses = torch.zeros(len(jobs), dtype=torch.float64, device=problem.device)
        starts = jobs.model.tolist()
        program.lr.fill_(work.lr)
        for slot, queue in zip(program.slots, queues, strict=True):
            slot.fill(plan.sample, plan.counts, keys, queue, counts)
        ends = _ends(queues, counts)
        for s, slot in enumerate(program.slots):
            if queues[s]:
                slot.load(first[starts[queues[s][0]]])
        for step in range(max(end for slot_ends in ends for end, _, _ in slot_ends)):
            program.step()
            for s, slot in enumerate(program.slots):
                while ends[s] and ends[s][0][0] == step + 1:
                    _, job, following = ends[s].pop(0)
                    slot.store(local[job], losses[job])
                    if following is not None:
                        slot.load(first[starts[following]])
        samples = plan.counts.sum(0)
        whole = {n: v.contiguous() for n, v in self._layout.unflatten(local).items()}
        return Trained(whole, losses / samples)

    def _program(self, problem: LocalProblem, counts: list[int]) -> "_Program":
        """Return enough slots with room for all their steps, recorded anew if need be."""
        work = dataclasses.replace(problem.work, lr=0.0)
        slots = min(_SLOTS, len(counts))
        steps = max(sum(counts[j] for j in queue) for queue in _deal(counts, slots))
        known = self._kept
        if known is None or known.work != work or len(known.slots) < slots or known.room < steps:
            # Twice the room: later rounds may have more to do.
            room = slots, 2 * steps
            known = self._kept = _Program(problem, work, self._layout, self.dtype, room)
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
                result = functional_call(model, own, (_as_input(x, self.dtype),))
                outputs = output_of(result).float()
                judged.append(task.judge(outputs, y))
                lost.append(task.losses(outputs, y).double().sum())
            scores.append(task.score_of(torch.cat(judged)))
            losses.append(torch.stack(lost).sum() / samples)
        return torch.stack(scores), torch.stack(losses)


def _steps_of(problem: LocalProblem) -> list[int]:
    """Return how many steps each job has, as `make_plan` lays them out."""
    batches = -(-problem.jobs.size // _batch_size(problem))
    return (problem.jobs.passes * batches).round().clamp(min=1).long().tolist()


def _batch_size(problem: LocalProblem) -> int:
    """Return the samples that every batch is filled up to, whoever trains beside it."""
    assert problem.work.batch_size is not None
    return problem.work.batch_size


def _deal(counts: list[int], slots: int) -> list[list[int]]:
    """Deal jobs to slots, the longest first, each to the slot that is free first."""
    queues: list[list[int]] = [[] for _ in range(slots)]
    free = [(0, slot) for slot in range(slots)]
    for job in sorted(range(len(counts)), key=lambda j: (-counts[j], j)):
        busy, slot = heapq.heappop(free)
        queues[slot].append(job)
        heapq.heappush(free, (busy + counts[job], slot))
    return queues


def _ends(queues: list[list[int]], counts: list[int]) -> list[list[tuple[int, int, int | None]]]:
    """Return when each slot's jobs end, in steps, and which job follows."""
    found = []
    for queue in queues:
        total, ends = 0, []
        for job, following in itertools.zip_longest(queue, queue[1:]):
            total += counts[job]
            ends.append((total, job, following))
        found.append(ends)
    return found


class _Slot:
    """One place where clients are trained, one after the other."""

    def __init__(
        self, layout: FlatLayout, dtype: torch.dtype, steps: int, batch: int, device: torch.device
    ) -> None:
        self._rows = torch.zeros(3, layout.size, device=device)
        # What is multiplied: a copy of the master in the working precision.
        self._work = torch.zeros(layout.size, dtype=dtype, device=device)
        self.working = {n: view.requires_grad_() for n, view in layout.views(self._work).items()}
        self._views = [list(layout.views(row).values()) for row in self._rows]
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self.turn = torch.zeros(1, dtype=torch.int64, device=device)
        self.sample = torch.zeros(steps, batch, dtype=torch.int64, device=device)
        self.count = torch.zeros(steps, dtype=torch.int64, device=device)
        self.key = torch.zeros(steps, dtype=torch.int64, device=device)

    def models(self) -> _Models:
        """Return the master, its working copy, the first model and the velocity, as lists."""
        master, first, velocity = self._views
        return master, [view.detach() for view in self.working.values()], first, velocity

    def fill(
        self, sample: Tensor, count: Tensor, keys: Tensor, queue: list[int], steps: list[int]
    ) -> None:
        """Take over the batches of the jobs in the queue; afterwards, nothing is trained on."""
        self.turn.zero_()
        self.count.zero_()
        at = 0
        for job in queue:
            here = slice(at, at + steps[job])
            self.sample[here, : sample.shape[2]] = sample[: steps[job], job]
            self.count[here] = count[: steps[job], job]
            self.key[here] = keys[: steps[job], job]
            at += steps[job]

    def load(self, row: Tensor) -> None:
        """Begin with a client at a global model."""
        self._rows[:2] = row
        self._rows[2].zero_()
        self._work.copy_(row)
        self.loss.zero_()

    def store(self, row: Tensor, loss: Tensor) -> None:
        """Hand over a client's local model, and the sum of its losses."""
        row.copy_(self._rows[0])
        loss.copy_(self.loss)


class _Program:
    """All slots, and their step, recorded where there is a GPU."""

    def __init__(
        self,
        problem: LocalProblem,
        work: LocalWork,
        layout: FlatLayout,
        dtype: torch.dtype,
        room: tuple[int, int],
    ) -> None:
        device, batch = problem.device, _batch_size(problem)
        slots, self.room = room
        self.work = work
        self._data, self._dtype = problem.data, dtype
        self.lr = torch.zeros((), device=device)
        self.slots = [_Slot(layout, dtype, self.room, batch, device) for _ in range(slots)]
        self._places = torch.arange(batch, device=device)
        self._loss = _loss_of(problem.model, problem.task)
        self._descend = _descend
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            self._loss = torch.compile(self._loss, dynamic=False)
            self._descend = torch.compile(self._descend, dynamic=False)
            self._record()

    def step(self) -> None:
        """Take one step in every slot."""
        if self._graph is not None:
            self._graph.replay()
            return
        for slot in self.slots:
            self._advance(slot)

    def _record(self) -> None:
        streams = [torch.cuda.Stream() for _ in self.slots]  # type: ignore[no-untyped-call]
        warm = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm), _repeatable():
            for _ in range(2):
                self._advance(self.slots[0])
        torch.cuda.current_stream().wait_stream(warm)
        self._graph = torch.cuda.CUDAGraph()
        with _repeatable(), torch.cuda.graph(self._graph):
            main = torch.cuda.current_stream()
            for slot, stream in zip(self.slots, streams, strict=True):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    self._advance(slot)
            for stream in streams:
                main.wait_stream(stream)

    def _advance(self, slot: _Slot) -> None:
        """Take one step of the client in a slot."""
        x, y = self._data
        turn = slot.turn.clamp(max=len(slot.count) - 1)
        sample = slot.sample.index_select(0, turn)[0]
        count = slot.count.index_select(0, turn)[0]
        inputs = x.index_select(0, sample)
        if self.work.augmentation:
            inputs = self.work.augmentation(inputs, slot.key.index_select(0, turn)[0])
        share = (self._places < count) / count.clamp(min=1)
        targets = y.index_select(0, sample)
        with torch.enable_grad():
            loss = self._loss(slot.working, _as_input(inputs, self._dtype), targets, share)
            gradients = torch.autograd.grad(loss, list(slot.working.values()))
        # What is finished stays where it is until it is handed over.
        self._descend(slot.models(), gradients, self.work, self.lr * (count > 0))
        slot.loss += loss.detach().double() * count
        slot.turn += 1


def _loss_of(model: nn.Module, task: Task) -> Callable[..., Tensor]:
    def loss(parameters: Parameters, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        outputs = output_of(functional_call(model, parameters, (x,)))
        return (task.losses(outputs.float(), y) * share).sum()

    return loss


def _descend(models: _Models, gradients: Sequence[Tensor], work: LocalWork, lr: Tensor) -> None:
    """Move a model against its gradients, in place; see `fedcohort.training.descent`."""
    master, working, first, velocity = models
    moves = [gradient.float() for gradient in gradients]
    if work.proximal:
        pairs = zip(moves, master, first, strict=True)
        moves = [move + work.proximal * (here - start) for move, here, start in pairs]
    if work.clip is not None:
        squares = torch.stack([move.square().sum() for move in moves])
        scale = (work.clip / (squares.sum().sqrt() + 1e-6)).clamp(max=1.0)
        moves = [move * scale for move in moves]
    for move, here, copy, speed in zip(moves, master, working, velocity, strict=True):
        move = move + work.weight_decay * here if work.weight_decay else move
        if work.momentum:
            faster = work.momentum * speed + move
            speed.copy_(faster)
            move = move + work.momentum * faster if work.nesterov else faster
        moved = here - lr * move
        here.copy_(moved)
        copy.copy_(moved)


def _as_input(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return inputs in the working precision, images channels-last; tokens stay as they are."""
    x = x.to(dtype) if x.is_floating_point() else x
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


@contextlib.contextmanager
def _repeatable() -> Any:
    """While active, cuDNN takes the same deterministic kernels every time."""
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before
