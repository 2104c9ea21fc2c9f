"""The choice is made once a machine, and nothing that is on disk can break it."""

import json

import pytest
import torch

from fedcohort.training import choice
from fedcohort.training.choice import Workload, choose_trainer
from fedcohort.training.models import build_model

WORKLOAD = Workload(input_shape=(1, 8, 8), classes=10, batch=14, jobs=10)


@pytest.fixture
def model():
    return build_model("mlp", (1, 8, 8), 10, 0)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(choice, "_remembered", {})
    return tmp_path / "fedcohort" / "trainers"


def another_process():
    choice._remembered.clear()


def test_the_choice_is_remembered_in_the_process_and_on_disk(model, cache):
    name, trainer = choose_trainer(model, WORKLOAD)
    (file,) = cache.iterdir()
    assert json.loads(file.read_text()) == {"trainer": name}
    others = [n for n in choice._trainers(model, WORKLOAD.rounded()) if n != name]
    file.write_text(json.dumps({"trainer": others[0]}))
    assert choose_trainer(model, WORKLOAD) == (name, trainer), "this process knows its choice"
    another_process()
    assert choose_trainer(model, WORKLOAD)[0] == others[0], "another one takes what is on disk"


def test_similar_work_shares_a_choice_and_other_work_does_not(model, cache):
    for batch, jobs in ((14, 10), (16, 16), (9, 12)):
        choose_trainer(model, Workload((1, 8, 8), 10, batch, jobs))
    assert len(list(cache.iterdir())) == 1
    choose_trainer(model, Workload((1, 8, 8), 10, 14, 40))
    choose_trainer(build_model("cnn-small", (1, 8, 8), 10, 0), WORKLOAD)
    assert len(list(cache.iterdir())) == 3


@pytest.mark.parametrize("content", ["", "{", "[]", '{"trainer": "by magic"}', '{"trainer": null}'])
def test_a_file_that_makes_no_sense_is_replaced(model, cache, content):
    choose_trainer(model, WORKLOAD)
    (file,) = cache.iterdir()
    file.write_text(content)
    another_process()
    name, _ = choose_trainer(model, WORKLOAD)
    assert json.loads(file.read_text()) == {"trainer": name}


def test_a_machine_without_a_cache_folder_still_trains(model, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    name, _ = choose_trainer(model, WORKLOAD)
    assert choose_trainer(model, WORKLOAD)[0] == name


def test_the_number_of_threads_is_part_of_the_machine(model, cache):
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            choose_trainer(model, WORKLOAD)
    finally:
        torch.set_num_threads(before)
    assert len(list(cache.iterdir())) == 2
