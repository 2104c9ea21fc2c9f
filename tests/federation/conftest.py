import os
from pathlib import Path

import pytest

from fedcohort.federation import load_dataset


@pytest.fixture(scope="session")
def mnist():
    if not os.environ.get("FEDCOHORT_DATA"):
        pytest.skip("FEDCOHORT_DATA is not set: the tests on MNIST need a folder that holds it.")
    return load_dataset("mnist")


@pytest.fixture
def data_home(tmp_path, monkeypatch) -> Path:
    """An empty machine: no FEDCOHORT_DATA, an empty user cache, no system folders, no programs."""
    monkeypatch.delenv("FEDCOHORT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("fedcohort.federation.sources.system_folders", lambda: (tmp_path / "sys",))
    return tmp_path
