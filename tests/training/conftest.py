import pytest

from fedcohort.training import workers as shared


@pytest.fixture
def workers(monkeypatch):
    """Return a function that sets how many workers there are, until the test ends."""

    def limit(count):
        monkeypatch.setattr(shared, "_limit", count)

    return limit
