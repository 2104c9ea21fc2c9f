"""The rule: which trainer a model gets, and what the choice may not depend on."""

import dataclasses
import warnings

import pytest
import torch
from local_problems import four_clients
from made_models import made
from torch import nn

from fedcohort.simulation import RunConfig
from fedcohort.simulation.lockstep import Lockstep
from fedcohort.simulation.materials import Materials
from fedcohort.training.accelerators import c_chain, choice, cuda_graphs, triton_chain
from fedcohort.training.accelerators.choice import SlowPathWarning, choose_trainer
from fedcohort.training.augmentation import Augmentation
from fedcohort.training.modules import Traits
from fedcohort.training.problem import LocalProblem, LocalWork

CPU, GPU = torch.device("cpu"), torch.device("cuda")
DIGITS, MNIST = (1, 8, 8), (1, 28, 28)
SGD = LocalWork(8, 0.1)


class NotAChain(nn.Module):
    """Two ways meet."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.second(x + self.first(x))


class OnGPU(LocalProblem):
    """A problem that says it is on a GPU, where there may be none."""

    device = GPU


def chosen(model, shape, device=CPU, precision="float32", work=SGD, **traits):
    model = NotAChain() if model == "not a chain" else made(model, shape, 10, 0)
    plain = four_clients(model, shape, work)
    values = {f.name: getattr(plain, f.name) for f in dataclasses.fields(plain)}
    kind = OnGPU if device == GPU else LocalProblem
    return choose_trainer(kind(**values | {"traits": Traits(**traits)}), precision).name


CHAINS = [("mlp", DIGITS), ("cnn-small", DIGITS), ("mlp", MNIST), ("cnn", MNIST)]


@pytest.mark.skipif(c_chain.kernels() is None, reason="needs a C compiler (cc)")
@pytest.mark.parametrize(("model", "shape"), CHAINS[:3])
def test_small_chains_are_trained_in_c(model, shape):
    assert chosen(model, shape) == "C chain"


@pytest.mark.parametrize(("model", "shape"), CHAINS)
def test_without_a_compiler_everything_is_trained_one_client_per_core(monkeypatch, model, shape):
    monkeypatch.setattr(c_chain, "kernels", lambda: None)
    assert chosen(model, shape) == "per client"


@pytest.mark.parametrize(("model", "shape"), [("cnn", MNIST), ("not a chain", DIGITS)])
def test_large_chains_and_other_models_are_trained_one_client_per_core(model, shape):
    assert chosen(model, shape) == "per client"


@pytest.mark.parametrize(("model", "shape"), CHAINS)
def test_every_chain_is_trained_by_triton_on_a_gpu(model, shape):
    pytest.importorskip("triton")
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowPathWarning)
        assert chosen(model, shape, GPU, "bfloat16") == "Triton chain"


@pytest.mark.parametrize(
    "work",
    [
        LocalWork(8, 0.1, optimizer="adamw"),
        LocalWork(8, 0.1, weight_decay=0.1),
        LocalWork(8, 0.1, clip=1.0),
        LocalWork(8, 0.1, 0.9, nesterov=True),
        LocalWork(8, 0.1, augmentation=Augmentation(1)),
    ],
    ids=["adamw", "decay", "clip", "nesterov", "augmentation"],
)
def test_what_the_kernels_of_chains_do_not_know_is_trained_in_general_ways(work):
    assert chosen("cnn-small", DIGITS, CPU, work=work) == "per client"
    general = "batched" if work.optimizer == "adamw" else "CUDA graphs"
    assert chosen("cnn-small", DIGITS, GPU, work=work) == general


def test_other_models_are_trained_in_cuda_graphs_on_a_gpu():
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowPathWarning)
        assert chosen("not a chain", DIGITS, GPU, "bfloat16") == "CUDA graphs"
        assert chosen("mlp", DIGITS, GPU, "float32") == "CUDA graphs"


def test_what_no_accelerator_takes_is_trained_batched_on_a_gpu_which_bfloat16_is_told():
    full = LocalWork(None, 0.1)
    with pytest.warns(SlowPathWarning, match="NotAChain trains in float32"):
        assert chosen("not a chain", DIGITS, GPU, "bfloat16", full) == "batched"
    assert chosen("not a chain", DIGITS, GPU, "float32", full) == "batched"
    assert chosen("not a chain", DIGITS, GPU, draws=True) == "batched"


def test_a_model_that_looks_at_whole_batches_is_trained_one_client_at_a_time():
    work = LocalWork(None, 0.1)
    assert chosen("not a chain", DIGITS, GPU, work=work, mixes=True) == "per client"


def test_without_triton_a_gpu_has_cuda_graphs(monkeypatch):
    monkeypatch.setattr(triton_chain.importlib.util, "find_spec", lambda _: None)
    assert chosen("mlp", DIGITS, GPU, "bfloat16") == "CUDA graphs"


def test_every_folder_is_an_accelerator_and_special_ones_are_asked_first():
    assert choice._accelerators() == (c_chain, triton_chain, cuda_graphs)


@pytest.mark.parametrize("left", [(), (c_chain,), (triton_chain,)], ids=["none", "c", "triton"])
def test_deleting_accelerators_leaves_everything_working(monkeypatch, left):
    monkeypatch.setattr(choice, "_accelerators", lambda: left)
    config = RunConfig(clients=10, cohort=3, rounds=2, selector="pow-d", model="mlp")
    lockstep = Lockstep([config], Materials(), CPU)
    assert lockstep.facts()[0]["trainer"] == ("C chain" if c_chain in left else "per client")
    lockstep.start()
    for _ in range(2):
        (record,) = lockstep.advance()
    assert len(record.cohort) == 3
    assert record.left_out == ()
    assert record.train_loss > 0
    on_gpu = "Triton chain" if triton_chain in left else "batched"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPathWarning)
        assert chosen("mlp", DIGITS, GPU, "bfloat16") == on_gpu


def test_the_choice_depends_neither_on_the_group_nor_on_its_work(workers):
    """Nor on how many cores there are."""
    base = RunConfig(clients=20, cohort=4, rounds=1)
    few = [base]
    many = [
        dataclasses.replace(base, selector=selector, seed=seed, cohort=19, batch_size=1)
        for selector in ("fedavg", "clustered", "pow-d")
        for seed in range(5)
    ]
    names = set()
    for count, configs in ((1, few), (1, many), (3, few), (3, many)):
        workers(count)
        names |= {fact["trainer"] for fact in Lockstep(configs, Materials(), CPU).facts()}
    assert len(names) == 1
