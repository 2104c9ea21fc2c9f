"""The cohort explorer of the Start page in a real Chromium, in a page with styles of its own."""

import pytest
from chromium import browser, visit
from explorer import SELECTORS, explorer

from fedcohort import simulate

__all__ = ["browser", "visit"]

# A rem of 20 pixels and other looks, as the site's theme has, and nothing may be loaded.
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<link rel="icon" href="data:,">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>html {{ font-size: 125% }} body {{ color-scheme: {scheme}; margin: 8px }}
button, select, header {{ display: none }}</style></head>
<body>{explorer}<script>
window.addEventListener("keydown", (event) => {{ document.body.dataset.keys = event.key }});
</script></body></html>"""
ROUNDS = 12


@pytest.fixture(scope="module")
def made():
    return explorer(ROUNDS)


@pytest.fixture
def start(made, tmp_path, visit):
    """Return a function that opens a page with the explorer."""

    def opened(width=1280, scheme="light"):
        file = tmp_path / "index.html"
        file.write_text(PAGE.format(explorer=made, scheme=scheme), "utf-8")
        return visit(file, width=width)

    return opened


@pytest.fixture(scope="module")
def rounds():
    """What the same runs have by selector and round, from the public API."""
    results = simulate(
        selectors=SELECTORS, skew="1", clients=50, rounds=ROUNDS, lr=0.5, progress=False
    )
    return results.rounds.set_index(["selector", "round"])


def shown(page, view=0):
    card = page.locator(".view").nth(view)
    return {name: card.locator(f".{name} b").text_content() for name in ("gemd", "score")}


def test_it_begins_with_match_beside_fedavg(start):
    page = start()
    chosen = [page.get_by_label(name).input_value() for name in ("Selector", "Compared with")]
    assert chosen == ["match", "fedavg"]


@pytest.mark.parametrize("width", [390, 1280])
def test_it_works_by_keyboard_and_asks_for_nothing(start, rounds, width):
    page = start(width)
    chooser = page.get_by_label("Selector")
    chooser.focus()
    page.keyboard.type("dp3s")
    assert chooser.input_value() == "dp3s"
    # The page has keys of its own, as the site's theme does.
    assert page.evaluate("document.body.dataset.keys") is None
    page.get_by_role("slider").focus()
    page.keyboard.press("End")
    last = rounds.loc["dp3s", ROUNDS]
    assert shown(page) == {"gemd": f"{last.gemd:.2f}", "score": f"{100 * last.test_accuracy:.1f} %"}
    assert page.locator("[data-round]").text_content() == f"{ROUNDS} / {ROUNDS}"
    assert page.locator(".view").first.locator(".client.lit").count() == 10
    assert page.troubles == []
    assert len(page.requests) == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_visitor_switches_between_the_three_rules_by_pointer(start, rounds):
    page = start()
    for selector in SELECTORS:
        page.get_by_label("Compared with").select_option(selector)
        assert shown(page, 1)["gemd"] == f"{rounds.loc[selector, 1].gemd:.2f}"
        spoken = page.locator(".view").nth(1).locator(".mixture").get_attribute("aria-label")
        assert spoken.count("class ") == 10
    page.get_by_role("slider").click()
    middle = int(page.get_by_role("slider").input_value())
    assert 1 < middle < ROUNDS
    assert shown(page, 1)["gemd"] == f"{rounds.loc['match', middle].gemd:.2f}"


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_it_follows_the_colours_of_the_page(start, scheme, dark):
    card = start(scheme=scheme).locator(".card")
    ground = card.evaluate("(e) => getComputedStyle(e).backgroundColor")
    red = float(ground[ground.index("(") + 1 :].split(",")[0])
    assert (red < 60) == dark


def test_the_whole_explorer_of_the_start_page_is_small(made):
    # Of 80 rounds instead of 12, most of it would still be the component's own text.
    assert len(made) * 80 / ROUNDS < 1e6
