"""`fedcohort run` and `fedcohort study run`: what they look at before they write."""

import sys

import numpy as np
import pytest

from fedcohort.cli import main


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("run", "--save-model", "file"), "The folder 'file' cannot be made (File exists)"),
        (("study", "run", "s.toml", "--log", "mlflow:gopher://x"), "mlflow:gopher://x cannot"),
        (("run", "--dataset", "x.csv", "--save-model", "kept"), "There is no file for training at"),
        (("run", "--dataset", ""), "There is no data set ''"),
        (("run", "--dataset", "."), "The folder . holds neither x.npy, nor"),
        (("study", "run", "s.toml", "--engine", "ray"), "--engine ray needs"),
    ],
)
def test_what_could_not_be_done_is_refused_before_anything_is_written(
    options, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(sys, "argv", ["fedcohort", *options, "--out", "out"])
    (tmp_path / "file").touch()
    (tmp_path / "s.toml").write_text("[base]\nrounds = 1\n")
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert {path.name for path in tmp_path.iterdir()} == {"file", "s.toml"}


def test_data_that_users_brought_are_described(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("[mine].npz", x=np.eye(6), y=np.arange(6) % 2, client=np.arange(6) % 3)
    options = "--dataset [mine].npz --seeds 0..1 --cohort 2 --rounds 1 --device cpu"
    monkeypatch.setattr(sys, "argv", ["fedcohort", "run", *options.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert capsys.readouterr().err.count("[mine].npz: 6 samples and no test part, 6 columns") == 1
