"""The step of clients in slots: compiled, and recorded as a CUDA graph where there is a GPU."""

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call, vmap

from fedcohort.training.accelerators.cuda_graphs.layout import FlatLayout
from fedcohort.training.accelerators.cuda_graphs.side_by_side import (
    on_its_own,
    side_by_side,
    whole_names,
)
from fedcohort.training.modules import output_of
from fedcohort.training.problem import Data, LocalProblem, LocalWork, Parameters, per_model

_Models = tuple[list[Tensor], list[Tensor | None], list[Tensor], list[Tensor]]


def can_map(problem: LocalProblem, dtype: torch.dtype) -> bool:
    """Tell whether `vmap` takes a model, other than by going through clients one by one."""
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as fake, warnings.catch_warnings():
            warnings.filterwarnings("error", message="There is a performance drop")
            own = {n: fake.from_tensor(p.detach()) for n, p in problem.model.named_parameters()}
            both = {n: torch.stack([p, p]).to(dtype).requires_grad_() for n, p in own.items()}
            few = (fake.from_tensor(values)[:2] for values in problem.data)
            x, y = (torch.stack([values, values]) for values in few)
            count = torch.full((2,), 2, device=problem.device)
            with torch.enable_grad():
                mapped = side_by_side(problem.model)
                losses = _losses_of(problem, mapped, 2, dtype)(both, x, y, count)
                torch.autograd.grad(losses.sum(), list(both.values()))
    # A model's own code may fail under vmap in any way; what else is wrong shows without it.
    except Exception:
        return False
    return True


class _Slots:
    """Places where clients are trained side by side, in each one after the other.

    Attributes
    ----------
    sample, count, key : int64 [W, T, B], [W, T] and [W, T]
        What each place trains on in each turn, how many of it count, and the turn's key.
    working : dict of [W, ...]
        What is multiplied: a copy of the master in the working precision, or the master itself.
    loss : float64 [W]
        The sum of the samples' losses.
    """

    def __init__(
        self,
        layout: FlatLayout,
        dtype: torch.dtype,
        batches: tuple[Tensor, ...],
        work: LocalWork,
        whole: set[str],
    ) -> None:
        self.sample, self.count, self.key = batches
        width, device = len(self.count), self.count.device
        # The master, the first model and the velocity.
        self._rows = torch.zeros(3, width, layout.size, device=device)
        self._begins_first, self._begins_still = bool(work.proximal), bool(work.momentum)
        self._work = torch.zeros(width, layout.size, dtype=dtype, device=device)
        masters, first, velocity = (layout.unflatten(rows) for rows in self._rows)
        copies, own = layout.unflatten(self._work), layout.unflatten(self._rows[0])
        self.working = {
            name: (own if name in whole else copies)[name].requires_grad_() for name in masters
        }
        self.models: _Models = (
            list(masters.values()),
            [None if name in whole else copy.detach() for name, copy in copies.items()],
            list(first.values()),
            list(velocity.values()),
        )
        self.loss = torch.zeros(width, dtype=torch.float64, device=device)
        self.turn = torch.zeros(1, dtype=torch.int64, device=device)
        self.ones = torch.ones(width, device=device)

    def load(self, s: int, row: Tensor) -> None:
        """Begin with a client at a global model."""
        self._rows[0, s] = row
        self._work[s] = row
        if self._begins_first:
            self._rows[1, s] = row
        if self._begins_still:
            self._rows[2, s].zero_()
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
        self._data = problem.data
        self.lr = torch.zeros((), device=device)
        shape = self.places, self.room
        self._batches = [
            torch.zeros(*shape, *more, dtype=torch.int64, device=device)
            for more in ((batch,), (), ())
        ]
        model = (side_by_side if self._width > 1 else on_its_own)(problem.model)
        parts = zip(*(torch.split(values, self._width) for values in self._batches), strict=True)
        whole = whole_names(model)
        self._slots = [_Slots(layout, dtype, part, work, whole) for part in parts]
        self._losses = _losses_of(problem, model, self._width, dtype)
        self._gather, self._descend, self._note = _gather, _descend, _note
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            self._gather = torch.compile(self._gather, dynamic=False)
            self._losses = torch.compile(self._losses, dynamic=False)
            self._descend = torch.compile(self._descend, dynamic=False)
            self._note = torch.compile(self._note, dynamic=False)
            self._graph = self._record()

    def place(self, place: int) -> tuple[_Slots, int]:
        """Return where a place is."""
        return self._slots[place // self._width], place % self._width

    def fill(self, sample: Tensor, count: Tensor, key: Tensor) -> None:
        """Take over what is trained on, from the first turn on; see `_Slots`."""
        turns, batch = sample.shape[1:]
        self._batches[0][:, :turns, :batch] = sample
        for own, given in zip(self._batches[1:], (count, key), strict=True):
            own.zero_()
            own[:, :turns] = given
        for slots in self._slots:
            slots.turn.zero_()

    def advance(self, steps: int) -> None:
        """Take some steps in every slot."""
        for _ in range(steps):
            if self._graph is not None:
                self._graph.replay()
            else:
                for slots in self._slots:
                    self._step(slots)

    def _record(self) -> torch.cuda.CUDAGraph:
        streams = [torch.cuda.Stream() for _ in self._slots]  # type: ignore[no-untyped-call]
        warm = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm), _repeatable():
            for _ in range(2):
                self._step(self._slots[0])
        torch.cuda.current_stream().wait_stream(warm)
        graph = torch.cuda.CUDAGraph()
        with _repeatable(), torch.cuda.graph(graph):
            main = torch.cuda.current_stream()
            for slots, stream in zip(self._slots, streams, strict=True):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    self._step(slots)
            for stream in streams:
                main.wait_stream(stream)
        return graph

    def _step(self, slots: _Slots) -> None:
        """Take one step of the clients in some slots."""
        batches = slots.turn, slots.sample, slots.count, slots.key
        inputs, targets, count, key = self._gather(batches, self._data)
        if self.work.augmentation:
            inputs = vmap(self.work.augmentation)(inputs, key)
        with torch.enable_grad():
            losses = self._losses(slots.working, inputs, targets, count)
            found = torch.autograd.grad(losses, list(slots.working.values()), slots.ones)
        self._descend(slots.models, found, self.work, self.lr, count)
        self._note(slots.loss, slots.turn, losses.detach(), count)


def _gather(batches: tuple[Tensor, ...], data: Data) -> tuple[Tensor, ...]:
    """Return inputs and targets [W, B, ...] of a turn, how many samples count, and the keys [W]."""
    turn, sample, count, key = batches
    turn = turn.clamp(max=sample.shape[1] - 1)
    sample, count, key = (values.index_select(1, turn)[:, 0] for values in (sample, count, key))
    inputs, targets = (values[sample] for values in data)
    return inputs, targets, count, key


def _losses_of(
    problem: LocalProblem, model: nn.Module, width: int, dtype: torch.dtype
) -> Callable[..., Tensor]:
    """Return the losses [width] of as many models on the first samples of a batch each."""

    def loss(parameters: Parameters, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        outputs = output_of(functional_call(model, parameters, (x,)))
        return (problem.task.losses(outputs.float(), y) * share).sum()

    def alone(parameters: Parameters, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        # Not `[0]`, whose gradient is a copy.
        own = {name: values.squeeze(0) for name, values in parameters.items()}
        return loss(own, x.squeeze(0), y.squeeze(0), share.squeeze(0))[None]

    each = vmap(loss) if width > 1 else alone

    def losses(parameters: Parameters, x: Tensor, y: Tensor, count: Tensor) -> Tensor:
        place = torch.arange(y.shape[1], device=y.device)
        share = (place < count[:, None]) / count.clamp(min=1)[:, None]
        return each(parameters, as_input(x, dtype, problem.traits.channels_last), y, share)

    return losses


def _descend(
    models: _Models, gradients: Sequence[Tensor], work: LocalWork, lr: Tensor, count: Tensor
) -> None:
    """Move models against their gradients, in place; see `fedcohort.training.descent`.

    The count is how many samples each model's batch had. All parameters as one operation: of many
    small ones, most of a GPU's time would be their beginning.
    """
    master, working, first, velocity = models
    moves: list[Tensor] | tuple[Tensor, ...] = [gradient.float() for gradient in gradients]
    if work.proximal:
        strayed = torch._foreach_sub(master, first)
        moves = torch._foreach_add(moves, strayed, alpha=work.proximal)
    if work.clip is not None:
        squares = torch.stack([move.square().reshape(len(move), -1).sum(1) for move in moves])
        scale = (work.clip / (squares.sum(0).sqrt() + 1e-6)).clamp(max=1.0)
        moves = torch._foreach_mul(moves, [per_model(scale, move) for move in moves])
    if work.weight_decay:
        moves = torch._foreach_add(moves, master, alpha=work.weight_decay)
    if work.momentum:
        faster = torch._foreach_add(moves, velocity, alpha=work.momentum)
        torch._foreach_copy_(velocity, faster)
        moves = torch._foreach_add(moves, faster, alpha=work.momentum) if work.nesterov else faster
    # What is finished stays where it is until it is handed over.
    rate = lr * (count > 0)
    steps = torch._foreach_mul(moves, [per_model(rate, move) for move in moves])
    moved = torch._foreach_sub(master, steps)
    torch._foreach_copy_(master, moved)
    copied = [
        (copy, values) for copy, values in zip(working, moved, strict=True) if copy is not None
    ]
    if copied:
        torch._foreach_copy_([copy for copy, _ in copied], [values for _, values in copied])


def _note(loss: Tensor, turn: Tensor, losses: Tensor, count: Tensor) -> None:
    """Add up a turn's mean losses [W], in place, and go on to the next turn."""
    loss += losses.double() * count
    turn += 1


def as_input(x: Tensor, dtype: torch.dtype, channels_last: bool) -> Tensor:
    """Return inputs [W, B, ...] in the working precision, tokens as they are."""
    x = x.to(dtype) if x.is_floating_point() else x
    turned = channels_last and x.dim() == 5
    return x.movedim(2, -1).contiguous().movedim(-1, 2) if turned else x.contiguous()


@contextlib.contextmanager
def _repeatable() -> Any:
    """While active, cuDNN takes the same deterministic kernels every time."""
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before
