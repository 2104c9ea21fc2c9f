import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from local_sources import Mirror


@pytest.fixture
def data_home(tmp_path, monkeypatch) -> Path:
    """An empty machine: no FEDCOHORT_DATA, an empty user cache, no system folders, no programs."""
    monkeypatch.delenv("FEDCOHORT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("fedcohort.federation.sources.system_folders", lambda: (tmp_path / "sys",))
    return tmp_path


@pytest.fixture
def serve():
    mirrors = []

    def start(files, **manners):
        mirrors.append(Mirror(files, **manners))
        return mirrors[-1]

    yield start
    for mirror in mirrors:
        mirror.close()
