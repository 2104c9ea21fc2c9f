"""Models from a user's own file."""

import pytest
import torch
from made_models import made

from fedcohort.errors import InvalidModelError

NETWORK = """
from torch import nn

def linear(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[-1], classes))
"""


@pytest.mark.parametrize("name", ["own_network.py:linear", "own_network_module:linear"])
def test_a_model_is_built_from_the_current_folder(tmp_path, monkeypatch, name):
    (tmp_path / "own_network.py").write_text(NETWORK)
    (tmp_path / "own_network_module.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    assert made(name, (6,), 3, 0)(torch.zeros(2, 6)).shape == (2, 3)


def test_a_missing_file_is_refused_as_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidModelError, match=r"no file '.*missing\.py'"):
        made("missing.py:linear", (6,), 3, 0)
