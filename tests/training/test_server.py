"""Server optimisers against their definitions, written out with plain numbers."""

import math

import pytest
import torch

from fedcohort.errors import InvalidParameterError
from fedcohort.training.server import SERVERS, fresh_state, make_server, part_of

UPDATES = [0.5, -0.2, 0.1]


def _moved(server):
    model = {"w": torch.tensor([[1.0], [7.0]])}
    state = fresh_state(server, model)
    path = []
    for update in UPDATES:
        after = {"w": model["w"] + torch.tensor([[update], [0.0]])}
        model = server.step(model, after, state)
        path.append(model["w"][0, 0].item())
    assert model["w"][1, 0] == 7.0  # A model whose clients did not move stays.
    return path


def test_averaging_adds_the_update():
    assert _moved(SERVERS["avg"]()) == pytest.approx([1.5, 1.3, 1.4])


def test_momentum_follows_hsu():
    w, m, expected = 1.0, 0.0, []
    for update in UPDATES:
        m = 0.9 * m + update
        w += 0.5 * m
        expected.append(w)
    assert _moved(make_server("avgm", lr=0.5)) == pytest.approx(expected)


def test_adam_follows_reddi():
    w, m, v, expected = 1.0, 0.0, 0.0, []
    for update in UPDATES:
        m = 0.9 * m + 0.1 * update
        v = 0.99 * v + 0.01 * update**2
        w += 0.1 * m / (math.sqrt(v) + 1e-3)
        expected.append(w)
    assert _moved(make_server("adam", lr=0.1)) == pytest.approx(expected)


def test_a_part_of_the_state_is_a_view():
    server = SERVERS["avgm"]()
    model = {"w": torch.zeros(3, 2)}
    state = fresh_state(server, model)
    some = {"w": model["w"][1:2]}
    server.step(some, {"w": torch.ones(1, 2)}, part_of(state, slice(1, 2)))
    assert state["momentum"]["w"].tolist() == [[0, 0], [1, 1], [0, 0]]


@pytest.mark.parametrize(
    ("name", "wrong"), [("avgm", {"momentum": 1.0}), ("adam", {"tau": 0.0}), ("avgm", {"lr": 0})]
)
def test_wrong_settings_are_refused(name, wrong):
    with pytest.raises(InvalidParameterError, match="server"):
        SERVERS[name](**wrong)
