"""Topology files: defaults, ``--set``, origins, and what each value means in SI units."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.topology import names, override
from testbed.core.topology.model import topology_from_dict, topology_to_dict
from testbed.core.topology.resolve import load_text
from testbed.core.units import Unreadable
from testbed.errors import FileMistakes, UnknownName, UserError

SHIPPED = sorted((Path(__file__).parents[2] / "topologies").glob("*.yaml"))
METRO = b"""\
sites:
  east: {nodes: 2}
  west:
links:
  north: {between: [east, west], km: 40}
  south: {between: [east, west], km: 47, fiber: g652}
"""


def load(text: str, **overrides: object):  # type: ignore[no-untyped-def]
    return load_text(text.encode(), "lab.yaml", overrides)


def metro(overrides: dict[str, object] | None = None):  # type: ignore[no-untyped-def]
    return load_text(METRO, "folder/metro.yaml", overrides)


def test_defaults_are_those_of_the_reference() -> None:
    topology = metro()
    assert (topology.name, topology.scale, topology.routing, topology.seed) == ("metro", 1000, "shortest", 0)
    assert [(site.name, site.nodes, site.power) for site in topology.sites] == [
        ("east", 2, "east"),
        ("west", 1, "west"),
    ]
    north = topology.link("north")
    assert (north.via, north.fiber, north.optics, north.waves) == (("north",), "smf", "800ZR", 1)
    assert (north.loss, north.mtu, north.protection) == (0.0, 1500, "route")
    assert north.delay_s == 0.0002
    assert north.rate_bps == 800e6
    assert north.queue_bytes == 20_000 + 1_000_000, "rate x delay, and 10 ms"
    assert {duct.name: duct.length_m for duct in topology.ducts} == {"north": 40_000, "south": 47_000}


def test_ducts_are_summed_and_shared() -> None:
    ring = load_text((SHIPPED[0].parent / "regional-ring.yaml").read_bytes(), "regional-ring.yaml")
    assert [link.length_m for link in ring.links] == [90_000, 140_000, 110_000]
    assert ring.link("alba-brava").via == ("river-bridge", "motorway")
    assert [site.power for site in ring.sites] == ["grid-a", "grid-a", "grid-b"]
    assert [duct.name for duct in ring.ducts] == ["river-bridge", "motorway", "coast", "valley"]
    assert {link.optics for link in ring.links} == {"OpenZR+"}
    assert ring.origins["links.alba-brava.optics"] == "regional-ring.yaml:4"
    assert ring.origins["sites.costa.nodes"] == "regional-ring.yaml:5"


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_topologies_load_and_say_what_they_are(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    topology = load_text(text.encode(), str(file))
    assert topology.name == file.stem
    assert text.startswith(f"# {file.stem}: ")
    plain = topology_to_dict(topology)
    assert json.loads(json.dumps(plain)) == plain, "lists, no tuples"
    assert topology_from_dict(plain) == topology
    assert topology_from_dict(plain).origins == topology.origins


def test_every_field_of_a_link() -> None:
    link = load(
        "sites: {a: , b: }\nlinks:\n  ab: {between: [a, b], km: 100 km, fiber: hollow-core, optics: 400ZR, waves: 4,"
        " huts: 1, loss: 0.1%, buffer: 1 MB, optics_latency: 10us, mtu: 9000, protection: none}\nscale: 100\n"
    ).link("ab")
    assert link.delay_s == pytest.approx(350e-6 + 10e-6 + 0.1e-6)
    assert link.rate_bps == 16e9
    assert link.queue_bytes == round(16e9 * link.delay_s / 8) + 1_000_000
    assert (link.loss, link.mtu, link.protection, link.huts) == (0.001, 9000, "none", 1)


def test_a_rate_replaces_that_of_the_optics_and_is_scaled() -> None:
    assert metro({"links.north.rate": "100 Gb/s"}).link("north").rate_bps == 100e6


def test_one_site_needs_no_links() -> None:
    assert load("sites: {a: {nodes: 3}}").links == ()


def test_set_with_wildcards_defaults_and_origins() -> None:
    topology = metro({"links.*.fiber": "hollow-core", "links.n*.km": 80, "sites.west.nodes": "3", "scale": "100"})
    assert [link.fiber for link in topology.links] == ["hollow-core"] * 2
    assert [link.length_m for link in topology.links] == [80_000, 47_000]
    assert (topology.site("west").nodes, topology.scale) == (3, 100)
    assert topology.origins["links.north.km"] == "--set"
    assert topology.origins["links.south.km"] == "folder/metro.yaml:6"
    assert topology.origins["links.south.mtu"] == "default"


def test_set_may_fill_in_a_section_that_the_file_lacks() -> None:
    topology = metro({"defaults.link.loss": "1%"})
    assert topology.link("north").loss == 0.01
    assert topology.origins["links.north.loss"] == "--set"


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("links.nort.km", 1, "no link named 'nort'; did you mean north?"),
        ("links.north.kn", 1, "did you mean links.north.km"),
        ("links.north", 1, "no field named 'links.north'"),
        ("ducts.north", 1, "no duct named 'north'"),
        ("scael", 1, "did you mean scale?"),
        ("defaults.link.km", 1, "no field named"),
        ("links.north.km", "-1", "--set links.north.km: km of link 'north': -1 is negative"),
        ("links.north.km", "[", "--set links.north.km:1: a bracket that is not closed"),
        ("links.north.km", "!!python/none x", "YAML tag"),
        ("links.north.via", "[a, b]", "has both km and via"),
        ("sites.*.nodes", object(), "is not a whole number"),
    ],
)
def test_set_that_cannot_be(key: str, value: object, says: str) -> None:
    with pytest.raises(UserError) as caught:
        metro({key: value})
    assert says in str(caught.value)


def test_set_splits_at_the_first_equals_sign() -> None:
    assert override.split("a.b = c=d") == ("a.b", "c=d")
    for bad in ("a.b", "=1", ""):
        with pytest.raises(UserError, match="KEY=VALUE"):
            override.split(bad)


def test_set_does_not_hide_the_mistakes_of_the_file() -> None:
    with pytest.raises(FileMistakes, match="'links' must map names"):
        load_text(b"sites: {a: }\nlinks: [1]\n", "f.yaml", {"links.north.km": 1})
    with pytest.raises(UnknownName):
        load_text(b"sites: {a: }\n", "f.yaml", {"links.north.km": 1})


def test_all_mistakes_of_all_kinds_at_once() -> None:
    with pytest.raises(FileMistakes) as caught:
        load("scael: 1\nsites: {a: {nodes: 0}, b: {nods: 1}}\nlinks:\n  ab: {between: [a, c], km: -1, optics: 9ZR}\n")
    assert [finding.line for finding in caught.value.findings] == [1, 2, 2, 4, 4, 4]


def test_names_of_files_become_names_of_topologies() -> None:
    text = b"sites: {a: }\n"
    for label, name in (("/x/My Lab (2).yaml", "my-lab-2"), ("7.yml", "topology-7"), ("plant.yaml", "topology-plant")):
        assert load_text(text, label).name == name
    assert len(load_text(text, "x" * 200 + ".yaml").name) <= 32


@given(st.from_regex(r"[a-z][a-z0-9-]{0,14}", fullmatch=True))
def test_allowed_names_fit_an_interface(name: str) -> None:
    for kind, made in (("site", f"{name}-255"), ("link", f"{name}-a")):
        try:
            names.check_name(kind, name)
        except Unreadable:
            continue
        assert len(made) <= 15


def test_the_largest_topology_loads_in_seconds() -> None:
    sites = "".join(f"  s{i}: {{nodes: 5}}\n" for i in range(200))
    # each site to the next, to the one after it, and so on: 200 links a turn
    links = "".join(f"  l{i}: {{between: [s{i % 200}, s{(i + 1 + i // 200) % 200}], km: 10}}\n" for i in range(1000))
    assert len(load(f"sites:\n{sites}links:\n{links}").links) == 1000


def many(entry: str, count: int) -> str:
    """``entry`` with its ``#`` counted, between commas."""
    return ", ".join(entry.replace("#", str(index)) for index in range(count))


LONG = "s" * 900
HOSTILE = {
    "sites": f"sites: {{{many('s#: ', 12_000)}}}\nlinks: {{{many('l#: {between: [x#, y#]}', 6_000)}}}\n",
    "keys": f"{{{many('sitse#: ', 24_000)}}}",
    "keys of a link": f"sites: {{a: }}\nlinks: {{ab: {{{many('kn#: 1', 12_000)}}}}}\n",
    "ducts": f"sites: {{a: }}\nducts: {{{many('d#: 1', 12_000)}}}\nlinks: {{ab: {{via: [{many('e#', 12_000)}]}}}}\n",
    "long names": f"sites: {{{many(LONG + '#: ', 200)}}}\nlinks: {{{many(f'l#: {{between: [{LONG}, b]}}', 500)}}}\n",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_content_is_refused_in_seconds(text: str) -> None:
    began = time.process_time()
    with pytest.raises(FileMistakes) as caught:
        load(text)
    assert time.process_time() - began < 10
    assert len(caught.value.findings) <= 100


KEYS = st.sampled_from(
    ["sites", "links", "ducts", "defaults", "scale", "name", "a", "b", "north", "between", "km", "via", "link"]
)
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(["a", "b", "40 km"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)


@settings(max_examples=300, deadline=2000)
@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_any_content_loads_or_is_refused_with_findings(content: dict[str, object]) -> None:
    try:
        load_text(json.dumps(content).encode(), "f.yaml")
    except FileMistakes as error:
        assert error.findings
        str(error).encode("utf-8")  # printable, whatever the file held


@settings(max_examples=200, deadline=2000)
@given(st.binary(max_size=200))
def test_any_bytes_load_or_are_refused(text: bytes) -> None:
    try:
        load_text(text, "f.yaml")
    except FileMistakes as error:
        str(error).encode("utf-8")


@pytest.mark.parametrize("data", [{}, [], None, {"name": "x"}, {**topology_to_dict(metro()), "links": [{"name": "x"}]}])
def test_a_broken_record_is_a_value_error(data: object) -> None:
    with pytest.raises(ValueError, match="not a resolved topology"):
        topology_from_dict(data)  # type: ignore[arg-type]
