"""The drawing of a topology: labels lie on no other label and no site, and everything has a name somewhere."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable

import pytest
from builders.random_topology import link_between
from builders.reports import fault
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.report.figures.drawing import draw
from testbed.core.report.figures.drawing_parts import SMALL, Drawing, Label, wrapped
from testbed.core.report.figures.fault_effects import Effect
from testbed.core.report.sections.faults_section import Fault
from testbed.core.topology.model import Site, Topology

LONG = "a-very-long-name-of-forty-characters-no-"


def topology(sites: int, pairs: list[tuple[int, int]], name: str = "site", nodes: int = 2) -> Topology:
    names = [f"{name}{number:02}"[-40:] for number in range(sites)]
    links = tuple(
        link_between(link, (names[a], names[b]), 40.0)
        for number, (a, b) in enumerate(pairs)
        for link in [f"{name.replace('site', 'link')}{number:03}"[-40:]]
    )
    return Topology("t", 1000.0, tuple(Site(name, nodes, name) for name in names), links)


def ring(sites: int) -> list[tuple[int, int]]:
    return [(number, (number + 1) % sites) for number in range(sites)]


def mesh(sites: int, name: str = "site") -> Topology:
    return topology(sites, list(itertools.combinations(range(sites), 2)), name)


CHORDS = [(one, (one + 7 * far) % 64) for one in range(64) for far in (1, 2, 3)]
SHAPES = {
    "one site": topology(1, []),
    "two sites, one link": topology(2, [(0, 1)]),
    "two sites, eight links": topology(2, [(0, 1)] * 8),
    "two sites, long names": topology(2, [(0, 1), (1, 0)], LONG, nodes=8),
    "triangle": topology(3, ring(3)),
    "triangle, long names": topology(3, [*ring(3), (0, 1)], LONG),
    "mesh of five": mesh(5),
    "mesh of eight, long names": mesh(8, LONG),
    "ring of 16": topology(16, ring(16)),
    "ring of 64": topology(64, ring(64)),
    "64 sites, 256 links, long names": topology(64, [*ring(64), *CHORDS], LONG),
    "200 sites": topology(200, ring(200)),
}


def faults_of(shown: Topology) -> tuple[tuple[Fault, ...], dict[str, Effect]]:
    """A cut of the first link, jitter on the second, and both on the third."""
    kinds = [(0, "cut"), (1, "jitter"), (2, "cut"), (2, "jitter")]
    made = [
        fault(kind, shown.links[at].name, fault=f"f{n}") for n, (at, kind) in enumerate(kinds) if at < len(shown.links)
    ]
    return tuple(made), {it.fault: Effect.CUT if it.type == "cut" else Effect.IMPAIRED for it in made}


def text_of(labels: Iterable[Label]) -> str:
    return " ".join(line.text for label in labels for line in label.lines)


def judge(drawing: Drawing, shown: Topology) -> None:
    boxes = [label.box for label in drawing.labels if label.lines]
    for a, b in itertools.combinations(boxes, 2):
        assert not a.overlaps(b), "a label lies on another"
    for box in boxes:
        assert not any(box.overlaps(site.box) for site in drawing.sites), "a label lies on a site"
        assert box.x >= 0 and box.x + box.width <= drawing.width
        assert box.y >= 0 and box.y + box.height <= drawing.height
    for label in drawing.labels:
        for line in label.lines:
            assert line.size >= 12
            assert label.box.x <= line.x - line.width / 2 + 0.1
            assert line.x + line.width / 2 <= label.box.x + label.box.width + 0.1
            assert label.box.y <= line.y - 0.8 * line.size
            assert line.y + 0.2 * line.size <= label.box.y + label.box.height
    # Every site and every link has its whole name: in the drawing, or in the key of its numbers.
    sites = "".join(line.text for site in drawing.sites for line in site.lines)
    keyed = {key.name for key in drawing.site_key}
    assert all(site.name in sites or site.name in keyed for site in shown.sites)
    linked = ["".join(line.text for line in label.lines) for label in drawing.labels]
    numbered = {key.name for key in drawing.link_key}
    for link in shown.links:
        assert link.name in numbered or any(link.name in text for text in linked), link.name
    # What faults touched is told wherever it is.
    touched = [fiber for fiber in drawing.fibers if fiber.effects]
    assert len(touched) == min(3, len(shown.links))
    for fiber in touched:
        assert fiber.css.split()[1:] == [effect.css for effect in fiber.effects]


@pytest.mark.parametrize("name", SHAPES)
def test_labels_are_free_and_everything_is_named(name: str) -> None:
    shown = SHAPES[name]
    wide, medium, narrow = draw(shown, *faults_of(shown))
    assert (wide.width, medium.width, narrow.width) == (920, 660, 344)
    for drawing in (wide, medium, narrow):
        judge(drawing, shown)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_of_any_topology(data: st.DataObject) -> None:
    sites = data.draw(st.integers(2, 30))
    pair = st.lists(st.integers(0, sites - 1), min_size=2, max_size=2, unique=True).map(tuple)
    pairs = data.draw(st.lists(pair, min_size=1, max_size=60))
    shown = topology(sites, pairs, data.draw(st.sampled_from(["site", LONG, "san-francisco-"])))  # type: ignore[arg-type]
    for drawing in draw(shown, *faults_of(shown)):
        judge(drawing, shown)


def test_an_impairment_is_not_drawn_as_a_cut() -> None:
    shown = topology(2, [(0, 1)] * 3)
    for drawing in draw(shown, *faults_of(shown)):
        cut, jitter, both = drawing.fibers
        assert (cut.css, jitter.css, both.css) == ("fiber cut", "fiber impaired", "fiber cut impaired")
        assert [effect for effect, _ in jitter.signs] == [Effect.IMPAIRED]
        assert [effect for effect, _ in both.signs] == [Effect.CUT, Effect.IMPAIRED]
        assert drawing.effects == (Effect.CUT, Effect.IMPAIRED), "what the legend explains"


def test_a_link_that_no_fault_touched_is_plain() -> None:
    shown = topology(2, [(0, 1)] * 2)
    for drawing in draw(shown):
        assert [fiber.css for fiber in drawing.fibers] == ["fiber", "fiber"]
        assert drawing.effects == ()


def test_many_faults_of_a_link_are_counted() -> None:
    shown = topology(2, [(0, 1)])
    faults = tuple(fault("flap", "link000", fault=f"f{number}") for number in range(7))
    drawing = draw(shown, faults, {fault.fault: Effect.CUT for fault in faults})[0]
    assert text_of(drawing.labels).count("flap") == 2
    assert "and 5 faults more" in text_of(drawing.labels)


def test_a_rate_is_followed_by_what_it_stands_for() -> None:
    shown = topology(2, [(0, 1)])
    assert "40 km · 200 us · 800 Mb/s for 800 Gb/s" in text_of(draw(shown)[0].labels)
    assert "for" not in text_of(draw(dataclasses.replace(shown, scale=1.0))[0].labels)


def test_lines_break_between_words_and_never_before_a_unit() -> None:
    lines = [it.text for it in wrapped("40 km · 200 us · 800 Mb/s for 800 Gb/s", "", SMALL, 120)]
    assert all(not line[:1].isalpha() or line.split()[0] == "for" for line in lines), lines
    assert " ".join(lines) == "40 km · 200 us · 800 Mb/s for 800 Gb/s"
    assert [it.text for it in wrapped("san-francisco", "", SMALL, 50)] == ["san-", "franci", "sco"]
    assert wrapped("", "", SMALL, 50) == ()
