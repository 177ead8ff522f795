"""The page in a real browser: no errors, every chart has its data, zoom and buttons work, nothing is cut off.

They need Debian's or any other Chromium, and Playwright to drive it (in the extra `dev`); without them they skip.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trisect.report import write_comparison, write_report

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed, so no browser is driven")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here to open the page in")

# every piece of text in a drawing lies within it
CUT_OFF = """() => [...document.querySelectorAll('figure svg')].flatMap(drawing => {
  const outer = drawing.getBoundingClientRect();
  return [...drawing.querySelectorAll('text')].filter(text => {
    const inner = text.getBoundingClientRect();
    return inner.width && (inner.left < outer.left - 1 || inner.right > outer.right + 1
      || inner.top < outer.top - 2 || inner.bottom > outer.bottom + 2);
  }).map(text => text.textContent);
})"""
WIDTH = "() => [document.documentElement.scrollWidth, innerWidth]"


class Opened:
    """A page in the browser, and all that it complained about."""

    def __init__(self, page: Any) -> None:
        self.page, self.complaints = page, []
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        self.requests: list[str] = []

    def data(self, selector: str, name: str) -> str:
        return str(self.page.locator(selector).first.get_attribute(f"data-{name}"))

    def key(self, selector: str, *keys: str) -> None:
        self.page.locator(selector).first.focus()
        for key in keys:
            self.page.keyboard.press(key)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def show(browser) -> Iterator[Any]:
    contexts = []

    def open_page(path: Path, *, width: int = 1200, dark: bool = False, scripts: bool = True) -> Opened:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            java_script_enabled=scripts,
        )
        contexts.append(context)
        opened = Opened(context.new_page())
        opened.page.goto(path.as_uri())
        if scripts:
            opened.page.wait_for_selector("html[data-ready]")
        return opened

    yield open_page
    for context in contexts:
        context.close()


KINDS = {
    "one process": {},
    "one epoch": {"epochs": 1},
    "crashed": {"finished": False, "epochs": 2, "vertex": 2},
    "no epoch": {"finished": False, "epochs": 0},
    "hybrid": {"vertex": 2, "layer": 2},
    "timeline in blocks": {"time": 2, "steps": 12, "blocks": 3},
    "all three axes": {"time": 2, "layer": 2, "vertex": 2, "steps": 8, "blocks": 2},
    "two classes": {"classes": 2},
    "long epochs": {"seconds": 400.0, "vertex": 2},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_chart_has_its_data_and_nothing_is_cut_off(make_run, show, kind: str):
    path = write_report(make_run(**KINDS[kind]))
    for width in (1200, 390):
        opened = show(path, width=width)
        page = opened.page
        assert opened.complaints == []
        assert opened.requests == [path.as_uri()]
        scrolled, wide = page.evaluate(WIDTH)
        assert scrolled <= wide, "the page scrolls sideways"
        assert page.evaluate(CUT_OFF) == []
        for figure in page.locator("figure").all():
            kind_ = figure.get_attribute("data-kind")
            name = {"lines": "points", "unit": "points", "schedule": "drawn", "box": "pieces"}[str(kind_)]
            assert int(str(figure.get_attribute(f"data-{name}"))) > 0
            assert figure.locator(".says").count() == 1
            assert figure.locator("table").count() >= 1


def test_the_test_of_labels_notices_one_that_is_cut_off(make_run, show):
    opened = show(write_report(make_run()))
    opened.page.evaluate("() => document.querySelector('figure svg text').setAttribute('x', -40)")
    assert len(opened.page.evaluate(CUT_OFF)) == 1


def test_the_schedule_zooms_moves_and_names_actions(make_run, show):
    opened = show(write_report(make_run(vertex=2, chunks=2)))
    page, figure = opened.page, "figure[data-kind=schedule]"

    def view() -> tuple[int, int]:
        return int(opened.data(figure, "from")), int(opened.data(figure, "to"))

    whole = view()
    assert whole[0] == 0
    all_drawn = int(opened.data(figure, "drawn"))
    assert all_drawn == int(opened.data(figure, "spans"))
    page.get_by_role("button", name="zoom in").click()
    page.get_by_role("button", name="zoom in").click()
    near = view()
    assert near[1] - near[0] == pytest.approx(whole[1] / 4, rel=0.01)
    assert 0 < int(opened.data(figure, "drawn")) < all_drawn
    page.get_by_role("button", name="later").click()
    assert view()[0] > near[0]
    canvas = page.locator(f"{figure} canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + 40
    before = view()
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y, steps=3)
    page.mouse.up()
    assert view()[0] < before[0], "dragging to the right shows what was earlier"
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    assert view()[1] - view()[0] < before[1] - before[0]
    page.get_by_role("button", name="whole epoch").click()
    assert view() == whole
    page.mouse.move(box["x"] + 70, y + 5)
    assert "rank 0" in page.locator("#tip").inner_text()
    opened.key(f"{figure} canvas", "Escape", "ArrowRight", "ArrowRight", "ArrowRight")
    assert "rank 0: forward of layer 0, chunk 0" in page.locator(f"{figure} .readout").inner_text()
    opened.key(f"{figure} canvas", "ArrowDown")
    assert "rank 1: " in page.locator(f"{figure} .readout").inner_text()
    opened.key(f"{figure} canvas", "+", "+")
    assert view()[1] - view()[0] < whole[1] / 2
    opened.key(f"{figure} canvas", "0")
    assert view() == whole
    page.get_by_role("button", name="colour by layer").click()
    assert "layer 0" in page.locator(f"{figure} .legend").inner_text()
    assert opened.complaints == []


def test_charts_of_lines_have_buttons_and_keys(make_run, show):
    opened = show(write_report(make_run(epochs=5)))
    page = opened.page
    loss = page.locator("figure", has_text="Loss").first
    count = int(str(loss.get_attribute("data-points")))
    loss.get_by_role("button", name="val").click()
    assert int(str(loss.get_attribute("data-points"))) < count
    assert loss.locator("polyline").count() == 2
    loss.get_by_role("button", name="val").press("Enter")
    assert loss.locator("polyline").count() == 3
    path = loss.locator("polyline").first.get_attribute("points")
    loss.get_by_role("button", name="log scale").click()
    assert loss.locator("polyline").first.get_attribute("points") != path
    loss.locator("svg").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator("#tip").inner_text().splitlines()[:2] == ["epoch 2", "train 1"]
    assert opened.complaints == []


def test_the_box_says_what_a_rank_holds(make_run, show):
    opened = show(write_report(make_run(vertex=2, layer=2)))
    page, figure = opened.page, "figure[data-kind=box]"
    assert int(opened.data(figure, "pieces")) == 4
    opened.key(f"{figure} svg", "ArrowRight", "ArrowRight")
    assert page.locator(f"{figure} .readout").inner_text() == (
        "Rank 1 holds 1,010 vertices, layers 0–1: 25% of the box."
    )
    assert opened.data(figure, "chosen") == "1"
    before = page.locator(f"{figure} path").first.get_attribute("d")
    page.get_by_role("button", name="pull apart").click()
    assert page.locator(f"{figure} path").first.get_attribute("d") != before
    page.get_by_role("button", name="Rank 3 holds").focus()
    page.keyboard.press("Enter")
    assert opened.data(figure, "chosen") == "3"
    assert opened.complaints == []


def test_dark_and_light(make_run, show):
    path = write_report(make_run())
    background = "() => getComputedStyle(document.body).backgroundColor"
    light, dark = show(path).page, show(path, dark=True).page
    assert light.evaluate(background) != dark.evaluate(background)
    dark.get_by_role("button", name="Light colours").click()
    assert light.evaluate(background) == dark.evaluate(background)
    dark.get_by_role("button", name="Dark colours").click()
    assert light.evaluate(background) != dark.evaluate(background)


def test_several_runs(make_run, show, tmp_path: Path):
    runs = [make_run("one"), make_run("two", vertex=2, seconds=0.5), make_run("crashed", finished=False, epochs=2)]
    opened = show(write_comparison(runs, tmp_path / "comparison.html"))
    page = opened.page
    assert opened.complaints == []
    assert "500 ms × 0.5" in page.locator("#ratios").inner_text().replace("\xa0", " ")
    lengths = {f.get_attribute("data-to") for f in page.locator("figure[data-kind=schedule]").all()}
    assert len(lengths) == 1, "all schedules have the same axis"
    loss = page.locator("figure", has_text="Training loss").first
    path = loss.locator("polyline").first.get_attribute("points")
    loss.get_by_role("button", name="over seconds of training").click()
    assert loss.locator("polyline").first.get_attribute("points") != path
    phone = show(tmp_path / "comparison.html", width=390).page
    scrolled, wide = phone.evaluate(WIDTH)
    assert scrolled <= wide
    assert phone.evaluate(CUT_OFF) == []


def test_a_forged_run_runs_no_script(make_run, show, forge):
    evil = "</script><script>window.evil = 1</script><img src=x onerror='window.evil = 1'>"
    directory = make_run(vertex=2, data=evil, more={"best_epoch": evil, "version": evil, "monitor": f"val.{evil}"})
    forge(
        directory,
        "summary.json",
        lambda plain: {**plain, "metrics": {"test": {evil: 0.5}}, "partition": {evil: {evil: 1}}},
    )
    forge(
        directory,
        "plan.json",
        lambda plain: {**plain, "layers": [evil] * 9, "layout": evil, "bytes_per_epoch": {evil: 5}},
    )
    for rank in range(2):
        file = directory.path / "events" / f"rank-{rank}.jsonl"
        file.write_text(file.read_text().replace("0G0", evil.replace("'", "")))
    opened = show(write_report(directory))
    assert opened.page.evaluate("() => window.evil") is None
    assert opened.complaints == []
    assert len(opened.requests) == 1
    # and were it there, the policy of the page would not let it run
    opened.page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'evil = 2'; document.body.append(s) }"
    )
    assert opened.page.evaluate("() => window.evil") is None


def test_without_scripts_there_are_sentences_and_tables(make_run, show):
    page = show(write_report(make_run(vertex=2)), scripts=False).page
    text = page.locator("main").inner_text()
    assert "Charts need JavaScript" in text
    assert "1,010" in text
    assert page.locator("figure table").count() == page.locator("figure").count()


@pytest.mark.slow
def test_sixty_four_ranks(make_run, show):
    path = write_report(make_run(vertex=64, epochs=2, layers=32, chunks=8))
    assert path.stat().st_size < 6 << 20
    opened = show(path)
    assert opened.complaints == []
    assert int(opened.data("figure[data-kind=schedule]", "drawn")) > 10_000
    assert int(opened.data("figure[data-kind=box]", "pieces")) == 64
