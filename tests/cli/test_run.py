"""`fedcohort run` and `fedcohort study run`: what they look at before they write."""

import sys

import pytest

from fedcohort.cli import main


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("run", "--save-model", "file"), "The folder 'file' cannot be made (File exists)"),
        (("study", "run", "s.toml", "--log", "mlflow:gopher://x"), "mlflow:gopher://x cannot"),
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
    assert not (tmp_path / "out").exists()
