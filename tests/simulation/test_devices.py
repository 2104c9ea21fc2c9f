import dataclasses

import pytest
import torch

from fedcohort import simulate
from fedcohort.errors import DeviceMemoryError, InvalidParameterError
from fedcohort.simulation import RunConfig
from fedcohort.simulation.devices import device_for, find_device


def test_devices_are_found_or_refused():
    assert find_device("cpu").type == "cpu"
    with pytest.raises(InvalidParameterError, match="auto, cpu or cuda"):
        find_device("tpu")


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto").type == "cpu"
    with pytest.raises(InvalidParameterError, match="let the device be cpu"):
        find_device("cuda")


def test_bfloat16_needs_a_gpu():
    short = dataclasses.replace(RunConfig(), precision="bfloat16")
    assert device_for([RunConfig()], "cpu").type == "cpu"
    with pytest.raises(InvalidParameterError, match="bfloat16 need a GPU"):
        device_for([RunConfig(), short], "cpu")


class _LargeInTraining(torch.nn.Module):
    """A model that there is room for until whole batches are trained."""

    def __init__(self, _shape, outputs):
        super().__init__()
        self.fc = torch.nn.Linear(64, outputs)

    def forward(self, x):
        if len(x) > 4 and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.34 GiB. GPU 0 …")
        return self.fc(x.flatten(1))


def test_full_memory_is_named_and_what_to_do(tmp_path):
    with pytest.raises(DeviceMemoryError, match="same command again") as refused:
        simulate(
            model=_LargeInTraining, selectors=["fedavg"], seeds=[0], rounds=2, out=tmp_path / "out"
        )
    assert str(refused.value).endswith("(CUDA out of memory.)")
