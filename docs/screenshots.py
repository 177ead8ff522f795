"""Make the screenshots of the report in docs/images: train three small runs, open their pages in Chromium.

python docs/screenshots.py            # a few minutes; needs the extra `browser`, and Chromium on the path
python docs/screenshots.py RUNS       # keeps the runs in the folder RUNS, or takes those that are there
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).with_name("images")
MOST = 300_000  # bytes of a picture

GRAPH = ["deep", "--set", "data.vertices=20000", "--set", "model.layers=8", "--set", "train.epochs=30"]
RUNS: dict[str, list[str]] = {
    "one-process": GRAPH,
    "two-parts": [*GRAPH, "--layout", "vertex=2"],
    "two-by-two": [*GRAPH, "--layout", "vertex=2,layer=2,chunks=4"],
    "links": ["timeline", "--layout", "time=2,blocks=3"],
}


def make_runs(folder: Path) -> None:
    """Train what is not there yet."""
    for name, arguments in RUNS.items():
        if not (folder / name / "summary.json").exists():
            shutil.rmtree(folder / name, ignore_errors=True)
            command = [sys.executable, "-m", "trisect", "train", *arguments, "--out", str(folder / name)]
            subprocess.run(command, check=True)
        subprocess.run([sys.executable, "-m", "trisect", "report", str(folder / name)], check=True)
    compared = [str(folder / name) for name in list(RUNS)[:3]]
    command = [sys.executable, "-m", "trisect", "report", *compared, "--out", str(folder / "comparison.html")]
    subprocess.run(command, check=True)


def take(
    page: Page, name: str, *, first: str | None = None, last: str | None = None, height: int | None = None
) -> None:
    """Write a picture of a page, from the top of one element to the bottom of another."""
    path, options = IMAGES / f"{name}.png", dict[str, Any]()
    if first is not None:
        boxes = [page.locator(selector).first.bounding_box() for selector in (first, last or first)]
        top, bottom = (boxes[0] or {})["y"] - 12, (boxes[1] or {})["y"] + (boxes[1] or {})["height"] + 12
        height = round(bottom - top) if height is None else min(height, round(bottom - top))
        top += page.evaluate("scrollY")
        options = {"clip": {"x": 0, "y": top, "width": page.viewport_size["width"], "height": height}}
    page.screenshot(path=path, full_page=first is not None, **options)
    size = path.stat().st_size
    print(f"{path.name}: {size:,} bytes")
    if size > MOST:
        raise SystemExit(f"{path} is larger than {MOST:,} bytes; show less of the page.")


def photograph(folder: Path) -> None:
    """Open the pages, and write the pictures."""
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        executable = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])

        def opened(path: Path, width: int, height: int, scheme: str = "light") -> Page:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(path.resolve().as_uri())
            page.wait_for_selector("html[data-ready]")
            return page

        hybrid = folder / "two-by-two" / "report.html"
        page = opened(hybrid, 1180, 1148)
        take(page, "report")
        take(page, "report-box", first="#box")
        take(page, "report-costs", first="#costs")
        page = opened(hybrid, 1180, 900, "dark")
        page.locator("#time").scroll_into_view_if_needed()
        for _ in range(2):
            page.get_by_role("button", name="zoom in").first.click()
        box = page.locator("#time canvas").bounding_box() or {}
        page.mouse.move(box["x"] + 0.42 * box["width"], box["y"] + 0.66 * box["height"])
        take(page, "report-dark", first="#time")
        page = opened(folder / "links" / "report.html", 1180, 900)
        take(page, "report-links", first="#quality", height=992)
        page = opened(hybrid, 390, 844)
        take(page, "report-phone", first="#box", height=978)
        page = opened(folder / "comparison.html", 1180, 900)
        take(page, "report-comparison", first="#ratios", last="#costs", height=1208)
        browser.close()


def main() -> None:
    """Make the runs and their pictures."""
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
        folder.mkdir(exist_ok=True)
        make_runs(folder)
        photograph(folder)
    else:
        with tempfile.TemporaryDirectory() as name:
            make_runs(Path(name))
            photograph(Path(name))


if __name__ == "__main__":
    main()
