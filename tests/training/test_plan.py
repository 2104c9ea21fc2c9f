import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcohort.training.plan import make_plan
from fedcohort.training.problem import Jobs, LocalWork


def _jobs(sizes, passes=1.0, keys=None):
    sizes = torch.tensor(sizes)
    starts = torch.cumsum(sizes, 0) - sizes
    keys = torch.arange(len(sizes)) * 7919 if keys is None else torch.tensor(keys)
    passes = torch.full((len(sizes),), passes, dtype=torch.float64)
    return Jobs(torch.zeros(len(sizes), dtype=torch.int64), starts, sizes, keys, passes)


def _batches(plan, job):
    """The batches of one job as lists of samples, without padding and finished steps."""
    steps = [
        s[w > 0].tolist() for s, w in zip(plan.sample[:, job], plan.weight[:, job], strict=True)
    ]
    return [batch for batch in steps if batch]


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.one_of(st.none(), st.integers(1, 45)),
    st.integers(1, 3),
    st.integers(0, 2**62),
)
def test_every_pass_visits_every_sample_of_its_own_client_once(sizes, batch, passes, key):
    jobs = _jobs(sizes, float(passes), [key + j for j in range(len(sizes))])
    pool = torch.arange(1000, 1000 + sum(sizes))
    plan = make_plan(jobs, pool, LocalWork(batch, 0.1))
    for job, size in enumerate(sizes):
        own = pool[jobs.start[job] : jobs.start[job] + size].tolist()
        batches = _batches(plan, job)
        limit = size if batch is None else min(batch, size)
        assert [len(b) for b in batches] == (
            [limit] * (size // limit) + [size % limit] * bool(size % limit)
        ) * passes
        visited = [sample for b in batches for sample in b]
        for p in range(passes):
            assert sorted(visited[p * size : (p + 1) * size]) == own
    totals = plan.weight.sum(2)
    assert torch.allclose(totals[totals > 0], torch.ones(()))


def test_a_clients_batches_do_not_depend_on_its_neighbours():
    pool = torch.arange(60)
    together = make_plan(_jobs([7, 30, 23], 2.0, [11, 22, 33]), pool, LocalWork(4, 0.1))
    middle = _jobs([7, 30, 23], 2.0, [11, 22, 33])[1:2]
    alone = make_plan(middle, pool, LocalWork(4, 0.1))
    assert _batches(together, 1) == _batches(alone, 0)


def test_passes_and_clients_are_shuffled_differently_and_uniformly():
    keys = list(range(400))
    plan = make_plan(_jobs([5] * 400, 2.0, keys), torch.arange(2000), LocalWork(1, 0.1))
    orders = plan.sample[:, :, 0].T.reshape(400, 2, 5) - 5 * torch.arange(400)[:, None, None]
    # Of 120² pairs of orders, 400 draws repeat about five.
    assert len({tuple(o.flatten().tolist()) for o in orders}) > 385
    # Each sample is first in a fifth of 800 orders: 160 ± 11, so ±50 is more than four sigma.
    first = np.bincount(orders[:, :, 0].flatten().numpy(), minlength=5)
    assert (abs(first - 160) < 50).all()


def test_a_fraction_of_a_pass_is_whole_steps_and_at_least_one():
    work = LocalWork(10, 0.1)
    for passes, steps in ((0.01, 1), (0.5, 2), (1.5, 6)):
        plan = make_plan(_jobs([40], passes), torch.arange(40), work)
        assert len(_batches(plan, 0)) == steps
