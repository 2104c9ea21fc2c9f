import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, vmap

from fedcohort.training.convolution import RowToeplitz
from fedcohort.training.models import build_model


@pytest.mark.parametrize("shape", [(1, 8, 8, 3, 3), (3, 9, 12, 5, 2), (4, 5, 5, 5, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_plain_convolution_is_the_same_forward_and_backward(shape, bias):
    channels, height, width, kh, kw = shape
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, channels, height, width, generator=generator, requires_grad=True)
    layer = nn.Conv2d(channels, 7, (kh, kw), bias=bias)
    expected = layer(x)
    towards = torch.randn(expected.shape, generator=generator)
    leaves = [x, *layer.parameters()]
    plain = torch.autograd.grad((expected * towards).sum(), leaves)
    with RowToeplitz():
        found = layer(x)
    assert torch.allclose(found, expected, atol=1e-5)
    for ours, theirs in zip(
        torch.autograd.grad((found * towards).sum(), leaves), plain, strict=True
    ):
        assert torch.allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize(
    "options", [{"stride": 2}, {"padding": 1}, {"dilation": 2}, {"groups": 2}, {"padding": "same"}]
)
def test_other_convolutions_are_left_alone(options):
    x = torch.randn(2, 4, 9, 9, generator=torch.Generator().manual_seed(0))
    layer = nn.Conv2d(4, 6, 3, **options)
    with RowToeplitz():
        found = layer(x)
    assert torch.equal(found, layer(x))


def test_many_models_at_once_are_each_model_alone():
    models = [build_model("cnn", (1, 28, 28), 10, seed) for seed in range(3)]
    stacked = {
        name: torch.stack([dict(m.named_parameters())[name].detach() for m in models])
        for name, _ in models[0].named_parameters()
    }
    x = torch.randn(3, 5, 1, 28, 28, generator=torch.Generator().manual_seed(0))

    def forward(parameters, inputs):
        with RowToeplitz():
            return functional_call(models[0], parameters, (inputs,))

    found = vmap(forward)(stacked, x)
    for model, inputs, logits in zip(models, x, found, strict=True):
        assert torch.allclose(model(inputs), logits, atol=1e-4)
    assert F.cross_entropy(found[0], torch.arange(5)).isfinite()
