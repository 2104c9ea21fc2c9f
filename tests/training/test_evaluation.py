import pytest
import torch
import torch.nn.functional as F

from fedcohort.training.evaluation import client_losses, evaluate
from fedcohort.training.models import build_model


@pytest.mark.parametrize("batched", [True, False])
def test_accuracy_and_loss_are_those_of_each_model_alone(batched):
    models = [build_model("cnn-small", (1, 8, 8), 10, seed) for seed in range(3)]
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(50, 1, 8, 8, generator=generator), torch.arange(50) % 10
    stacked = {
        name: torch.stack([dict(m.named_parameters())[name].detach() for m in models])
        for name, _ in models[0].named_parameters()
    }
    expected = [(m(x).argmax(1) == y).double().mean().item() for m in models]
    losses = [F.cross_entropy(m(x), y).item() for m in models]
    template = build_model("cnn-small", (1, 8, 8), 10, 9)
    accuracy, loss = evaluate(template, stacked, (x, y), batched=batched, samples_at_once=7)
    assert accuracy.tolist() == pytest.approx(expected)
    assert loss.tolist() == pytest.approx(losses, rel=1e-5)


def test_client_losses_are_means_over_each_clients_samples():
    model = build_model("cnn-small", (1, 8, 8), 10, 0)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 1, 8, 8, generator=generator), torch.arange(30) % 10
    samples, sizes = torch.randperm(30, generator=generator), torch.tensor([4, 25, 1])
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    found = client_losses(model, parameters, (x, y), samples, sizes, samples_at_once=8)
    parts = torch.split(samples, sizes.tolist())
    expected = [F.cross_entropy(model(x[p]), y[p]).item() for p in parts]
    assert found.tolist() == pytest.approx(expected, rel=1e-5)
