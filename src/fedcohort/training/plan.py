"""Which samples each client trains on at each step.

All of it is a function of the clients' keys: a client's batches are the same whatever it is
trained beside, on whatever device, and whether clients run one by one or in lockstep.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedcohort.training.keyed import mix
from fedcohort.training.problem import Jobs, LocalWork

_PADDING = torch.iinfo(torch.int64).max


@dataclasses.dataclass(frozen=True)
class Plan:
    """The batches of M jobs, step by step.

    Attributes
    ----------
    sample : int64 [T, M, B]
        Indices into the data set. A batch begins with its samples; what follows them is padding,
        some valid index.
    counts : int64 [T, M]
        Samples in each batch; 0 once a job has finished.
    """

    sample: Tensor
    counts: Tensor

    @functools.cached_property
    def weight(self) -> Tensor:
        """1 / (samples in this batch), or 0 for padding: float32 [T, M, B]."""
        counts = self.counts.unsqueeze(2)
        slot = torch.arange(self.sample.shape[2], device=counts.device)
        return (slot < counts) / counts.clamp(min=1)


def make_plan(jobs: Jobs, pool: Tensor, work: LocalWork) -> Plan:
    """Lay out the batches of all jobs, on the device of `pool`.

    The pool holds sample indices, int64 [total], client after client.
    """
    device = pool.device
    sizes = jobs.size.numpy()
    width = int(sizes.max())
    batch = width if work.batch_size is None else min(work.batch_size, width)
    batches = -(-sizes // batch)
    number = np.maximum(np.rint(jobs.passes.numpy() * batches), 1).astype(np.int64)
    total = int(number.max())
    pass_count = math.ceil((number / batches).max()) if batch < width else 1
    # All that has to be known on the host is known: nothing below waits for the device.
    integers = jobs.start.numpy(), sizes, jobs.key.numpy(), batches, number
    # On the host by NumPy, whose operations on a few numbers cost a fraction of PyTorch's.
    xp: Any = np if device.type == "cpu" else torch
    given: Any = integers
    if xp is torch:
        given = to_device(torch.from_numpy(np.stack(integers)), device)
    start, size, key, per_pass, steps = given
    indices: Any = pool.numpy() if xp is np else pool
    # Counts from 0, where the plan is laid out.
    count = xp.arange if xp is np else functools.partial(torch.arange, device=device)

    step = count(total)[:, None]
    which_pass, which_batch = step // per_pass, step % per_pass
    slot = which_batch[..., None] * batch + count(batch)
    valid = (slot < size[:, None]) & (step < steps)[..., None]
    position = slot
    if batch < width:
        order = _sample_orders(xp, count, key, size, pass_count, width)
        visit = xp.clip(which_pass, None, pass_count - 1)[..., None] * width
        shuffled = order[count(len(size))[:, None], visit + xp.clip(slot, None, width - 1)]
        # One batch needs no shuffling, and its order must not depend on who is trained beside it.
        position = xp.where((size > batch)[:, None], shuffled, slot)
    # Padding points at the job's own first sample.
    position = xp.where(valid, position, 0)
    planned = indices[start[:, None] + position], valid.sum(2)
    return Plan(*map(torch.from_numpy, planned)) if xp is np else Plan(*planned)


def step_keys(keys: Tensor, steps: int) -> Tensor:
    """Return the keys of each step of jobs, int64 [T, M], from the jobs' own [M].

    They are apart from those that orders are drawn from, which count passes from 0.
    """
    found: Tensor = mix(keys + mix(-1 - torch.arange(steps)[:, None]))
    return found


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy to a device; the host does not wait for what the device is doing."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def _sample_orders(
    xp: Any, count: Callable[[int], Any], key: Any, size: Any, passes: int, width: int
) -> Any:
    """Return the positions [M, passes * width] in which each job visits its samples."""
    place = count(width)
    # Sorting hashed keys is a shuffle that every device computes alike, all clients at once.
    pass_key = mix(key[:, None] + mix(count(passes)))
    keys = mix(pass_key[..., None] + mix(place))
    keys = xp.where(place < size[:, None, None], keys, _PADDING)
    order = keys.argsort(stable=True) if xp is torch else keys.argsort(kind="stable")
    return order.reshape(len(key), passes * width)
