"""The plots, the timeline and the map in a real browser, for runs in which something happened; and on paper.

plotly itself is asked for the axes that it drew. Nothing here imports what it judges: a page is all that is looked at.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from builders import run_factory, run_kinds
from builders.pages import width_of

from testbed.host.files.store import RunDirectory, write_report

pytestmark = pytest.mark.e2e

AXES = """() => [...document.querySelectorAll(".plot")].map((plot) => {
  const numbers = (values) => Array.from(values || []).filter((each) => Number.isFinite(each));
  const flat = plot._fullData.filter((each) => each.visible === true);
  const along = (name) => flat.flatMap((each) => each.type === "bar" && each.orientation === "h" && name === "x"
    ? numbers(each.x).map((length, index) => length + ((each.base || [])[index] || 0)) : numbers(each[name]));
  const axis = (name) => ({type: plot._fullLayout[name + "axis"].type, range: plot._fullLayout[name + "axis"].range,
                           stacked: plot._fullLayout.barmode === "stack", values: along(name)});
  const box = plot.querySelector(".nsewdrag").getBoundingClientRect();
  return {id: plot.id, x: axis("x"), y: axis("y"), left: box.left, right: box.right, height: box.height,
          overTime: !!plot.closest(".over-time")};
})"""


def make(path: Path, kind: str) -> Path:
    run_kinds.make(path, kind)
    write_report(RunDirectory.open(path))
    return path


def until(page, holds: str) -> None:
    """Wait until the expression ``holds``; the page's policy refuses what wait_for_function would evaluate in it."""
    for _ in range(200):
        if page.evaluate(holds):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"expected within 10 s: {holds}")


def resized(page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    until(page, f"[...document.querySelectorAll('.plot')].every((it) => it._fullLayout.width <= {width})")


def drawn(page) -> None:
    for plot in page.locator(".plot").all():
        page.wait_for_selector(f"#{plot.get_attribute('id')}[data-drawn] .main-svg", timeout=20_000)


@pytest.mark.parametrize("kind", run_kinds.KINDS)
def test_every_axis_is_that_of_its_data(tmp_path, visit, kind):
    page = visit(make(tmp_path / kind, kind))
    drawn(page)
    axes_of(page, 1280)
    resized(page, 400)
    axes_of(page, 400)
    assert page.said == []


def axes_of(page, width: int) -> None:
    plots = page.evaluate(AXES)
    assert {"step-time", "throughput"} <= {plot["id"] for plot in plots}
    for plot in plots:
        assert plot["height"] >= 60, f"{plot['id']} has no room left to draw"
        for name in "xy":
            judge(plot["id"], name, plot[name], over_time=plot["overTime"])
    assert width_of(page) <= width
    # One time is at one place, on all of them.
    over_time = [plot for plot in plots if plot["overTime"]]
    assert len({tuple(plot["x"]["range"]) for plot in over_time}) == 1
    assert max(plot["left"] for plot in over_time) - min(plot["left"] for plot in over_time) <= 1
    assert max(plot["right"] for plot in over_time) - min(plot["right"] for plot in over_time) <= 1


def judge(plot: str, name: str, axis: dict, over_time: bool) -> None:
    if axis["type"] == "category" or not axis["values"]:
        return
    low, high = sorted(axis["range"])
    least, most = min(axis["values"]), max(axis["values"])
    if axis["type"] == "log":
        positive = [value for value in axis["values"] if value > 0]
        least, most = math.log10(min(positive)), math.log10(max(positive))
        assert high - low <= most - least + 2, f"{plot}: {name} shows 10^{low:.0f} to 10^{high:.0f}"
    if axis["stacked"]:
        assert high >= most, f"{plot}: {name}"
        return
    slack = 1e-6 * (high - low)
    assert low - slack <= most <= high + slack, f"{plot}: {name} ends at {high}, and its data at {most}"
    if name == "x" and over_time:
        return  # all have one axis, from the job's beginning on; samples may be older
    assert low - slack <= least, f"{plot}: {name} begins at {low}, and its data at {least}"
    used = (most - min(0, least) if low <= 0 else most - least) / (high - low)
    assert used >= 0.25 or most == least, f"{plot}: {name} is used to {used:.0%}"


@pytest.mark.parametrize("width", [1280, 400])
def test_bars_of_the_timeline_stand_over_the_shades_of_the_plots(tmp_path, visit, width):
    page = visit(make(tmp_path / "stall", "stall"), width=width)
    drawn(page)
    assert page.locator(".timeline").bounding_box()["y"] < page.locator("#step-time").bounding_box()["y"]
    bars = page.evaluate(
        """() => [...document.querySelectorAll(".track .fault-bar")].map((bar) => {
          const plot = document.getElementById("step-time"), axis = plot._fullLayout.xaxis;
          const at = (name) => plot.getBoundingClientRect().left + axis._offset
            + axis.l2p(Number(bar.style.getPropertyValue(name)));
          const box = bar.getBoundingClientRect();
          return [box.left - at("--begin"), box.right - at("--end"), box.width];
        })"""
    )
    assert len(bars) == 2
    for left, right, wide in bars:
        assert abs(left) <= 2 and abs(right) <= 2, "pixels between a bar and its shade"
        assert wide > 10


def test_a_zoom_is_a_zoom_of_all_plots_over_time_and_of_the_timeline(tmp_path, visit):
    page = visit(make(tmp_path / "stall", "stall"))
    drawn(page)
    whole = page.evaluate("document.getElementById('step-time')._fullLayout.xaxis.range")
    page.evaluate("Plotly.relayout('step-time', {'xaxis.range[0]': 20, 'xaxis.range[1]': 30})")
    until(page, "document.getElementById('scrape-gaps')._fullLayout.xaxis.range[0] === 20")
    ranges = page.evaluate("[...document.querySelectorAll('.over-time .plot')].map((it) => it._fullLayout.xaxis.range)")
    assert ranges == [[20, 30]] * len(ranges)
    style = "document.querySelector('.timeline').style.getPropertyValue('--first')"
    assert float(page.evaluate(style)) == 20
    page.evaluate("Plotly.relayout('step-time', {'xaxis.autorange': true})")
    until(page, f"document.getElementById('scrape-gaps')._fullLayout.xaxis.range[0] === {whole[0]}")
    assert float(page.evaluate(style)) == pytest.approx(whole[0])
    assert page.said == []


# ---- the map

CROSSED = """() => {
  const map = [...document.querySelectorAll("svg.topology")].find((each) => each.checkVisibility());
  const inside = (one, other) => one.left >= other.left - 1 && one.right <= other.right + 1
    && one.top >= other.top - 1 && one.bottom <= other.bottom + 1;
  const paths = [...map.querySelectorAll("path.fiber")];
  const labels = [...map.querySelectorAll("g.label")];
  const said = labels.flatMap((label) => [...label.querySelectorAll("text")].map((text) => [label, text]));
  const frame = map.getBoundingClientRect();
  const sizes = [...map.querySelectorAll("text")].map((text) =>
    parseFloat(getComputedStyle(text).fontSize) * frame.width / map.viewBox.baseVal.width);
  return {
    labels: labels.length,
    // A label is on paper of its own, which is as wide as its words and drawn after every fiber.
    bare: said.filter(([label, text]) => !inside(text.getBoundingClientRect(),
      label.querySelector("rect").getBoundingClientRect())).map(([, text]) => text.textContent),
    under: said.filter(([, text]) => paths.some((path) =>
      text.compareDocumentPosition(path) & Node.DOCUMENT_POSITION_FOLLOWING)).length,
    clear: labels.filter((label) => getComputedStyle(label.querySelector("rect")).fill === "none").length,
    outside: [...map.querySelectorAll("text")].filter((text) => !inside(text.getBoundingClientRect(), frame))
      .map((text) => text.textContent),
    smallest: Math.min(...sizes), wide: frame.right,
  };
}"""
LONG = "a-very-long-name-of-forty-characters-no-"


def with_topology(path: Path, sites: list[str], pairs: list[tuple[int, int]], name: str) -> Path:
    """The factory's run on another topology, with its cut on the first link."""
    run_factory.make_run(path)
    document = run_factory.topology()
    links = [f"{name}{number:03}"[-40:] for number in range(len(pairs))]
    document["sites"] = [{"name": it, "nodes": 2, "power": it} for it in sites]
    document["links"] = [
        {**document["links"][0], "name": link, "between": [sites[one], sites[other]], "via": [link]}
        for link, (one, other) in zip(links, pairs, strict=True)
    ]
    (path / "topology.json").write_text(json.dumps(document))
    events = (path / "events.jsonl").read_text().replace('"north"', json.dumps(links[0]))
    (path / "events.jsonl").write_text(events)
    write_report(RunDirectory.open(path))
    return path


@pytest.mark.parametrize(
    ("sites", "long"),
    [(2, False), (2, True), (5, False), (5, True), (16, False), (64, False), (64, True)],
)
def test_labels_of_the_map_are_readable_and_not_crossed_out(tmp_path, visit, sites, long):
    names = [f"{LONG if long else 'site'}{number:02}"[-40:] for number in range(sites)]
    pairs = [(number, (number + 1) % sites) for number in range(sites)]
    page = visit(with_topology(tmp_path / "run", names, pairs, LONG if long else "link"))
    drawn(page)
    for width in (1280, 768, 400):
        resized(page, width)
        seen = page.evaluate(CROSSED)
        assert seen["labels"] >= 1
        assert (seen["bare"], seen["under"], seen["clear"], seen["outside"]) == ([], 0, 0, [])
        assert seen["smallest"] >= 11.5, "pixels"
        assert seen["wide"] <= width
        assert width_of(page) <= width


# ---- narrow pages, no script, paper


def test_a_table_that_scrolls_says_so(tmp_path, visit):
    path = make(tmp_path / "stall", "stall")
    narrow, wide = visit(path, width=400), visit(path, width=1280)
    hint = "getComputedStyle(it, '::before').content"
    scrolls = narrow.locator(".scroll:visible").evaluate_all(
        f"all => all.map((it) => [it.scrollWidth > it.clientWidth, {hint}])"
    )
    assert any(needed for needed, _ in scrolls)
    for needed, said in scrolls:
        assert ("scrolls sideways" in said) is needed
    assert wide.locator(".scroll.overflows:visible").count() == 0


def test_without_javascript_the_facts_and_the_timeline_are_there_and_no_empty_box(tmp_path, browser):
    path = make(tmp_path / "stall", "stall")
    page = browser.new_page(viewport={"width": 1280, "height": 900}, java_script_enabled=False)
    page.goto((path / "index.html").as_uri())
    assert page.locator("noscript p").first.is_visible()
    assert page.locator(".plot:visible").count() == 0
    assert page.locator(".track .fault-bar:visible").count() == 2
    assert page.locator("svg.topology:visible").count() == 1
    assert page.get_by_text("Time between commits").is_visible(), "what a plot would show, in words"
    page.close()


@pytest.mark.parametrize("kind", ["stall", "one-step"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_paper_is_light_and_cuts_nothing_off(tmp_path, visit, kind, scheme):
    page = visit(make(tmp_path / kind, kind), scheme=scheme)
    drawn(page)
    # What a browser does before it prints, on a page as wide as a sheet of A4 within its margins.
    page.set_viewport_size({"width": 688, "height": 1000})
    page.emulate_media(media="print", color_scheme=scheme)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    until(page, "[...document.querySelectorAll('.plot')].every((it) => it._fullLayout.width <= 688)")
    background = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--paper')").strip()
    assert background == "#ffffff"
    texts = page.evaluate("[...document.querySelectorAll('.plot')].map((it) => it._fullLayout.font.color)")
    assert set(texts) == {"#5a6472"}, "that of the light theme"
    assert width_of(page) <= 688
    cut_off = page.evaluate(
        """() => [...document.querySelectorAll("table, .main-svg, svg.topology, .tile")].filter((each) =>
          each.checkVisibility() && (each.getBoundingClientRect().right > 689 || each.parentElement.scrollWidth >
            each.parentElement.clientWidth + 1 && getComputedStyle(each.parentElement).overflowX !== "visible"))
          .map((each) => each.getAttribute("aria-label") || each.className.baseVal || each.tagName)"""
    )
    assert cut_off == []
    overlapping = page.evaluate(
        """() => [...document.querySelectorAll("figure")].filter((each) => [...each.querySelectorAll(".main-svg")]
          .some((plot) => plot.getBoundingClientRect().bottom > each.getBoundingClientRect().bottom + 1)).length"""
    )
    assert overlapping == 0, "a plot that is drawn over what follows it"
    assert page.locator("details:not([open])").count() == 0, "folded parts cannot be unfolded on paper"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0
    assert page.said == []


def test_it_prints_to_a_document_of_several_pages(tmp_path, visit):
    page = visit(make(tmp_path / "stall", "stall"), scheme="dark")
    drawn(page)
    document = page.pdf(format="A4", print_background=True)
    assert document.startswith(b"%PDF-")
    pages = len(re.findall(rb"/Type\s*/Page\b", document))
    assert 4 <= pages <= 20
