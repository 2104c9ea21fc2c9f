"""Dropout from keys, wherever in PyTorch's functions it is drawn."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, vmap

from fedcohort.training.keyed import KeyedDropout

X = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(0))
# So small that nothing is dropped, and yet dropout.
NEXT_TO_NOTHING = 1e-12


def keyed(key, forward):
    with KeyedDropout(torch.tensor(key)):
        return forward()


def encoder(p=0.1):
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(16, 2, 32, dropout=p, batch_first=True)


def attention(p):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 2, dropout=p, batch_first=True)
    return lambda need_weights: layer(X, X, X, need_weights=need_weights)[0]


@pytest.mark.parametrize("need_weights", [True, False])
def test_dropout_inside_attention_is_a_function_of_the_key(need_weights):
    layer = attention(0.5)
    before = torch.random.get_rng_state()
    one, again, other = (keyed(key, lambda: layer(need_weights)) for key in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_transformer_draws_for_each_client_what_it_draws_alone():
    layer, keys = encoder(), torch.tensor([1, 2])

    def forward(key):
        with KeyedDropout(key):
            return functional_call(layer, dict(layer.named_parameters()), (X,))

    together = vmap(forward)(keys)
    for one, key in zip(together, (1, 2), strict=True):
        torch.testing.assert_close(one, keyed(key, lambda: layer(X)))


SEEN = torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(1)) > 0.5
SEEN[0, 0, 2] = False
MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "bool": {"attn_mask": SEEN},
    "float": {"attn_mask": torch.linspace(-2, 2, 25).view(5, 5)},
    "minus infinity": {"attn_mask": torch.zeros(2, 1, 5, 5).masked_fill(~SEEN, -torch.inf)},
    "scale": {"scale": 0.3},
    "groups": {"enable_gqa": True},
}


@pytest.mark.parametrize("mask", MASKS)
def test_attention_that_drops_next_to_nothing_is_pytorchs(mask):
    generator = torch.Generator().manual_seed(2)
    heads = (4, 2, 2) if mask == "groups" else (4, 4, 4)
    three = [torch.randn(2, h, 5, 8, generator=generator).requires_grad_() for h in heads]
    expected = F.scaled_dot_product_attention(*three, **MASKS[mask])
    found = keyed(
        3, lambda: F.scaled_dot_product_attention(*three, dropout_p=NEXT_TO_NOTHING, **MASKS[mask])
    )
    torch.testing.assert_close(found, expected)
    weights = torch.randn(expected.shape, generator=generator)
    pairs = (torch.autograd.grad((outputs * weights).sum(), three) for outputs in (found, expected))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other)


def test_attention_drops_its_share_and_keeps_its_mean():
    n, p = 200, 0.3
    q, v = torch.zeros(1, 1, n, 4), torch.eye(n)[None, None]
    weights = keyed(7, lambda: F.scaled_dot_product_attention(q, q, v, dropout_p=p))[0, 0] * n
    # Of 40,000 weights, each 0 or 1 / (1 - p).
    assert (weights == 0).float().mean().item() == pytest.approx(p, abs=0.01)
    assert weights.mean().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_without_training_or_dropout_nothing_is_drawn(p):
    layer = encoder(p).train(p == 0)
    mode = KeyedDropout(torch.tensor(1))
    with mode:
        found = layer(X)
    assert mode.draws == 0
    torch.testing.assert_close(found, layer(X), rtol=0, atol=0)


def test_every_way_to_write_dropout_draws_the_same():
    x = torch.ones(4, 6, 3)
    ways = (
        lambda: F.dropout(x, 0.5),
        lambda: F.dropout(input=x, p=0.5, training=True),
        lambda: nn.Dropout(0.5)(x),
        lambda: torch.dropout(x, 0.5, True),
        lambda: torch.dropout(x, 0.5, train=True),
    )
    for one, other in itertools.pairwise(keyed(5, way) for way in ways):
        assert torch.equal(one, other)
    assert torch.equal(keyed(5, lambda: torch.dropout(x, 0.5, False)), x)
    in_place = (
        lambda y: F.dropout(y, 0.5, True, True),
        lambda y: nn.Dropout(0.5, inplace=True)(y),
        lambda y: torch.dropout_(y, 0.5, True),
    )
    for way in in_place:
        y = x.clone()
        keyed(5, lambda way=way, y=y: way(y))
        assert torch.equal(y, keyed(5, ways[0]))
    channels = keyed(5, lambda: torch.feature_dropout(x, 0.5, True))
    assert torch.equal(channels, keyed(5, lambda: F.dropout1d(x, 0.5)))
