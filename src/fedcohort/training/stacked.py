"""Local training of many small models at once, with gradients written out.

For models so small that PyTorch's overhead per operation decides. A chain of layers
(`fedcohort.training.chain`) is trained for all clients at once by batched matrix products; without
autograd and `vmap`, a step is a few dozen operations. Images are held as [M, B, H, W, C].
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedcohort.training.descent import direction
from fedcohort.training.fused.layers import Convolution, Layer, Linear
from fedcohort.training.local import Parameters, Trained, joined
from fedcohort.training.plan import Jobs, LocalWork, make_plan
from fedcohort.training.workers import Workers

# From the gradient of a step's output to that of its input.
_Backward = Callable[[Tensor], Tensor]

# Models are trained in shares whose activations stay in a core's cache (float32 values).
_VALUES_AT_ONCE = 2**19


@dataclasses.dataclass(frozen=True)
class Stacked:
    """Trains jobs step by step as one program a worker; a `Trainer`.

    Attributes
    ----------
    layers : tuple of Layer
        What `read_chain` returned for the model.
    workers : Workers
        Who computes: each worker trains a share of the jobs.
    """

    layers: tuple[Layer, ...]
    workers: Workers

    def __call__(
        self,
        model: nn.Module,  # noqa: ARG002
        stacked: Parameters,
        jobs: Jobs,
        data: tuple[Tensor, Tensor],
        pool: Tensor,
        work: LocalWork,
    ) -> Trained:
        """Train; see `Trainer`."""
        samples = int(jobs.size.max())
        if work.batch_size is not None:
            samples = min(samples, work.batch_size)
        values = samples * sum(_values_per_sample(layer) for layer in self.layers)
        share = -(-len(jobs) // self.workers.count)
        share = min(share, max(1, _VALUES_AT_ONCE // values))
        starts = range(0, len(jobs), share)
        shares = [jobs[i : i + share] for i in starts] if len(starts) > 1 else [jobs]
        train = functools.partial(_train, self.layers, stacked, data, pool, work)
        return joined(self.workers.map(train, shares))


# Without gradients to record, PyTorch's share of an operation is smaller still.
@torch.inference_mode()
def _train(
    layers: Sequence[Layer],
    stacked: Parameters,
    data: tuple[Tensor, Tensor],
    pool: Tensor,
    work: LocalWork,
    jobs: Jobs,
) -> Trained:
    x, y = data
    plan = make_plan(jobs, pool, work)
    counts = plan.counts
    everyone_works = (counts > 0).all(1).tolist()
    local = {name: values.index_select(0, jobs.model) for name, values in stacked.items()}
    first = [values.clone() for values in local.values()] if work.proximal else []
    velocity: list[Tensor] = []
    total = torch.zeros(len(jobs), dtype=torch.float64)
    for t, (sample, weight) in enumerate(zip(plan.sample, plan.weight, strict=True)):
        each = sample.flatten()
        images = x.index_select(0, each).view(*sample.shape, *x.shape[1:])
        labels = y.index_select(0, each).view(sample.shape)
        gradients, losses = gradients_of(layers, local, images, labels, weight)
        total += losses * counts[t]
        found = [gradients[name] for name in local]
        moves = direction(found, list(local.values()), first, velocity, work)
        if not everyone_works[t]:
            # A job that has finished keeps its velocity from moving it.
            moves = [move * (counts[t] > 0).view(-1, *[1] * (move.dim() - 1)) for move in moves]
        torch._foreach_add_(list(local.values()), moves, alpha=-work.lr)
    return Trained(local, total / counts.sum(0))


def _values_per_sample(layer: Layer) -> int:
    """Count the values that a step holds of one sample in one layer, about."""
    if isinstance(layer, Linear):
        return layer.outputs
    rows, columns = (side * layer.pool for side in layer.image)
    width = layer.width + 2 * layer.padding
    return rows * (layer.kernel[0] * width * layer.channels + columns * layer.filters)


def gradients_of(
    layers: Sequence[Layer], parameters: Parameters, x: Tensor, y: Tensor, weight: Tensor
) -> tuple[Parameters, Tensor]:
    """Return the gradients of M models' weighted losses, and the losses.

    Parameters
    ----------
    layers : sequence of Layer
        The architecture.
    parameters : dict of float32 [M, ...]
        One model a row.
    x, y : float32 [M, B, ...], int64 [M, B]
        A batch a model; images are [M, B, C, H, W].
    weight : float32 [M, B]
        Of each sample in its model's loss.

    Returns
    -------
    gradients : dict of float32 [M, ...]
        As `parameters`.
    losses : float32 [M]
        The weighted sums of cross-entropies.
    """
    gradients: Parameters = {}
    steps: list[_Backward] = []
    if x.dim() == 5:
        x = x.permute(0, 1, 3, 4, 2)
    for layer in layers:
        inner = len(steps) > 0  # nobody asks for the gradient of the data
        if isinstance(layer, Convolution):
            x = _convolution(layer, parameters, gradients, x, steps, inner=inner)
            if layer.pool > 1:
                x = _max_pool(layer.pool, x, steps)
        else:
            if x.dim() == 5:
                x = _flatten(x, steps)
            x = _linear(layer, parameters, gradients, x.flatten(2), steps, inner=inner)
        if layer.relu:
            x = _relu(x, steps)
    log_p = x.log_softmax(2)
    labels = y.unsqueeze(2)
    losses = -(log_p.gather(2, labels).squeeze(2) * weight).sum(1)
    # Of cross-entropy after softmax: p − 1 at the label, p elsewhere.
    gradient = log_p.exp_()
    gradient.scatter_add_(2, labels, gradient.new_full((), -1.0).expand(labels.shape))
    gradient.mul_(weight.unsqueeze(2))
    for backward in reversed(steps):
        gradient = backward(gradient)
    return gradients, losses


def _convolution(
    layer: Convolution,
    parameters: Parameters,
    gradients: Parameters,
    x: Tensor,
    steps: list[_Backward],
    *,
    inner: bool,
) -> Tensor:
    """Convolve as one product a model: rows of images with the kernel as a block-Toeplitz matrix.

    Neighbouring rows of an image lie together in memory, so that `kh` of them are one row of the
    left matrix as they are; the right matrix repeats the kernel along the width. That is W / kw
    times the arithmetic of a convolution, in products that are large enough to be fast.
    """
    weight, pad = parameters[layer.weight], layer.padding
    models, outputs, channels, kh, kw = weight.shape
    x = F.pad(x, (0, 0, pad, pad, pad, pad)) if pad else x.contiguous()
    _, samples, height, width, _ = x.shape
    rows, columns = height - kh + 1, width - kw + 1
    sm, sb, sh, _, _ = x.stride()
    bands = x.as_strided((models, samples, rows, kh * sh), (sm, sb, sh, 1))
    bands = bands.reshape(models, samples * rows, kh * sh)
    spread = weight.new_zeros(models, kh, width, channels, columns, outputs)
    _diagonal(spread, kw).copy_(weight.permute(0, 3, 4, 2, 1).unsqueeze(4))
    toeplitz = spread.view(models, kh * sh, columns * outputs)
    if layer.bias is None:
        y = torch.bmm(bands, toeplitz)
    else:
        offset = parameters[layer.bias].unsqueeze(1).expand(-1, columns, -1)
        y = torch.baddbmm(offset.reshape(models, 1, -1), bands, toeplitz)

    def backward(gradient: Tensor) -> Tensor:
        if layer.bias is not None:
            gradients[layer.bias] = gradient.reshape(models, -1, outputs).sum(1)
        gradient = gradient.reshape(models, samples * rows, columns * outputs)
        found = torch.bmm(bands.transpose(1, 2), gradient).view(spread.shape)
        gradients[layer.weight] = _diagonal(found, kw).sum(4).permute(0, 4, 3, 1, 2)
        if not inner:
            return gradient
        back = torch.bmm(gradient, toeplitz.transpose(1, 2)).view(models, samples, rows, kh, sh)
        whole = x.new_zeros(models, samples, height, sh)
        for i, row in enumerate(back.unbind(3)):
            # Not `+=`, which would write the slice once more.
            whole.narrow(2, i, rows).add_(row)
        images = whole.view(x.shape)
        return images[:, :, pad : height - pad, pad : width - pad] if pad else images

    steps.append(backward)
    return y.view(models, samples, rows, columns, outputs)


def _diagonal(spread: Tensor, kw: int) -> Tensor:
    """View [M, kh, W, C, W', O] where column j of the kernel is used: [M, kh, kw, C, W', O]."""
    models, kh, _, channels, columns, outputs = spread.shape
    sm, sk, sw, sc, sq, so = spread.stride()
    return spread.as_strided(
        (models, kh, kw, channels, columns, outputs), (sm, sk, sw, sc, sw + sq, so)
    )


def _linear(
    layer: Linear,
    parameters: Parameters,
    gradients: Parameters,
    x: Tensor,
    steps: list[_Backward],
    *,
    inner: bool,
) -> Tensor:
    weight = parameters[layer.weight]

    def backward(gradient: Tensor) -> Tensor:
        gradients[layer.weight] = torch.bmm(gradient.transpose(1, 2), x)
        if layer.bias is not None:
            gradients[layer.bias] = gradient.sum(1)
        return torch.bmm(gradient, weight) if inner else gradient

    steps.append(backward)
    if layer.bias is None:
        return torch.bmm(x, weight.transpose(1, 2))
    return torch.baddbmm(parameters[layer.bias].unsqueeze(1), x, weight.transpose(1, 2))


def _relu(x: Tensor, steps: list[_Backward]) -> Tensor:
    y = torch.relu_(x)
    steps.append(lambda gradient: torch.ops.aten.threshold_backward(gradient, y, 0))
    return y


def _max_pool(size: int, x: Tensor, steps: list[_Backward]) -> Tensor:
    window = [size, size]
    images = x.flatten(0, 1).permute(0, 3, 1, 2)  # channels-last
    y, places = torch.ops.aten.max_pool2d_with_indices(images, window)

    def backward(gradient: Tensor) -> Tensor:
        back: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
            gradient.flatten(0, 1).permute(0, 3, 1, 2),
            images,
            window,
            window,
            [0, 0],
            [1, 1],
            False,
            places,
        )
        return back.permute(0, 2, 3, 1).view(x.shape)

    steps.append(backward)
    pooled: Tensor = y.permute(0, 2, 3, 1).unflatten(0, x.shape[:2])
    return pooled


def _flatten(x: Tensor, steps: list[_Backward]) -> Tensor:
    """Flatten images [M, B, H, W, C] in the order in which PyTorch does, C first."""
    models, samples, height, width, channels = x.shape

    def backward(gradient: Tensor) -> Tensor:
        images = gradient.view(models, samples, channels, height, width)
        return images.permute(0, 1, 3, 4, 2).contiguous()

    if steps:
        steps.append(backward)
    return x.permute(0, 1, 4, 2, 3).flatten(2)
