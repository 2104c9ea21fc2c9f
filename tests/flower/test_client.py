import pathlib
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedcohort.errors import InvalidInputError, InvalidParameterError
from fedcohort.flower import answer_queries, profile_query, protected
from fedcohort.flower.client import stable_id
from fedcohort.flower.protocol import Limits, query_content, read_introduction, read_loss
from fedcohort.privacy import Promise
from fedcohort.selection import Need


def context(**config: Any) -> Context:
    named = {key.replace("_", "-"): value for key, value in config.items()}
    return Context(run_id=1, node_id=5, node_config=named, state=RecordDict(), run_config={})


def ask(app: ClientApp, where: Context, *wants: Need, arrays: Any = None, kind: str = "profile"):  # type: ignore[no-untyped-def]
    message = Message(query_content(wants, arrays), 5, f"query.{kind}")
    return app(message, where).content


def introduce(app: ClientApp, where: Context, *wants: Need, arrays: Any = None) -> Any:
    return read_introduction(ask(app, where, *wants, arrays=arrays), wants, Limits(), expected={})


def test_only_what_is_wanted_is_measured_and_sent() -> None:
    measured = []

    def profile(*_: Any) -> list[float]:
        measured.append("profile")
        return [1.0, 2.0]

    def counts(_: Context) -> list[int]:
        measured.append("counts")
        return [3, 4]

    app = ClientApp()
    answer_queries(app, size=lambda _: 7, profile=profile, label_counts=counts)
    hello = introduce(app, context(partition_id=3))
    assert (hello.name, hello.size, dict(hello.vectors)) == ("3", 7.0, {})
    assert measured == []
    answer = introduce(app, context(), Need.LABEL_COUNTS, Need.PROFILE)
    np.testing.assert_array_equal(answer.vectors[Need.PROFILE], [1, 2])
    np.testing.assert_array_equal(answer.vectors[Need.LABEL_COUNTS], [3, 4])


def test_label_counts_leave_only_if_the_client_agreed() -> None:
    app = ClientApp()
    answer_queries(app, size=lambda _: 7, profile=lambda *_: [1.0])
    assert "label_counts" not in ask(app, context(), Need.LABEL_COUNTS)["vectors"]


def test_the_profile_is_measured_with_the_servers_model() -> None:
    app = ClientApp()
    answer_queries(app, size=lambda _: 7, profile=lambda arrays, _: arrays["w"].numpy() * 2)
    sent = ArrayRecord({"w": Array(np.array([1.0, 5.0]))})
    answer = introduce(app, context(), Need.PROFILE, arrays=sent)
    np.testing.assert_array_equal(answer.vectors[Need.PROFILE], [2, 10])


def test_the_loss_is_that_of_the_servers_model() -> None:
    app = ClientApp()
    answer_queries(app, size=lambda _: 7, loss=lambda arrays, _: arrays["w"].numpy().sum())
    sent = ArrayRecord({"w": Array(np.array([1.0, 5.0]))})
    answer = ask(app, context(), Need.LOSS, arrays=sent, kind="loss")
    assert read_loss(answer, Limits()) == 6.0


def test_a_clipped_profile_keeps_its_direction() -> None:
    sent = protected([3.0, 4.0], clip=1.0)
    np.testing.assert_allclose(sent, [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(protected([0.3, 0.4], clip=1.0), [0.3, 0.4], rtol=1e-6)
    np.testing.assert_array_equal(protected([0.0, 0.0], clip=1.0), [0, 0])


def test_noise_has_the_standard_deviation_asked_for() -> None:
    rng = np.random.default_rng(0)
    noise = protected(np.zeros(20_000), clip=1.0, sigma=0.5, rng=rng)
    assert noise.std() == pytest.approx(0.5, rel=0.03)
    assert abs(noise.mean()) < 0.02
    assert not np.array_equal(
        protected(np.zeros(4), clip=1.0, sigma=1.0), protected(np.zeros(4), clip=1.0, sigma=1.0)
    )


def test_a_client_that_is_asked_twice_sends_the_same_noise() -> None:
    app = ClientApp()
    answer_queries(app, size=lambda _: 7, profile=lambda *_: [1.0, 2.0], clip=1.0, sigma=1.0)
    where = context()
    once = introduce(app, where, Need.PROFILE).vectors[Need.PROFILE]
    again = introduce(app, where, Need.PROFILE).vectors[Need.PROFILE]
    np.testing.assert_array_equal(once, again)


def test_without_noise_every_model_has_a_profile_of_its_own() -> None:
    app = ClientApp()
    answer_queries(app, size=lambda _: 7, profile=lambda arrays, _: arrays["w"].numpy())
    where = context(partition_id=3)
    for value in (1.0, 2.0):
        arrays = ArrayRecord({"w": Array(np.full(2, value, np.float32))})
        sent = introduce(app, where, Need.PROFILE, arrays=arrays).vectors[Need.PROFILE]
        assert sent.tolist() == [value, value]


def test_noise_for_a_client_without_a_name_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    app = ClientApp()
    answer_queries(app, size=lambda _: 7, profile=lambda *_: [1.0, 2.0], clip=1.0, sigma=1.0)
    for where in (context(partition_id=3), context()):
        assert "no name of its own" not in caplog.text
        introduce(app, where, Need.PROFILE)
    assert "every restart draws a new noised profile" in caplog.text


@pytest.mark.parametrize(
    ("clip", "sigma"), [(0.0, 0.0), (-1.0, 0.0), (float("nan"), 0.0), (1.0, -1.0), (None, 1.0)]
)
def test_protection_that_protects_nothing_is_refused(clip: float | None, sigma: float) -> None:
    with pytest.raises(InvalidParameterError):
        protected([1.0], clip=clip, sigma=sigma)
    with pytest.raises(InvalidParameterError):
        answer_queries(ClientApp(), size=lambda _: 1, clip=clip, sigma=sigma)


def test_where_a_stable_name_comes_from(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "new" / "id"
    assert stable_id(context()) == ""
    assert stable_id(context(partition_id=3)) == "3"
    kept = stable_id(context(fedcohort_id_file=str(file), partition_id=3))
    assert len(kept) == 32
    assert stable_id(context(fedcohort_id_file=str(file))) == kept
    assert stable_id(context(fedcohort_id="ward-7", fedcohort_id_file=str(file))) == "ward-7"
    with pytest.raises(InvalidInputError, match="fedcohort-id-file"):
        stable_id(context(fedcohort_id_file=str(file / "below-a-file")))


def test_own_names_come_first() -> None:
    app = ClientApp()
    answer_queries(app, size=lambda _: 7, client_id=lambda c: f"node {c.node_id}")
    assert introduce(app, context(partition_id=3)).name == "node 5"


def test_names_may_be_numbers_and_none_is_no_name() -> None:
    for name, known in ((7, "7"), (None, "")):
        app = ClientApp()
        answer_queries(app, size=lambda _: 7, client_id=lambda _, name=name: name)
        assert introduce(app, context(partition_id=3)).name == known


# -- PyTorch ------------------------------------------------------------------------------------


@pytest.fixture
def net() -> Any:
    torch = pytest.importorskip("torch")
    x = torch.randn(23, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    y = torch.arange(23) % 10

    def build(seed: int) -> Any:
        nn = torch.nn
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 20), nn.Linear(20, 10)
            )

    return build, x, y


@pytest.mark.parametrize("as_mapping", [False, True])
def test_a_torch_client_answers_from_its_model_and_data(net: Any, as_mapping: bool) -> None:
    import torch

    from fedcohort.profiles import fc1_profiles

    build, x, y = net
    batches = list(zip(x.split(10), y.split(10), strict=True))
    if as_mapping:
        batches = [{"image": a, "label": b} for a, b in batches]
    app = ClientApp()
    profile_query(app, lambda _: (build(7), batches))
    server = build(3)
    arrays = ArrayRecord(server.state_dict())

    answer = introduce(app, context(partition_id=1), Need.PROFILE, arrays=arrays)
    expected = fc1_profiles(server, x, torch.arange(23), torch.tensor([23]))[0]
    np.testing.assert_array_equal(answer.vectors[Need.PROFILE], expected.numpy())
    assert answer.size == 23

    loss = read_loss(ask(app, context(), Need.LOSS, arrays=arrays, kind="loss"), Limits())
    with torch.no_grad():
        whole = torch.nn.functional.cross_entropy(server(x), y)
    assert loss == pytest.approx(float(whole), rel=1e-5)


@pytest.fixture
def agreement(net: Any) -> Any:
    """Return what a client of these targets and settings sends beside its profile."""
    build, x, _ = net

    def sent(targets: Any, **settings: Any) -> float | None:
        app = ClientApp()
        parts = [part.split(9) for part in (x, targets)]
        profile_query(app, lambda _: (build(3), zip(*parts, strict=True)), **settings)
        said = introduce(app, context(), Need.PROFILE)
        assert len(said.vectors[Need.PROFILE]) > 0
        return said.agreement  # type: ignore[no-any-return]

    return sent


def test_a_plain_profile_comes_with_the_agreement_of_gradients(net: Any, agreement: Any) -> None:
    torch = pytest.importorskip("torch")
    from fedcohort.profiles import output_gradients

    build, x, y = net
    rows, sizes = torch.arange(23), torch.tensor([23])
    expected = output_gradients(build(3).eval(), x, y, rows, sizes).agreements.item()
    assert agreement(y) == pytest.approx(expected, rel=1e-6)
    assert agreement(torch.zeros_like(y)) > 0.9 > 0.3 > expected
    # The square's gradient by outputs near 0 is the target, and these all differ.
    one_hot = torch.nn.functional.one_hot(y, 10).float()
    squares = agreement(one_hot, criterion=torch.nn.functional.mse_loss)
    assert 0 < squares < 0.3


def test_no_agreement_leaves_a_client_that_has_none_or_hides_its_profile(
    net: Any, agreement: Any, caplog: pytest.LogCaptureFixture
) -> None:
    y = net[2]
    assert agreement(y.float()) is None, "cross-entropy is for classes"
    assert agreement(y, epsilon=8, delta=1e-3) is None
    assert "agreement" not in caplog.text

    def fails(*_: Any) -> Any:
        raise KeyError("weights")

    with caplog.at_level("INFO"):
        assert agreement(y, criterion=fails) is None
    assert "No agreement of gradients is sent for advice: 'weights'." in caplog.text
    app = ClientApp()
    answer_queries(app, size=lambda _: 7, profile=lambda *_: [1.0], agreement=lambda *_: 0.25)
    assert introduce(app, context(), Need.PROFILE).agreement == 0.25
    assert introduce(app, context()).agreement is None


def test_a_torch_profile_can_be_private(net: Any) -> None:
    torch = pytest.importorskip("torch")
    from fedcohort.profiles.private import bounded_profiles

    build, x, y = net
    app = ClientApp()
    profile_query(app, lambda _: (build(3), [(x, y)]), epsilon=8, delta=1e-3)
    asked = context()
    first = introduce(app, asked, Need.PROFILE).vectors[Need.PROFILE]
    again = introduce(app, asked, Need.PROFILE).vectors[Need.PROFILE]
    np.testing.assert_array_equal(first, again)
    rows, sizes = torch.arange(len(x)), torch.tensor([len(x)])
    error = first - bounded_profiles(build(3), x, rows, sizes)[0]
    assert 0 < np.abs(error).max() < 6 * Promise(8, 1e-3).noise(len(x))
    other = introduce(app, context(partition_id=2), Need.PROFILE).vectors[Need.PROFILE]
    assert not np.allclose(first, other), "noise that can be drawn again hides nothing"


def test_a_private_profile_of_another_layer_is_another_answer(net: Any) -> None:
    build, x, y = net
    for layer, width in (("3", 20), ("4", 10), ("3", 20)):
        app = ClientApp()
        profile_query(app, lambda _: (build(3), [(x, y)]), epsilon=8, delta=1e-3, layer=layer)
        answer = introduce(app, context(partition_id=9), Need.PROFILE)
        assert answer.vectors[Need.PROFILE].shape == (width,)


def test_a_torch_profile_can_hide_the_client_as_a_whole(
    net: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dp_accounting")
    torch = pytest.importorskip("torch")
    from fedcohort.profiles import private

    monkeypatch.setattr(private, "unpredictable_normal", np.ones)
    build, x, y = net
    app = ClientApp()
    profile_query(app, lambda _: (build(3), [(x, y)]), epsilon=8, protects="client")
    noised = introduce(app, context(), Need.PROFILE).vectors[Need.PROFILE]
    rows, sizes = torch.arange(len(x)), torch.tensor([len(x)])
    clean = private.bounded_profiles(build(3), x, rows, sizes)[0]
    np.testing.assert_allclose(noised - clean, Promise(8, protects="client").noise(1), rtol=1e-5)
    with pytest.raises(InvalidParameterError, match="belongs to an epsilon"):
        profile_query(ClientApp(), lambda _: (build(3), [(x, y)]), protects="client")


def test_a_promise_that_promises_nothing_is_refused(net: Any) -> None:
    build, x, y = net
    with pytest.raises(InvalidParameterError, match="ε of 50 promises nothing"):
        profile_query(ClientApp(), lambda _: (build(3), [(x, y)]), epsilon=50)
    app = ClientApp()
    profile_query(app, lambda _: (build(3), [(x, y)]), epsilon=1, delta=0.1)
    with pytest.raises(InvalidParameterError, match="client with 23 samples"):
        introduce(app, context(), Need.PROFILE)


def test_batches_of_a_wrong_form_are_named(net: Any) -> None:
    build, x, y = net
    app = ClientApp()
    profile_query(app, lambda _: (build(3), [(x, y, y)]))
    with pytest.raises(InvalidInputError, match="A batch has 3 parts"):
        introduce(app, context(), Need.PROFILE)
