"""A real Chromium for tests of pages: what it asked for and what it complained of."""

import shutil

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


# Not for the whole session: while it is open, its event loop is in the way of other tests'.
@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    playwright.expect.set_options(timeout=30_000)
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser):
    """Return a function that opens a page and watches what goes wrong and what is asked for."""
    contexts = []

    def open_page(path, *, width=1280, scheme="light"):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        page.troubles, page.requests = [], []
        page.on("console", lambda m: page.troubles.append(m.text) if m.type != "log" else None)
        page.on("pageerror", lambda error: page.troubles.append(str(error)))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("[data-ready]", timeout=60_000)
        return page

    yield open_page
    for context in contexts:
        context.close()
