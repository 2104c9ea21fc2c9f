import pytest

from fedcohort.cli.arena import list_conditions, run_arena
from fedcohort.errors import DatasetError, DownloadError
from fedcohort.leaderboard.challenge import challenge


def test_data_that_are_not_there_are_named_with_what_fetches_them(tmp_path, monkeypatch):
    def offline(*_, **__):
        raise DownloadError("mnist could not be downloaded from anywhere: try again.")

    monkeypatch.setattr("fedcohort.cli.run.prepare_study", offline)
    asked = challenge("match:evenness=free", ["mnist-1"], [0])
    with pytest.raises(DatasetError) as caught:
        run_arena(asked, tmp_path / "out", json=False, device="cpu")
    assert str(caught.value) == (
        "mnist could not be downloaded from anywhere: try again."
        " Or fetch it first, with fedcohort data fetch mnist."
    )
    assert not (tmp_path / "out").exists()


def test_long_names_fold_before_numbers_leave(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "46")
    list_conditions(["cifar-10-dirichlet-0.1-model-resnet8"])
    first, *rest = capsys.readouterr().out.splitlines()[2:5]
    name, *numbers = first.split()
    assert numbers == ["25", "%", "test", "60", "5", "18"]
    assert "".join([name, *map(str.strip, rest)]) == "cifar-10-dirichlet-0.1-model-resnet8"
