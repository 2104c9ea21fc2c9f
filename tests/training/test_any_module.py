"""Tasks, modules and optimisers of all kinds: every trainer against the text-book loop."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from local_problems import MUCH, SIZES, four_clients
from torch import nn

from fedcohort.errors import InvalidParameterError
from fedcohort.training.accelerators.cuda_graphs.models import GraphedModels
from fedcohort.training.architectures.lstm import CharLSTM
from fedcohort.training.architectures.resnet import ResNet
from fedcohort.training.batched import evaluate_batched, train_batched
from fedcohort.training.modules import named_state, read_traits
from fedcohort.training.per_client import evaluate_per_client, train_per_client
from fedcohort.training.problem import LocalWork
from fedcohort.training.sequential import evaluate_sequential, train_sequential
from fedcohort.training.task import make_task

CLASSES = make_task("classification", 10)


class Dropped(nn.Module):
    """Dropout as a function, of whole channels and of values; a tuple comes out."""

    def __init__(self):
        super().__init__()
        self.f1, self.f2 = nn.Linear(192, 20), nn.Linear(20, 10)

    def forward(self, x):
        x = F.dropout2d(x, 0.3, self.training).flatten(1)
        return self.f2(F.dropout(F.relu(self.f1(x)), 0.4, self.training)), x


class DroppedInPlace(nn.Module):
    """Dropout that changes what it is given, and whose result nobody takes."""

    def __init__(self):
        super().__init__()
        self.f1, self.f2, self.drop = nn.Linear(192, 20), nn.Linear(20, 10), nn.Dropout(0.4, True)

    def forward(self, x):
        x = F.gelu(self.f1(x.flatten(1)))
        self.drop(x)
        return self.f2(x)


class Frozen(nn.Module):
    """A frozen layer, a tied one, and a dict that comes out."""

    def __init__(self):
        super().__init__()
        self.frozen, self.tied, self.out = nn.Linear(192, 16), nn.Linear(16, 16), nn.Linear(16, 10)
        self.again = nn.Linear(16, 16)
        self.again.weight = self.tied.weight
        self.frozen.requires_grad_(False)

    def forward(self, x):
        x = torch.tanh(self.frozen(x.flatten(1)))
        return {"logits": self.out(torch.tanh(self.again(torch.tanh(self.tied(x))))), "other": x}


class Tempered(nn.Module):
    """A parameter without a shape."""

    def __init__(self):
        super().__init__()
        self.out, self.scale = nn.Linear(192, 10), nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        return self.scale * self.out(x.flatten(1))


def flat(outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, outputs))


def targets(task, generator):
    if task.name == "regression":
        return torch.randn(90, task.outputs, generator=generator)
    if task.name == "multilabel":
        return torch.randint(0, 2, (90, task.outputs), generator=generator).to(torch.uint8)
    return torch.randint(
        0, 2 if task.name == "binary" else task.outputs, (90,), generator=generator
    )


def problem(make, task=CLASSES, work=None, tokens=False):
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(1)
        model = make()
    x = torch.randn(90, 3, 8, 8, generator=generator)
    if tokens:
        x = torch.randint(0, 12, (90, 7), generator=generator)
    y = targets(task, generator)
    return dataclasses.replace(
        four_clients(model, (3, 8, 8), work or LocalWork(8, 0.05)),
        stacked={n: torch.stack([v.detach(), 0.9 * v.detach()]) for n, v in named_state(model)},
        data=(x, y),
        task=task,
        traits=read_traits(model, x[:4]),
    )


def graphed(given):
    return GraphedModels(given.model, "float32").train(given)


ALL = (train_per_client, train_batched, graphed)
ADAM = LocalWork(8, 0.01, optimizer="adamw", weight_decay=0.1, clip=0.5)


def resnet(norm="group"):
    return ResNet((3, 8, 8), 10, blocks=(1, 1), width=8, norm=norm)


CASES = {
    "residual, everything of SGD": (problem(resnet, work=MUCH), ALL),
    "residual, AdamW": (problem(resnet, work=ADAM), ALL[:2]),
    # Padding would enter the statistics of a batch, so only one client at a time will do.
    "BatchNorm": (problem(lambda: resnet("batch"), work=MUCH), ALL[:1]),
    "BatchNorm, AdamW": (problem(lambda: resnet("batch"), work=ADAM), ALL[:1]),
    "dropout": (problem(Dropped, work=MUCH), ALL[:2]),
    "dropout, AdamW": (problem(Dropped, work=ADAM), ALL[:2]),
    "dropout in place": (problem(DroppedInPlace, work=MUCH), ALL[:2]),
    "frozen and tied": (problem(Frozen, work=MUCH), ALL[:2]),
    "a single number": (problem(Tempered, work=MUCH), ALL),
    "a single number, AdamW": (problem(Tempered, work=ADAM), ALL[:2]),
    "tokens": (
        problem(lambda: CharLSTM((7,), 12, 12, 16), make_task("next-token", 12), tokens=True),
        ALL[:1],
    ),
    "regression": (problem(lambda: flat(2), make_task("regression", 2)), ALL),
    "regression, absolute": (problem(lambda: flat(2), make_task("regression", 2, "absolute")), ALL),
    "binary": (problem(lambda: flat(1), make_task("binary", 2)), ALL),
    "multilabel": (problem(lambda: flat(5), make_task("multilabel", 5)), ALL),
}


@pytest.mark.parametrize("case", CASES)
def test_every_trainer_does_what_the_loop_does(case):
    given, trainers = CASES[case]
    oracle = train_sequential(given)
    moved = max(
        (v - given.stacked[n][given.jobs.model]).abs().max() for n, v in oracle.parameters.items()
    )
    assert moved > 1e-3, "nothing was trained"
    # Adam's first steps are ±lr: where a gradient is nearly 0, rounding decides which.
    near = 1e-4 if given.work.optimizer == "adamw" else 1e-5
    for train in trainers:
        found = train(given)
        for name, values in oracle.parameters.items():
            assert torch.allclose(found.parameters[name], values, rtol=0, atol=near), (train, name)
        assert torch.allclose(found.losses, oracle.losses, rtol=0, atol=1e-5), train


@pytest.mark.parametrize("case", CASES)
def test_every_trainer_scores_as_the_loop_does(case):
    given, trainers = CASES[case]
    expected = evaluate_sequential(given.model, given.stacked, given.data, given.task)
    ways = [evaluate_per_client, *([evaluate_batched] if train_batched in trainers else [])]
    for evaluate in ways:
        score, loss = evaluate(given.model, given.stacked, given.data, given.task)
        assert torch.allclose(score, expected[0], rtol=0, atol=1e-6)
        assert torch.allclose(loss, expected[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_a_client_is_trained_the_same_alone_and_among_others(case):
    given, _ = CASES[case]
    together = train_per_client(given)
    for j in range(len(SIZES)):
        alone = train_per_client(given.only(slice(j, j + 1)))
        for name, values in alone.parameters.items():
            assert torch.equal(values[0], together.parameters[name][j]), name
        assert torch.equal(alone.losses[0], together.losses[j])


def test_frozen_parameters_stay_as_they_are():
    given, _ = CASES["frozen and tied"]
    for train in (train_sequential, *ALL[:2]):
        found = train(given).parameters
        for name in ("frozen.weight", "frozen.bias"):
            assert torch.equal(found[name], given.stacked[name][given.jobs.model])
        assert not torch.equal(found["tied.weight"], given.stacked["tied.weight"][given.jobs.model])


def test_running_statistics_follow_the_clients_batches():
    given, _ = CASES["BatchNorm"]
    found = train_per_client(given).parameters["norm.running_mean"]
    assert not torch.equal(found, given.stacked["norm.running_mean"][given.jobs.model])


class Remembering(nn.Module):
    """A table that is computed when it is first needed, be it in evaluation."""

    def __init__(self):
        super().__init__()
        self.out, self.table = nn.Linear(192, 10), None

    def forward(self, x):
        if self.table is None:
            self.table = torch.linspace(0, 1, 10) * 2
        return self.out(x.flatten(1)) * self.table


def test_dropout_in_place_drops():
    (given, _), plain = CASES["dropout in place"], problem(DroppedInPlace, work=MUCH)
    plain.model.drop.p = 0.0
    one, other = (train_per_client(each).losses for each in (given, plain))
    assert (one - other).abs().min() > 1e-3


def test_what_evaluation_left_in_a_model_does_not_keep_it_from_training():
    given = problem(Remembering)
    evaluate_per_client(given.model, given.stacked, given.data, given.task)
    found, expected = train_per_client(given), train_sequential(given)
    for name, values in expected.parameters.items():
        assert torch.allclose(found.parameters[name], values, rtol=0, atol=1e-5)


def test_scores_are_those_of_scikit_learn():
    from sklearn.metrics import accuracy_score, f1_score, r2_score, roc_auc_score

    generator = torch.Generator().manual_seed(3)
    y, z = torch.randn(50, 2, generator=generator), torch.randn(50, 2, generator=generator)
    labels = torch.randint(0, 2, (50, 4), generator=generator).to(torch.uint8)
    logits = torch.randn(50, 4, generator=generator)
    one = torch.randn(50, 1, generator=generator).round(decimals=1)
    first = labels[:, 0].long()
    several = ("multilabel", 4, logits, labels)
    expected = {
        ("R²", "regression", 2, z, y): r2_score(y, z),
        ("F1", *several): f1_score(labels, logits > 0, average="micro"),
        ("AUROC", *several): roc_auc_score(labels, logits, average="macro"),
        ("accuracy", "binary", 2, one, first): accuracy_score(first, one[:, 0] > 0),
        ("F1", "binary", 2, one, first): f1_score(first, one[:, 0] > 0),
        # Of logits with one decimal many are equal.
        ("AUROC", "binary", 2, one[:, 0], first): roc_auc_score(first, one[:, 0]),
    }
    for (score, name, outputs, given, wanted), value in expected.items():
        task = make_task(name, outputs, score=score)
        halves = [task.judge(given[i::2], wanted[i::2]) for i in (0, 1)]
        found = task.score_of(torch.cat(halves))
        assert float(found) == pytest.approx(value, abs=1e-6), (name, score)
        by_group = task.scores_of(torch.cat(halves), torch.tensor([25, 25]))
        assert by_group.tolist() == [float(task.score_of(half)) for half in halves]


def test_a_score_that_is_not_defined_is_not_a_number():
    ones = torch.ones(5, dtype=torch.long)
    logits = torch.arange(5.0)
    area = make_task("binary", 2, score="AUROC")
    assert area.score_of(area.judge(logits, ones)).isnan()
    fit = make_task("regression", 1)
    assert fit.score_of(fit.judge(logits[:, None], ones.float())).isnan()
    several = make_task("multilabel", 2, score="AUROC")
    labels = torch.tensor([[0, 1], [0, 1], [1, 1]], dtype=torch.uint8)
    # Of two labels that one which has both kinds of samples counts.
    found = several.score_of(several.judge(torch.tensor([[1.0, 0], [2, 0], [3, 0]]), labels))
    assert float(found) == 1


def test_a_score_of_another_task_is_refused():
    with pytest.raises(InvalidParameterError, match="judged by accuracy: take that, or auto"):
        make_task("classification", 10, score="AUROC")
