from pathlib import Path

import pytest


@pytest.fixture
def data_home(tmp_path, monkeypatch) -> Path:
    """An empty machine: no FEDCOHORT_DATA, an empty user cache, no system folders, no programs."""
    monkeypatch.delenv("FEDCOHORT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("fedcohort.federation.sources.system_folders", lambda: (tmp_path / "sys",))
    return tmp_path
