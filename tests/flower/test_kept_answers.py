"""A noised profile is drawn once: restarts of a node or of the server get the same answer."""

import logging
import os
import pathlib
import stat
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedcohort.adapters.kept_answers import Answers
from fedcohort.errors import InvalidInputError, StoreError
from fedcohort.flower import answer_queries, profile_query
from fedcohort.flower.protocol import Limits, query_content, read_introduction
from fedcohort.privacy import unpredictable_normal
from fedcohort.selection import Need


def context(run: int = 1, **config: Any) -> Context:
    """Return what a SuperNode has after a restart: nothing of the run before."""
    named = {key.replace("_", "-"): value for key, value in config.items()}
    return Context(run_id=run, node_id=5, node_config=named, state=RecordDict(), run_config={})


def app(**settings: Any) -> ClientApp:
    made = ClientApp()
    answer_queries(made, size=lambda _: 7, profile=lambda *_: [1.0, 2.0], clip=1.0, **settings)
    return made


def model(*values: float) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.array(values, np.float32))})


def answer(made: ClientApp, where: Context, arrays: ArrayRecord | None = None) -> np.ndarray:
    message = Message(query_content([Need.PROFILE], arrays), 5, "query.profile")
    reply = made(message, where).content
    vector: np.ndarray = read_introduction(reply, [Need.PROFILE], Limits(), expected={}).vectors[
        Need.PROFILE
    ]
    return vector


@pytest.mark.parametrize("run", [1, 2])
def test_a_restarted_node_gives_the_same_answer(run: int, answers: pathlib.Path) -> None:
    """In the same run, and in the run of a restarted SuperLink, which has another number."""
    first = answer(app(sigma=1.0), context(partition_id=3), model(1, 2))
    again = answer(app(sigma=1.0), context(run, partition_id=3), model(1, 2))
    np.testing.assert_array_equal(first, again)
    files = list(answers.iterdir())
    assert len(files) == 1
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600
    assert stat.S_IMODE(answers.stat().st_mode) == 0o700


def test_other_clients_models_and_promises_have_other_noise() -> None:
    first = answer(app(sigma=1.0), context(partition_id=3), model(1, 2))
    for made, where, arrays in (
        (app(sigma=1.0), context(partition_id=4), model(1, 2)),
        (app(sigma=1.0), context(partition_id=3), model(1, 3)),
        (app(sigma=2.0), context(partition_id=3), model(1, 2)),
    ):
        assert not np.allclose(first, answer(made, where, arrays))


def test_another_model_within_a_run_gets_the_same_answer() -> None:
    where = context(partition_id=3)
    first = answer(app(sigma=1.0), where, model(1, 2))
    np.testing.assert_array_equal(first, answer(app(sigma=1.0), where, model(5, 6)))


def test_plain_profiles_leave_nothing_on_disk(answers: pathlib.Path) -> None:
    answer(app(), context(partition_id=3), model(1, 2))
    assert not answers.exists()


def test_answers_are_counted_and_can_be_limited(caplog: pytest.LogCaptureFixture) -> None:
    for value in range(3):
        answer(app(sigma=1.0), context(partition_id=3), model(value))
    assert caplog.text.count("their promises add up") == 2
    assert "noised profile number 3" in caplog.text
    with pytest.raises(InvalidInputError, match="no more than 3 may"):
        answer(app(sigma=1.0, most_answers=3), context(partition_id=3), model(9))
    # What was answered before is answered again.
    answer(app(sigma=1.0, most_answers=3), context(partition_id=3), model(1))


def test_a_promise_that_cannot_be_kept_is_not_made(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    where = context(partition_id=3, fedcohort_answers=str(tmp_path / "file" / "below"))
    with pytest.raises(StoreError, match="cannot be kept"):
        answer(app(sigma=1.0), where, model(1))


def test_a_damaged_answer_is_not_drawn_again(answers: pathlib.Path) -> None:
    answer(app(sigma=1.0), context(partition_id=3), model(1))
    file = next(answers.iterdir())
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(StoreError):
        answer(app(sigma=1.0), context(partition_id=3), model(1))


def test_the_noise_comes_from_the_operating_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    asked: list[int] = []

    def urandom(count: int) -> bytes:
        asked.append(count)
        return b"\xff" * count

    monkeypatch.setattr(os, "urandom", urandom)
    noise = unpredictable_normal(3)
    assert np.isfinite(noise).all(), "the largest draw is not infinite"
    assert noise[0] > 7
    folder = Answers(tmp_path / "kept", logging.getLogger())
    folder.once("a", {}, "p", lambda: unpredictable_normal(2).astype(np.float32))
    assert asked == [24, 16]


def test_exact_losses_are_not_answered_under_a_promise() -> None:
    torch = pytest.importorskip("torch")
    load = lambda _: (torch.nn.Sequential(torch.nn.Linear(2, 2)), [])  # noqa: E731
    for settings, answered in (({}, True), ({"epsilon": 8}, False), ({"epsilon": 8, "losses": True}, True)):  # fmt: skip  # noqa: E501
        made = ClientApp()
        profile_query(made, load, **settings)
        query = Message(query_content([Need.LOSS], None), 5, "query.loss")
        if answered:
            assert made(query, context()).has_content()
        else:
            with pytest.raises(ValueError, match="No query function"):
                made(query, context())


def test_tiny_outputs_keep_length_one() -> None:
    torch = pytest.importorskip("torch")
    from fedcohort.profiles.private import _Features

    features = _Features(torch.zeros(3, dtype=torch.float64))
    for scale in (1e-320, 1e-162, 1.0, 1e200):
        lengths = torch.linalg.vector_norm(features(scale * torch.tensor([[3.0, 4.0, 0.0]]).double()), dim=1)  # fmt: skip  # noqa: E501
        assert float(lengths[0]) == pytest.approx(1.0, abs=1e-9) or scale == 1e-320
        assert float(lengths[0]) <= 1 + 1e-9
