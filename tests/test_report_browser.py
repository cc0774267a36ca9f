"""The page in a real browser: silent console, no request, every plot drawn, no overlap."""

import json

import pytest

from tests.chromium import chromium, find_chromium
from tests.selfplay_simulator import simulate
from verl_populora.report.__main__ import write_report
from verl_populora.rundir import RunReader

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="no Chromium found")

# Pairs of texts of one drawing that overlap, and texts that leave their card.
COLLISIONS = """
[...document.querySelectorAll("svg")].flatMap((svg) => {
  const card = svg.closest("figure").getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")]
    .map((text) => [text.textContent, text.getBoundingClientRect()]);
  const outside = texts.filter(([, box]) => box.left < card.left || box.right > card.right)
    .map(([text]) => `${svg.id}: ${text} leaves its card`);
  const pairs = texts.flatMap(([first, a], index) => texts.slice(index + 1)
    .filter(([, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
      && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3)
    .map(([second]) => `${svg.id}: ${first} over ${second}`));
  return [...outside, ...pairs];
})
"""
TOO_WIDE = """
[...document.querySelectorAll("main *, header *")]
  .filter((node) => !node.closest("svg, pre") && node.getBoundingClientRect().right > innerWidth + 1)
  .map((node) => node.outerHTML.slice(0, 80))
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    two = simulate(folder / "2t2s")
    eight = simulate(folder / "8t8s-with-quite-a-long-name-for-a-run", teachers=8, students=8, steps=24)
    single = simulate(folder / "single", teachers=0, students=0, collapse=True)
    return {
        "one": write_report([two], folder / "one", png=False),
        "several": write_report([single, two, eight], folder / "several", png=False),
        "run": two,
    }


@pytest.fixture(scope="module")
def browser():
    with chromium(find_chromium() or "") as page:
        yield page


@pytest.mark.parametrize("name", ["one", "several"])
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_is_silent_self_contained_and_legible(browser, pages, name, width, dark):
    browser.open(pages[name], width, dark=dark)
    assert browser.errors == []
    assert browser.requests == [pages[name].resolve().as_uri()]
    assert browser.evaluate(COLLISIONS) == []
    assert browser.evaluate(TOO_WIDE) == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, background.removeprefix("rgb(").removesuffix(")").split(",")))
    assert brightness < 150 if dark else brightness > 600


def test_every_figure_with_data_is_drawn(browser, pages):
    browser.open(pages["several"], 1400)
    drawn = browser.evaluate(
        "[...document.querySelectorAll('svg')].map((svg) => [svg.id, svg.getBoundingClientRect().height,"
        "svg.querySelectorAll('polyline, polygon, rect').length])"
    )
    figures = json.loads(browser.evaluate("document.getElementById('report-data').textContent"))["figures"]
    ids = {identity for identity, height, shapes in drawn if height > 30 and shapes > 0}
    for name, figure in figures.items():
        for position, panel in enumerate(figure["panels"]):
            if panel.get("series") or panel.get("lives") or panel.get("rows"):
                assert f"{name}-{position}" in ids


def test_drawn_points_and_the_readout_equal_metrics_jsonl(browser, pages):
    browser.open(pages["one"], 1400)
    rates = [row["student/student1/solve_rate"] for row in RunReader(pages["run"]).metrics()]
    points = browser.evaluate("document.querySelector('#solve_rate-0 polyline.thin').getAttribute('points')")
    drawn = [float(point.split(",")[1]) for point in points.split()]
    top, bottom = 8, 166  # the axis from 1 to 0
    assert drawn == pytest.approx([bottom - rate * (bottom - top) for rate in rates], abs=0.051)
    browser.evaluate("document.querySelector('#solve_rate-0').focus()")
    for _ in range(3):
        browser.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowLeft")
    readout = browser.evaluate("document.querySelector('#solve_rate .legend output').textContent")
    assert float(readout) == pytest.approx(rates[-4], abs=0.0006)
    browser.evaluate("document.querySelector('#time-0').scrollIntoView()")
    box = browser.evaluate("document.querySelector('#time-0').getBoundingClientRect().toJSON()")
    first_column = box["left"] + box["width"] * 41 / 360
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=first_column, y=box["top"] + 60)
    readout = browser.evaluate("document.querySelector('#time .legend output').textContent")
    assert float(readout) == pytest.approx(RunReader(pages["run"]).metrics()[0]["time/rollout"], abs=0.006)
    assert browser.errors == []
