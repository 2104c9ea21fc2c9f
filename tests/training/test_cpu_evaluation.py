import pytest
import torch

from fedcohort.training.cpu_evaluation import evaluate_on_cpu
from fedcohort.training.evaluation import evaluate
from fedcohort.training.models import build_model


@pytest.mark.parametrize("samples", [1, 300, 4500])
def test_scores_are_those_of_the_plain_loop(samples):
    models = [build_model("cnn-small", (1, 8, 8), 10, seed) for seed in range(3)]
    x = torch.randn(samples, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(samples) % 10
    stacked = {
        name: torch.stack([dict(m.named_parameters())[name].detach() for m in models])
        for name, _ in models[0].named_parameters()
    }
    accuracy, loss = evaluate_on_cpu(models[0], stacked, (x, y))
    expected, losses = evaluate(models[0], stacked, (x, y), batched=False)
    assert accuracy.tolist() == pytest.approx(expected.tolist(), abs=1.5 / samples)
    assert loss.tolist() == pytest.approx(losses.tolist(), rel=1e-5)


def test_scores_do_not_depend_on_the_number_of_cores():
    model = build_model("cnn-small", (1, 8, 8), 10, 0)
    stacked = {name: p.detach()[None] for name, p in model.named_parameters()}
    x = torch.randn(5000, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(5000) % 10
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append([v.item() for v in evaluate_on_cpu(model, stacked, (x, y))])
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]
