"""The HTML report in a real Chromium."""

import dataclasses

import numpy as np
import pytest
from chromium import browser, visit

from fedcohort.report import summarise
from fedcohort.report.html import write_report

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
__all__ = ["browser", "visit"]


@pytest.fixture(scope="module")
def report(store, tmp_path_factory):
    return write_report(store, tmp_path_factory.mktemp("report") / "report.html", 0.3)


@pytest.fixture(scope="module")
def varied_report(varied_store, tmp_path_factory):
    return write_report(varied_store, tmp_path_factory.mktemp("report") / "report.html", 0.3)


def lit(page, view=0):
    """Return the clients that are lit in a view, sorted, by their tooltips."""
    titles = page.locator(".view").nth(view).locator(".client.lit title").all_text_contents()
    return sorted(int(title.split(":")[0].removeprefix("Client ")) for title in titles)


def cohort(store, selector, round_):
    (config,) = [c for c in store.configs() if c.selector == selector and c.seed == 0]
    return sorted(set(store.records(config.key)[round_].cohort))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("which", ["report", "varied_report"])
def test_it_loads_without_errors_and_asks_for_nothing(visit, request, which, scheme):
    path = request.getfixturevalue(which)
    page = visit(path, scheme=scheme)
    page.wait_for_timeout(300)
    assert page.troubles == []
    assert [url for url in page.requests if not url.startswith(("data:", "blob:"))] == [
        path.as_uri()
    ]


def test_an_outside_request_would_be_refused(visit, report):
    page = visit(report)
    outcome = page.evaluate(
        "new Promise((done) => { document.addEventListener('securitypolicyviolation',"
        " (e) => done(e.effectiveDirective)); const i = new Image();"
        " i.src = 'https://example.org/x.png'; })"
    )
    assert outcome == "img-src"


def test_every_chart_is_drawn(visit, store, tmp_path):
    page = visit(write_report(store, tmp_path / "report.html", 0.135))
    charts = page.locator("[data-plot]")
    assert charts.count() == 6
    for i in range(charts.count()):
        assert charts.nth(i).locator("svg, .bar-row").count() > 0
    assert page.locator("[data-plot=curves] .curve").count() == 2
    assert page.locator("[data-plot=curves] .band").count() == 2
    assert page.locator("[data-plot=gemd] .bar-row .fill").count() == 2
    assert page.locator("[data-plot=kernel] image").count() == 1


def test_a_chart_without_curves_says_why(visit, store, copy_runs, tmp_path):
    gone = copy_runs(store)
    gone.db.execute("UPDATE rounds SET train_score = -1e25")
    page = visit(write_report(gone, tmp_path / "report.html", 0.3))
    chart = page.locator("[data-plot=curves]")
    assert chart.text_content() == "All means are below −1."
    assert chart.bounding_box()["height"] < 100
    page.locator("[name=part][value=test]").check(force=True)
    assert chart.locator(".curve").count() == 2
    for box in page.locator("[name=shown]").all():
        box.uncheck(force=True)
    assert chart.text_content() == "Nobody to draw: tick a selector above."
    assert page.locator("[data-plot=gemd]").text_content() == "Nothing to draw."
    assert page.troubles == []


def test_huge_scores_are_short_numbers(visit, report):
    page = visit(report)
    said = page.evaluate("[0.25, -3, -1234567, -6e51].map(charts.score)")
    assert said == ["0.250", "−3.000", "−1.2e6", "−6.0e51"]


def test_the_slider_lights_up_each_rounds_cohort_by_keyboard(visit, report, store):
    page = visit(report)
    page.locator("#round").focus()
    for round_ in (1, 2, 3, 4):
        assert lit(page, 0) == cohort(store, "dp3s", round_)
        assert lit(page, 1) == cohort(store, "fedavg", round_)
        assert page.locator("[data-round]").text_content() == f"{round_} / 4"
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Home")
    assert lit(page) == cohort(store, "dp3s", 1)
    assert "Round 1" in page.locator("[data-status]").text_content()


def test_the_mixture_and_gemd_are_those_of_the_cohort(visit, report, store):
    page = visit(report)
    page.locator("#round").focus()
    page.keyboard.press("End")
    (config,) = [c for c in store.configs() if c.selector == "dp3s" and c.seed == 0]
    counts = store.federation(config)["label_counts"][cohort(store, "dp3s", 4)].sum(axis=0)
    spoken = page.locator(".view").first.locator(".mixture").get_attribute("aria-label")
    for label, count in enumerate(counts):
        assert f"class {label} {int(100 * count / counts.sum() + 0.5)} %" in spoken
    record = store.records(config.key)[4]
    view = page.locator(".view").first
    assert view.locator(".gemd b").text_content() == f"{record.gemd:.2f}"
    assert view.locator(".score").inner_text() == f"{100 * record.test_score:.1f} %\ntest accuracy"


def test_the_bars_are_the_samples_of_each_client_once(
    visit, store, copy_runs, monkeypatch, tmp_path
):
    """Client c holds c + 1 samples, of class c % 10, and cohorts have their first client twice."""
    counts = np.zeros((20, 10), np.int64)
    counts[np.arange(20), np.arange(20) % 10] = np.arange(20) + 1
    twice, records = copy_runs(store), store.records
    monkeypatch.setattr(twice, "federation", lambda _: {"label_counts": counts})
    monkeypatch.setattr(
        twice,
        "records",
        lambda k: [dataclasses.replace(r, cohort=r.cohort[:1] + r.cohort) for r in records(k)],
    )
    view = visit(write_report(twice, tmp_path / "r.html", 0.3)).locator(".view").first
    once = counts[cohort(store, "dp3s", 1)].sum(axis=0)
    spoken = view.locator(".mixture").get_attribute("aria-label")
    for label, count in enumerate(once):
        assert f"class {label} {int(100 * count / once.sum() + 0.5)} %" in spoken
    assert "Samples by class: of the chosen (bars)" in view.inner_text()


def test_another_selector_can_be_chosen(visit, report, store):
    page = visit(report)
    page.locator(".view select").first.select_option("fedavg")
    assert lit(page, 0) == lit(page, 1) == cohort(store, "fedavg", 1)


def test_another_setting_can_be_chosen(visit, varied_report):
    page = visit(varied_report)
    before = page.locator("[data-text=kernel]").text_content()
    page.locator("[data-panel-chooser]").select_option("1")
    assert page.locator("[data-text=kernel]").text_content() != before
    assert len(lit(page)) == 5
    assert page.troubles == []


def test_play_and_pause_by_keyboard(visit, report):
    page = visit(report)
    page.locator("[data-play]").focus()
    page.keyboard.press("Enter")
    playwright.expect(page.locator("[data-round]")).not_to_have_text("1 / 4")
    page.keyboard.press("Enter")
    assert page.locator("[data-play]").get_attribute("aria-pressed") == "false"
    stood = page.locator("[data-round]").text_content()
    page.wait_for_timeout(1800)
    assert page.locator("[data-round]").text_content() == stood


def test_a_selector_can_be_hidden_and_test_accuracy_shown(visit, report):
    page = visit(report)
    page.get_by_role("checkbox", name="fedavg").focus()
    page.keyboard.press("Space")
    playwright.expect(page.locator("[data-plot=gemd] .bar-row")).to_have_count(1)
    page.get_by_role("radio", name="training").focus()
    page.keyboard.press("ArrowRight")
    playwright.expect(page.locator("[data-plot=curves]")).to_contain_text("test accuracy")
    assert page.troubles == []


def brightness(page, query, field):
    colour = page.evaluate(
        "([q, f]) => getComputedStyle(document.querySelector(q))[f]", [query, field]
    )
    return sum(float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]) / 3


def test_dark_mode_turns_page_and_charts(visit, report):
    page = visit(report, scheme="dark")
    assert brightness(page, "body", "backgroundColor") < 60
    assert brightness(page, "h1", "color") > 200
    assert brightness(page, "[data-plot=curves] .tick", "fill") > 130
    dark = page.evaluate(
        "getComputedStyle(document.querySelector('[data-plot=curves] .tick')).fill"
    )
    page.emulate_media(color_scheme="light")
    page.wait_for_function(
        "getComputedStyle(document.querySelector('[data-plot=curves] .tick')).fill != " + repr(dark)
    )
    assert brightness(page, "body", "backgroundColor") > 200
    assert brightness(page, "[data-plot=curves] .tick", "fill") < 130


@pytest.mark.parametrize("which", ["report", "varied_report"])
def test_a_phone_needs_no_sideways_scrolling(visit, request, which):
    page = visit(request.getfixturevalue(which), width=390)
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_every_control_has_a_name_and_shows_its_focus(visit, varied_report):
    page = visit(varied_report)
    unnamed = page.evaluate(
        "[...document.querySelectorAll('input, select, [data-play], [role=img]')].filter((e) =>"
        " !(e.getAttribute('aria-label') || e.labels?.[0]?.textContent.trim() ||"
        " e.textContent.trim())).map((e) => e.outerHTML.slice(0, 80))"
    )
    assert unnamed == []
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.locator("#round").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_hostile_name_runs_nothing(visit, store, copy_runs, tmp_path):
    name = "<img src=x onerror=alert(1)>.npz"
    changed = copy_runs(store, change=lambda c: dataclasses.replace(c, dataset=name))
    page = visit(write_report(changed, tmp_path / "r.html", 0.3))
    assert page.troubles == []
    assert page.locator("h3", has_text="onerror=alert(1)").count() > 0


def test_a_single_selector_without_profiles_has_an_explorer_but_no_kernel(
    visit, store, copy_runs, monkeypatch, tmp_path
):
    single = copy_runs(store, change=lambda c: c if c.selector == "fedavg" else None)
    federation = single.federation
    monkeypatch.setattr(
        single, "federation", lambda c: {"label_counts": federation(c)["label_counts"]}
    )
    page = visit(write_report(single, tmp_path / "r.html", 0.3))
    assert page.troubles == []
    assert page.locator(".view").count() == 1
    assert lit(page) == cohort(store, "fedavg", 1)
    assert page.locator("[data-no-kernel]").is_visible()
    assert not page.locator("[data-plot=kernel]").is_visible()


def column(page, place):
    rows = page.locator("#target tbody tr")
    return [
        rows.nth(i).locator("th, td").nth(place).inner_text().strip() for i in range(rows.count())
    ]


def test_tables_sort_by_click_and_by_keyboard(visit, report):
    page = visit(report)
    heading = page.locator("#target thead th", has_text="GEMD")
    place = heading.evaluate("(e) => e.cellIndex")
    heading.get_by_role("button").click()
    rising = column(page, place)
    assert [float(text) for text in rising] == sorted(map(float, rising))
    assert heading.get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Enter")
    assert column(page, place) == rising[::-1]
    assert heading.get_attribute("aria-sort") == "descending"
    page.locator("#target thead th", has_text="selector").get_by_role("button").focus()
    page.keyboard.press("Space")
    assert column(page, 0) == ["dp3s", "fedavg"]
    assert heading.get_attribute("aria-sort") is None


def test_rounds_are_whole_numbers_on_the_axis(visit, report):
    texts = visit(report).locator("[data-plot=curves] .tick.x").all_text_contents()
    assert texts == ["0", "1", "2", "3", "4"]


def test_a_pointer_reads_the_curves(visit, report, store):
    page = visit(report)
    chart = page.locator("[data-plot=curves]")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 15, box["y"] + box["height"] / 2)
    said = chart.locator(".tip").inner_text()
    (summary,) = [s for s in summarise(store, 0.3) if s.label == "dp3s"]
    assert "round 4" in said
    assert f"dp3s: {100 * summary.train.mean[-1]:.1f} %" in said


def test_long_names_need_no_sideways_scrolling(visit, store, copy_runs, tmp_path):
    name = f"{'a-very-long-name-of-somebodys-table_' * 3}v2.npz"
    init = {"dp3s": "kaiming-uniform", "fedavg": "default"}
    changed = copy_runs(
        store,
        change=lambda c: dataclasses.replace(
            c, dataset=name, init=init[c.selector], lr=0.1 * (1 + c.seed)
        ),
    )
    page = visit(write_report(changed, tmp_path / "r.html", 0.3), width=390)
    assert page.locator("[data-panel-chooser]").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_too_many_clients_have_a_sentence_and_no_dead_controls(
    visit, store, copy_runs, monkeypatch, tmp_path
):
    many = copy_runs(store, change=lambda c: c if c.seed == 0 else None)
    monkeypatch.setattr(
        many, "federation", lambda _: {"label_counts": np.ones((3000, 10), np.int64)}
    )
    page = visit(write_report(many, tmp_path / "r.html", 0.3))
    assert page.troubles == []
    assert "3,000 clients are too many" in page.locator("[data-empty]").inner_text()
    assert "3,000 clients are too many" in page.locator("[data-no-kernel]").inner_text()
    assert not page.locator("#round").is_visible()
    assert not page.locator("[data-play]").is_visible()


def test_nothing_offers_to_upload(visit, report):
    page = visit(report)
    page.locator("[data-plot=curves]").hover()
    assert page.locator("[data-plot] button, [data-plot] a").count() == 0
    assert "plotly" not in report.read_text(encoding="utf-8").lower()
