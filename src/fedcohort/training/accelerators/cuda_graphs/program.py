"""The step of clients in slots: compiled, and recorded as a CUDA graph where there is a GPU."""

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.func import functional_call, vmap

from fedcohort.training.accelerators.cuda_graphs.layout import FlatLayout
from fedcohort.training.accelerators.cuda_graphs.side_by_side import on_its_own, side_by_side
from fedcohort.training.modules import output_of
from fedcohort.training.problem import LocalProblem, LocalWork, Parameters

_Models = tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]


def can_map(problem: LocalProblem, dtype: torch.dtype) -> bool:
    """Tell whether `vmap` takes a model, other than by going through clients one by one."""
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as fake, warnings.catch_warnings():
            warnings.filterwarnings("error", message="There is a performance drop")
            own = {n: fake.from_tensor(p.detach()) for n, p in problem.model.named_parameters()}
            both = {n: torch.stack([p, p]).to(dtype).requires_grad_() for n, p in own.items()}
            few = (fake.from_tensor(values)[:2] for values in problem.data)
            x, y = (torch.stack([values, values]) for values in few)
            share = torch.ones(2, 2, device=problem.device)
            with torch.enable_grad():
                losses = _losses_of(problem, 2)(both, as_input(x, dtype), y, share)
                torch.autograd.grad(losses.sum(), list(both.values()))
    # A model's own code may fail under vmap in any way; what else is wrong shows without it.
    except Exception:
        return False
    return True


class _Slots:
    """Places where clients are trained side by side, in each one after the other."""

    def __init__(
        self, layout: FlatLayout, dtype: torch.dtype, device: torch.device, room: tuple[int, ...]
    ) -> None:
        width, steps, batch = room
        self._rows = torch.zeros(3, width, layout.size, device=device)
        # What is multiplied: a copy of the master in the working precision.
        self._work = torch.zeros(width, layout.size, dtype=dtype, device=device)
        self.working = {n: v.requires_grad_() for n, v in layout.unflatten(self._work).items()}
        self._views = [list(layout.unflatten(rows).values()) for rows in self._rows]
        self.loss = torch.zeros(width, dtype=torch.float64, device=device)
        self.turn = torch.zeros(1, dtype=torch.int64, device=device)
        self.sample = torch.zeros(width, steps, batch, dtype=torch.int64, device=device)
        self.count = torch.zeros(width, steps, dtype=torch.int64, device=device)
        self.key = torch.zeros(width, steps, dtype=torch.int64, device=device)

    def models(self) -> _Models:
        """Return the masters, their working copies, the first models and the velocities."""
        master, first, velocity = self._views
        return master, [view.detach() for view in self.working.values()], first, velocity

    def fill(
        self,
        s: int,
        sample: Tensor,
        count: Tensor,
        keys: Tensor,
        queue: list[int],
        steps: list[int],
    ) -> None:
        """Take over the batches of the jobs in a queue; afterwards, nothing is trained on."""
        at = 0
        self.count[s].zero_()
        for job in queue:
            here = slice(at, at + steps[job])
            self.sample[s, here, : sample.shape[2]] = sample[: steps[job], job]
            self.count[s, here] = count[: steps[job], job]
            self.key[s, here] = keys[: steps[job], job]
            at += steps[job]

    def load(self, s: int, row: Tensor) -> None:
        """Begin with a client at a global model."""
        self._rows[:2, s] = row
        self._rows[2, s].zero_()
        self._work[s] = row
        self.loss[s].zero_()

    def store(self, s: int, row: Tensor, loss: Tensor) -> None:
        """Hand over a client's local model, and the sum of its losses."""
        row.copy_(self._rows[0, s])
        loss.copy_(self.loss[s])


class Program:
    """All slots, and their step, recorded where there is a GPU."""

    def __init__(
        self,
        problem: LocalProblem,
        work: LocalWork,
        layout: FlatLayout,
        dtype: torch.dtype,
        room: tuple[int, int, int],
    ) -> None:
        # Batches are filled up to the full size, whoever trains beside them.
        device, batch = problem.device, problem.work.batch_size
        assert batch is not None
        streams, self._width, self.room = room
        self.work, self.places = work, streams * self._width
        self._data, self._dtype = problem.data, dtype
        self.lr = torch.zeros((), device=device)
        own = self._width, self.room, batch
        self._slots = [_Slots(layout, dtype, device, own) for _ in range(streams)]
        self._positions = torch.arange(batch, device=device)
        self._losses = _losses_of(problem, self._width)
        self._descend = _descend
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            self._losses = torch.compile(self._losses, dynamic=False)
            self._descend = torch.compile(self._descend, dynamic=False)
            self._record()

    def place(self, place: int) -> tuple[_Slots, int]:
        """Return where a place is."""
        return self._slots[place // self._width], place % self._width

    def rewind(self) -> None:
        """Begin with the first step."""
        for slots in self._slots:
            slots.turn.zero_()

    def step(self) -> None:
        """Take one step in every slot."""
        if self._graph is not None:
            self._graph.replay()
            return
        for slots in self._slots:
            self._advance(slots)

    def _record(self) -> None:
        streams = [torch.cuda.Stream() for _ in self._slots]  # type: ignore[no-untyped-call]
        warm = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm), _repeatable():
            for _ in range(2):
                self._advance(self._slots[0])
        torch.cuda.current_stream().wait_stream(warm)
        self._graph = torch.cuda.CUDAGraph()
        with _repeatable(), torch.cuda.graph(self._graph):
            main = torch.cuda.current_stream()
            for slots, stream in zip(self._slots, streams, strict=True):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    self._advance(slots)
            for stream in streams:
                main.wait_stream(stream)

    def _advance(self, slots: _Slots) -> None:
        """Take one step of the clients in some slots."""
        x, y = self._data
        turn = slots.turn.clamp(max=self.room - 1)
        sample, count, key = (
            values.index_select(1, turn)[:, 0] for values in (slots.sample, slots.count, slots.key)
        )
        inputs, targets = (v.index_select(0, sample.flatten()) for v in (x, y))
        inputs, targets = (v.view(*sample.shape, *v.shape[1:]) for v in (inputs, targets))
        if self.work.augmentation:
            inputs = vmap(self.work.augmentation)(inputs, key)
        share = (self._positions < count[:, None]) / count.clamp(min=1)[:, None]
        with torch.enable_grad():
            losses = self._losses(slots.working, as_input(inputs, self._dtype), targets, share)
            gradients = torch.autograd.grad(losses.sum(), list(slots.working.values()))
        # What is finished stays where it is until it is handed over.
        self._descend(slots.models(), gradients, self.work, self.lr * (count > 0))
        slots.loss += losses.detach().double() * count
        slots.turn += 1


def _losses_of(problem: LocalProblem, width: int) -> Callable[..., Tensor]:
    """Return the losses [width] of as many models on a batch each."""
    model = (side_by_side if width > 1 else on_its_own)(problem.model)

    def loss(parameters: Parameters, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        outputs = output_of(functional_call(model, parameters, (x,)))
        return (problem.task.losses(outputs.float(), y) * share).sum()

    def alone(parameters: Parameters, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        return loss({n: values[0] for n, values in parameters.items()}, x[0], y[0], share[0])[None]

    return vmap(loss) if width > 1 else alone


def _descend(models: _Models, gradients: Sequence[Tensor], work: LocalWork, lr: Tensor) -> None:
    """Move models against their gradients, in place; see `fedcohort.training.descent`."""
    master, working, first, velocity = models
    moves = [gradient.float() for gradient in gradients]
    if work.proximal:
        pairs = zip(moves, master, first, strict=True)
        moves = [move + work.proximal * (here - start) for move, here, start in pairs]
    if work.clip is not None:
        squares = torch.stack([move.square().flatten(1).sum(1) for move in moves])
        scale = (work.clip / (squares.sum(0).sqrt() + 1e-6)).clamp(max=1.0)
        moves = [move * _per_model(scale, move) for move in moves]
    for move, here, copy, speed in zip(moves, master, working, velocity, strict=True):
        move = move + work.weight_decay * here if work.weight_decay else move
        if work.momentum:
            faster = work.momentum * speed + move
            speed.copy_(faster)
            move = move + work.momentum * faster if work.nesterov else faster
        moved = here - _per_model(lr, move) * move
        here.copy_(moved)
        copy.copy_(moved)


def _per_model(values: Tensor, like: Tensor) -> Tensor:
    """Return one value per model [W] in a shape that goes with parameters [W, ...]."""
    return values.view(-1, *[1] * (like.dim() - 1))


def as_input(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return inputs [W, B, ...] in the working precision, images channels-last; not so tokens."""
    x = x.to(dtype) if x.is_floating_point() else x
    return x.movedim(2, -1).contiguous().movedim(-1, 2) if x.dim() == 5 else x


@contextlib.contextmanager
def _repeatable() -> Any:
    """While active, cuDNN takes the same deterministic kernels every time."""
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before
