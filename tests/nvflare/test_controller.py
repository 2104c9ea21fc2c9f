"""`CohortSelection` over a workflow whose sites answer in this process."""

import dataclasses
import logging
import pathlib
import stat
from typing import Any

import numpy as np
import pytest
from fake_workflow import CohortFake, Site, moved
from nvflare.app_common.abstract.fl_model import FLModel

from fedcohort.errors import InvalidInputError, TooFewClientsError
from fedcohort.nvflare import PROFILE_TASK
from fedcohort.selection import Cohort, KCenter, registry


def sites(count: int = 6, **named: Any) -> dict[str, Site]:
    rng = np.random.default_rng(0)
    return {
        f"site-{i}": Site(10.0 + i, rng.normal(size=4).astype(np.float32), loss=1.0 + i, **named)
        for i in range(count)
    }


def workflow(folder: pathlib.Path, there: dict[str, Site], **settings: Any) -> CohortFake:
    given = {"num_clients": 3, "num_rounds": 4, "selector": "match", **settings}
    return CohortFake(sites=there, folder=folder, **given)


def test_profiles_are_asked_for_once_and_cohorts_are_trained(tmp_path: pathlib.Path) -> None:
    run = workflow(tmp_path, sites())
    run.run()
    questions = [names for task, names in run.asked if task == "fedcohort_profile"]
    assert questions == [tuple(sorted(sites()))]
    trained = [set(names) for task, names in run.asked if task == "train"]
    assert trained == [set(s.cohort) for s in run.history]
    assert all(len(s.trained) == 3 for s in run.history)
    assert len((tmp_path / "cohorts.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize("selector", ["fedavg", "dp3s", "fedsae", "pow-d", "divfl", "clustered"])
def test_selectors_of_every_need_work(tmp_path: pathlib.Path, selector: str) -> None:
    run = workflow(tmp_path, sites(), selector=selector)
    run.run()
    assert all(len(s.cohort) == 3 and s.trained for s in run.history)


@pytest.mark.parametrize(("selector", "width"), [("clustered", 5), ("hics", 2)])
def test_whole_numbers_are_no_part_of_an_update_and_its_end_is_as_long_as_the_bias(
    tmp_path: pathlib.Path, selector: str, width: int
) -> None:
    run = workflow(tmp_path, sites(4), selector=selector, num_clients=4, num_rounds=1)
    run.model.params = {"w": np.ones(3), "batches": np.array([7]), "bias": np.ones(2)}
    run.run()
    updates = run._chooser.state()["client.update"]
    np.testing.assert_array_equal(updates, np.ones((4, width)))


@pytest.mark.parametrize(("selector", "seen"), [("oort", 1.0), ("afl", 30.0)])
def test_the_loss_that_a_selector_hears_rides_on_results(
    tmp_path: pathlib.Path, selector: str, seen: float
) -> None:
    def train(params: dict[str, Any], _: int) -> FLModel:
        result = moved(params, 1.0)
        result.metrics = {"train_loss": 1.0, "received_loss": 30.0}
        return result

    run = workflow(tmp_path, sites(train=train), selector=selector, num_rounds=1)
    run.run()
    state = run._chooser.state()
    told = dict(zip(state["client.id"].tolist(), state["client.loss"].tolist(), strict=True))
    assert sum(loss == seen for loss in told.values()) == len(run.history[0].trained) == 3


def test_a_job_resumes_as_if_nothing_had_happened(tmp_path: pathlib.Path) -> None:
    def train(params: Any, _: int) -> Any:
        return moved(params, 1.0)

    there = sites(train=train)
    whole = workflow(tmp_path, there, num_rounds=6)
    whole.run()
    file = tmp_path / "state" / "server.npz"
    first = workflow(tmp_path, there, num_rounds=3, checkpoint=str(file))
    first.run()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    second = workflow(tmp_path, there, num_rounds=6, checkpoint=str(file))
    second.run()
    assert [s.round for s in second.history] == [4, 5, 6]
    assert [s.cohort for s in [*first.history, *second.history]] == [
        s.cohort for s in whole.history
    ]
    assert not [names for task, names in second.asked if task != "train"], "nobody is asked again"
    np.testing.assert_allclose(second.model.params["w"], whole.model.params["w"])
    with pytest.raises(InvalidInputError, match="saved with selector 'match', not 'dp3s'"):
        workflow(tmp_path, there, selector="dp3s", checkpoint=str(file)).run()


def test_the_average_weighs_what_counts_of_the_sizes(tmp_path: pathlib.Path) -> None:
    there = {
        f"site-{i}": Site(size, np.eye(4)[i], lambda p, _, i=i: moved(p, float(i)))
        for i, size in enumerate([10, 10, 10, 10**12])
    }
    for site in there.values():
        site.profile = site.profile.astype(np.float32)
    run = workflow(tmp_path, there, num_clients=4, num_rounds=1)
    run.run()
    # The claim counts as four times the others' upper quartile.
    assert run.model.params["w"][0] == pytest.approx((0 + 1 + 2 + 4 * 3) / 7)


class OneCounts(KCenter):
    """Chooses the first clients, of whom the very first alone has a weight."""

    name = "one-counts"

    def _choose(self, k: int, rows: Any, rng: np.random.Generator) -> Cohort:  # noqa: ARG002
        return self._cohort(rows[:k], np.eye(k)[0])


@pytest.mark.parametrize("answers", [True, False])
def test_a_weight_of_0_is_none(
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    answers: bool,
) -> None:
    monkeypatch.setitem(registry._registered, OneCounts.name, OneCounts)
    there = sites(4)
    for i, site in enumerate(there.values()):
        site.train = lambda p, _, i=i: moved(p, 10.0 + i) if i or answers else None
    run = workflow(tmp_path, there, num_clients=4, num_rounds=1, selector=OneCounts.name)
    with caplog.at_level(logging.WARNING):
        run.run()
    (summary,) = run.history
    assert len(summary.trained) == 3 + answers
    assert ("Round 1 is dropped: its usable updates (3) all weigh 0." in caplog.text) != answers
    assert run.model.params["w"][0] == (10 if answers else 0)


def test_claims_in_training_do_not_count(tmp_path: pathlib.Path) -> None:
    there = sites(4)
    for i, site in enumerate(there.values()):
        steps = 10**12 if i == 3 else 10
        site.train = lambda p, _, i=i, n=steps: moved(p, float(i), NUM_STEPS_CURRENT_ROUND=n)
    run = workflow(tmp_path, there, num_clients=4, num_rounds=1)
    run.run()
    assert run.model.params["w"][0] == pytest.approx(np.average(range(4), weights=[10, 11, 12, 13]))
    # A selector that asks nothing knows no sizes: steps count, within the rule.
    run = workflow(tmp_path, there, num_clients=4, num_rounds=1, selector="fedavg")
    run.run()
    assert run.model.params["w"][0] == pytest.approx(np.average(range(4), weights=[1, 1, 1, 4]))


def test_nonsense_is_left_out_and_named(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    there = sites(5)
    there["site-0"].profile = np.full(4, np.nan, np.float32)
    there["site-1"].train = lambda p, _: moved({"w": p["w"][:2]}, 1.0)
    there["site-2"].train = lambda p, _: moved(p, np.inf)
    run = workflow(tmp_path, there, num_clients=4, num_rounds=1)
    with caplog.at_level(logging.WARNING):
        run.run()
    assert "Node site-0 is left out: its profile is not finite." in caplog.text
    left = run.history[0].left_out
    assert left["site-1"] == "its array 'w' has shape [2] instead of [3]"
    assert left["site-2"] == "its array 'w' is not finite"
    assert run.model.params["w"][0] == pytest.approx(1.0)


def test_the_first_profiles_are_advised_on_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = workflow(tmp_path, sites(8), num_clients=3, num_rounds=3)
    with caplog.at_level(logging.INFO):
        run.run()
    (line,) = [r.getMessage() for r in caplog.records if "by match" in r.getMessage()]
    assert line.startswith("8 clients")
    assert "cohorts of 3 are" in line


def test_advice_rests_on_agreements_if_all_sites_send_one(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = []
    for missing in (0, 1, 8):
        there = sites(8)
        for site in list(there.values())[missing:]:
            site.agreement = 0.9
        caplog.clear()
        folder = tmp_path / str(missing)
        folder.mkdir()
        with caplog.at_level(logging.INFO):
            workflow(folder, there, num_clients=3, num_rounds=1).run()
        lines += [r.getMessage() for r in caplog.records if "by match" in r.getMessage()]
    agreed, some, alone = lines
    assert agreed.endswith("That is so if all classes are equally frequent over all clients.")
    assert some == alone
    assert "equally frequent" not in alone


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        (lambda *_: None, "it did not answer in time"),
        (lambda p, _: moved(p, np.inf), "its array 'w' is not finite"),
    ],
)
def test_a_site_without_a_usable_result_is_left_out_for_a_while(
    tmp_path: pathlib.Path, train: Any, reason: str
) -> None:
    there = sites(4)
    there["site-0"].train = train
    run = workflow(tmp_path, there, num_clients=4, num_rounds=9)
    run.run()
    asked = [s.round for s in run.history if "site-0" in s.cohort]
    assert asked == [1, 3, 7]
    assert run.history[0].left_out == {"site-0": reason}


def test_a_site_that_was_slow_to_introduce_itself_is_asked_again(tmp_path: pathlib.Path) -> None:
    there, asked = sites(4), []
    introduce = there["site-3"].answer

    def slowly(task: str, request: FLModel) -> FLModel | None:
        if task == PROFILE_TASK:
            asked.append(run.current_round + 1)
        return None if task == PROFILE_TASK and len(asked) < 3 else introduce(task, request)

    there["site-3"].answer = slowly  # type: ignore[method-assign]
    run = workflow(tmp_path, there, num_clients=4, num_rounds=9)
    run.run()
    assert asked == [1, 3, 7]
    assert [s.round for s in run.history if "site-3" in s.cohort] == [7, 8, 9]


def test_a_site_that_was_refused_may_come_back_mended(tmp_path: pathlib.Path) -> None:
    there = sites(4)
    good, there["site-3"].profile = there["site-3"].profile, np.array(["no"])
    run = workflow(tmp_path, there, num_clients=4, num_rounds=1)
    run.run()
    away = there.pop("site-3")
    run.run()
    there["site-3"] = dataclasses.replace(away, profile=good)
    run.run()
    assert ["site-3" in summary.cohort for summary in run.history] == [False, False, True]


def test_silence_of_all_is_said_at_once(tmp_path: pathlib.Path) -> None:
    there = sites(3)
    there["site-0"].profile = np.array(["no"])
    for name in ("site-1", "site-2"):
        there[name].answer = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(TooFewClientsError, match=r"<U2 \(1\); no answer to the profile .* \(2\)"):
        workflow(tmp_path, there).run()


def test_too_few_results_leave_the_model_as_it_is(tmp_path: pathlib.Path) -> None:
    there = sites(4)
    for name in ("site-0", "site-1", "site-2"):
        there[name].train = lambda *_: None
    run = workflow(tmp_path, there, num_clients=4, num_rounds=1, min_cohort=2)
    run.run()
    np.testing.assert_array_equal(run.model.params["w"], np.zeros(3))


def test_all_refused_is_said_at_once_with_the_reasons(tmp_path: pathlib.Path) -> None:
    there = sites(3)
    for site in there.values():
        site.profile = np.array(["no"])
    with pytest.raises(TooFewClientsError, match=r"its profile is of type <U2 \(3\)"):
        workflow(tmp_path, there).run()


def test_the_guard_is_on_unless_turned_off(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    there = sites(12)
    there["site-5"].profile *= 1e4
    run = workflow(tmp_path, there, num_rounds=6)
    with caplog.at_level(logging.WARNING):
        run.run()
    assert all("site-5" not in s.cohort for s in run.history)
    assert caplog.text.count("The guard leaves out 'site-5'") == 1
    assert workflow(tmp_path, there, guard="off")._chooser.guard == "off"
    assert workflow(tmp_path, there, selector="match:guard=off")._chooser.guard == "off"


def test_settings_that_cannot_work_are_named_at_once(tmp_path: pathlib.Path) -> None:
    for settings, words in (
        ({"deadline": 0}, "deadline of CohortSelection must be"),
        ({"guard": "maybe"}, "guard of CohortSelection must be"),
        ({"min_cohort": 9}, "min_cohort of CohortSelection is 9"),
        ({"selector": "dp4s"}, "did you mean 'dp3s'"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            workflow(tmp_path, sites(), **settings)


@pytest.mark.parametrize("first", [True, False])
def test_one_site_does_not_settle_what_the_others_results_are(
    tmp_path: pathlib.Path, first: bool
) -> None:
    def difference(params: Any, _: int) -> FLModel:
        return FLModel(params_type="DIFF", params={n: np.ones_like(v) for n, v in params.items()})

    there = sites(4)
    there["site-0" if first else "site-3"].train = difference
    run = workflow(tmp_path, there, num_clients=4, num_rounds=3)
    run.run()
    # All four move the model by 1 a round, one of them says so as a difference.
    np.testing.assert_allclose(run.model.params["w"], np.full(3, 3.0))


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (np.full(3, 2**62), "its array 'w' is of type int64 instead of float64"),
        (["1", "2", "3"], "its array 'w' is of type <U1"),
        (None, "its arrays have other names than those it was sent"),
    ],
)
def test_what_cannot_be_averaged_is_refused(tmp_path: pathlib.Path, sent: Any, reason: str) -> None:
    there = sites(4)
    params = 7 if sent is None else {"w": sent}
    there["site-1"].train = lambda *_: FLModel(params=params)
    run = workflow(tmp_path, there, num_clients=4, num_rounds=1)
    run.run()
    assert run.history[0].left_out["site-1"] == reason
    np.testing.assert_allclose(run.model.params["w"], np.ones(3))


def test_lists_of_numbers_are_averaged_as_arrays(tmp_path: pathlib.Path) -> None:
    there = sites(4)
    there["site-1"].train = lambda *_: FLModel(params={"w": [1.0, 1.0, 1.0]})
    run = workflow(tmp_path, there, num_clients=4, num_rounds=1)
    run.run()
    assert "site-1" in run.history[0].trained
    np.testing.assert_allclose(run.model.params["w"], np.ones(3))


def test_a_size_beyond_all_floats_is_refused(tmp_path: pathlib.Path) -> None:
    there = sites(4)
    there["site-1"].size = 10**400
    run = workflow(tmp_path, there, num_clients=3, num_rounds=1)
    run.run()
    assert "site-1" not in run.history[0].cohort
