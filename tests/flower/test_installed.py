import pytest


def test_flower_is_installed() -> None:
    pytest.importorskip("flwr", reason="tests/flower needs Flower: pip install 'fedcohort[flower]'")
