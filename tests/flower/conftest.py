import importlib.util
import logging
import pathlib
import sys
from collections.abc import Iterator

import pytest

HERE = pathlib.Path(__file__).parent
# The helpers beside the tests are imported by their plain name.
sys.path.insert(0, str(HERE))

if importlib.util.find_spec("flwr") is None:
    collect_ignore = [
        file.name for file in HERE.glob("test_*.py") if file.name != "test_installed.py"
    ]
else:
    from fake_federation import SUPERLINK, Clock, FakeGrid, Federation
    from flwr.supercore.task_identity import TaskIdentity

    from fedcohort.flower import enrolment, grids, mailbox, rounds, strategy

    @pytest.fixture(scope="module")
    def one_thread() -> Iterator[None]:
        """Let processes that a test starts compute in one thread each: they share few cores."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OMP_NUM_THREADS", "1")
            yield

    @pytest.fixture
    def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
        fake = Clock()
        for module in (enrolment, grids, mailbox, rounds, strategy):
            monkeypatch.setattr(module, "time", fake)
        monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.sleep", fake.sleep)
        return fake

    @pytest.fixture(autouse=True)
    def task_identity(monkeypatch: pytest.MonkeyPatch) -> None:
        """Stand where a ServerApp stands: Flower lets nobody else make messages."""
        monkeypatch.setattr(TaskIdentity, "_task_id", 1)
        monkeypatch.setattr(TaskIdentity, "_run_id", 1)
        monkeypatch.setattr(TaskIdentity, "_node_id", SUPERLINK)

    @pytest.fixture(autouse=True)
    def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
        """Where clients of a test keep what they answered."""
        folder = tmp_path / "answers"
        monkeypatch.setenv("FEDCOHORT_ANSWERS", str(folder))
        return folder

    @pytest.fixture
    def federation(clock: Clock) -> Federation:
        return Federation(FakeGrid(clock), clock)

    @pytest.fixture
    def lines() -> Iterator[list[str]]:
        """What the adapter logs, one entry a line."""
        found: list[str] = []

        class Keep(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                found.append(record.getMessage())

        handler = Keep()
        logger = logging.getLogger("flwr.fedcohort")
        logger.addHandler(handler)
        yield found
        logger.removeHandler(handler)
