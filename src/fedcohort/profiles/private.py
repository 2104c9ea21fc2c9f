"""Private profiles: what one may reveal, of a sample or of the client, is bounded by (ε, δ).

Rule, on the client: each sample's FC-1 output u becomes φ = R(u − m) / ‖R(u − m)‖, where R projects
onto `DIRECTIONS` fixed random directions and m is the layer's mean output on standard normal
inputs. The profile is the mean of φ over the n_c samples plus N(0, σ²) on every number. Replacing
one sample by any other moves the mean by at most 2 / n_c, so σ = (2 / n_c) · s(ε, δ) makes the
profile (ε, δ)-differentially private for each of the client's samples. Replacing all of them moves
it by at most 2, as it is no longer than 1: σ = 2 · s(ε, δ) protects the client as a whole.

Nothing here is taken from data: R is a constant, m comes from the model alone, and since φ has
length 1 there is no clipping norm to choose (it is what clipping becomes when the norm is small,
and selectors do not look at the scale). A mean of φ is linear in the client's mixture, as a mean
of u is. Random directions cost little of what tells classes apart, and fewer numbers are noised.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcohort.errors import InvalidModelError
from fedcohort.privacy import Promise, unpredictable_normal
from fedcohort.profiles.fc1 import describe_layer, fc1_profiles
from fedcohort.randomness import generator

# Numbers of a private profile; a narrower layer is not projected.
DIRECTIONS = 64

_REFERENCE_INPUTS = 256

Noise = Callable[[int, int], NDArray[np.float64]]


def private_profiles(
    model: nn.Module,
    x: Tensor,
    samples: Tensor,
    sizes: Tensor,
    promise: Promise,
    *,
    noise: Noise | None = None,
    layer: str | None = None,
) -> NDArray[np.float32]:
    """Return the private profiles of m clients.

    Parameters
    ----------
    model, x, samples, sizes, layer
        As in `fc1_profiles`.
    promise : Promise
        What holds for each sample, or for the client as a whole.
    noise : callable, optional
        ``noise(client, count)`` returns standard normal numbers [count] for the client at that
        place; by default `unpredictable_normal`. Give another one only to simulate.

    Returns
    -------
    float32 [m, min(Q, 64)]
        One profile per client.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> clients = torch.arange(6), torch.tensor([2, 4])
    >>> private_profiles(model, torch.ones(6, 4), *clients, Promise(epsilon=8)).shape
    (2, 8)
    """
    scales = [promise.noise(int(n)) for n in sizes]
    draw = noise or (lambda _, count: unpredictable_normal(count))
    clean = bounded_profiles(model, x, samples, sizes, layer=layer)
    noisy = [
        mean + scale * draw(client, len(mean))
        for client, (mean, scale) in enumerate(zip(clean, scales, strict=True))
    ]
    return np.array(noisy, np.float32)


def bounded_profiles(
    model: nn.Module, x: Tensor, samples: Tensor, sizes: Tensor, *, layer: str | None = None
) -> NDArray[np.float64]:
    """Return the means of φ, float64 [m, min(Q, 64)]: private profiles before the noise."""
    training = model.training
    # In training mode a batch norm would mix samples, and the bound would not hold.
    model.eval()
    try:
        inputs = _reference_inputs(x, samples)
        _check_alone(model, inputs[:4], layer)
        features = _Features(_centre(model, inputs, layer))
        means = fc1_profiles(model, x, samples, sizes, layer=layer, each=features)
    finally:
        model.train(training)
    return means.cpu().numpy()


def _check_alone(model: nn.Module, x: Tensor, layer: str | None) -> None:
    """Refuse a layer whose outputs on a sample depend on the others of its batch, `x` [n, ...].

    There, replacing one sample would move the features of all, by more than the bound.
    """
    others = x.clone()
    others[1:-1] = 0
    rows = torch.arange(len(x), device=x.device)
    # Batches of one size are computed alike, so that noise in low precision does not count.
    one, other = (
        fc1_profiles(model, batch, rows, torch.ones_like(rows), layer=layer).nan_to_num(0, 0, 0)
        for batch in (x, others)
    )
    if (one - other)[[0, -1]].abs().max() > 1e-3 * one.abs().max():
        raise InvalidModelError(
            f"Profiles are read from the {describe_layer(model, layer)}, which depend on other"
            " samples of a batch in evaluation too (BatchNorm without running statistics makes"
            " them), so that nothing bounds what one sample changes: take another layer"
            " (profile_layer, layer) or normalisation."
        )


class _Features:
    """φ: centred at `centre`, projected, of length 1."""

    def __init__(self, centre: Tensor) -> None:
        width = len(centre)
        self._centre = centre
        self._directions: Tensor | None = None
        if width > DIRECTIONS:
            drawn = generator(0, "private profile").standard_normal((width, DIRECTIONS))
            self._directions = torch.from_numpy(np.linalg.qr(drawn)[0]).to(centre)

    def __call__(self, outputs: Tensor) -> Tensor:
        """Return φ of `outputs` [n, Q], float64 [n, q]; of length 0 where they are not finite."""
        centred = outputs - self._centre
        if self._directions is not None:
            centred = centred @ self._directions
        # By the largest number first: squares of tiny or huge numbers leave the range of floats,
        # and what is left of them would not have length 1.
        scaled = centred / centred.abs().amax(dim=1, keepdim=True)
        unit = scaled / torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
        return torch.where(unit.isfinite().all(dim=1, keepdim=True), unit, 0.0)


def _reference_inputs(x: Tensor, samples: Tensor) -> Tensor:
    """Return standard normal inputs, or some of the samples if inputs are not numbers."""
    if not x.is_floating_point():
        return x[samples[torch.arange(_REFERENCE_INPUTS, device=x.device) % len(samples)]]
    shape = (_REFERENCE_INPUTS, *x.shape[1:])
    drawn = generator(0, "private profile centre").standard_normal(shape)
    return torch.from_numpy(drawn).to(x)


def _centre(model: nn.Module, inputs: Tensor, layer: str | None) -> Tensor:
    """Return the layer's mean output on reference inputs, or 0 where these are samples."""
    everything = torch.arange(len(inputs), device=inputs.device)
    count = torch.tensor([len(inputs)], device=inputs.device)
    centre = fc1_profiles(model, inputs, everything, count, layer=layer)[0].double()
    usable = inputs.is_floating_point() and bool(centre.isfinite().all())
    return centre if usable else torch.zeros_like(centre)
