import dataclasses

import pytest
import torch

from fedcohort.errors import InvalidParameterError
from fedcohort.simulation import RunConfig
from fedcohort.simulation.devices import device_for, find_device


def test_devices_are_found_or_refused():
    assert find_device("cpu").type == "cpu"
    with pytest.raises(InvalidParameterError, match="auto, cpu or cuda"):
        find_device("tpu")


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto").type == "cpu"
    with pytest.raises(InvalidParameterError, match="--device cpu"):
        find_device("cuda")


def test_bfloat16_needs_a_gpu():
    short = dataclasses.replace(RunConfig(), precision="bfloat16")
    assert device_for([RunConfig()], "cpu").type == "cpu"
    with pytest.raises(InvalidParameterError, match="bfloat16 need a GPU"):
        device_for([RunConfig(), short], "cpu")
