"""Topology files: defaults, ``--set``, origins, and the SI value of each field."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from builders.inputs import by_input
from builders.tables import table
from builders.topologies import METRO as METRO_40KM
from builders.topologies import topology
from hypothesis import given, settings
from hypothesis import strategies as st

import testbed
from testbed.core.topology import names, override, topology_limits
from testbed.core.topology.model import Topology, topology_from_dict, topology_to_dict
from testbed.core.topology.resolve import load_text
from testbed.core.units import Unreadable
from testbed.errors import FileMistakes, UnknownName, UserError

SHIPPED = sorted((Path(__file__).parents[4] / "topologies").glob("*.yaml"))
METRO = """\
sites:
  east: {nodes: 2}
  west:
links:
  north: {between: [east, west], km: 40}
  south: {between: [east, west], km: 47, fiber: g652}
"""


def metro(changes: str = "") -> Topology:
    return topology(METRO, changes, "folder/metro.yaml")


def test_defaults_are_those_of_the_reference() -> None:
    lab = metro()
    assert (lab.name, lab.scale, lab.routing, lab.seed) == ("metro", 1000, "shortest", 0)
    sites = [(site.name, site.nodes, site.power) for site in lab.sites]
    assert sites == [("east", 2, "east"), ("west", 1, "west")]
    north = lab.link("north")
    assert (north.via, north.fiber, north.optics, north.waves) == (("north",), "smf", "800ZR", 1)
    assert (north.loss, north.mtu, north.protection) == (0.0, 1500, "route")
    assert (north.delay_s, north.rate_bps) == (0.0002, 800e6)
    assert north.queue_bytes == 20_000 + 1_000_000, "rate x delay, and 10 ms"
    assert {duct.name: duct.length_m for duct in lab.ducts} == {"north": 40_000, "south": 47_000}


def test_ducts_are_summed_and_shared() -> None:
    ring = topology((SHIPPED[0].parent / "regional-ring.yaml").read_text(), label="regional-ring.yaml")
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
    lab = topology(text, label=str(file))
    assert lab.name == file.stem
    assert text.startswith(f"# {file.stem}: ")
    plain = topology_to_dict(lab)
    assert json.loads(json.dumps(plain)) == plain, "lists, no tuples"
    assert topology_from_dict(plain) == lab
    assert topology_from_dict(plain).origins == lab.origins


def test_every_field_of_a_link() -> None:
    link = topology(
        "sites: {a: , b: }\nlinks:\n  ab: {between: [a, b], km: 100 km, fiber: hollow-core, optics: 400ZR, waves: 4,"
        " huts: 1, loss: 0.1%, buffer: 1 MB, optics_latency: 10us, mtu: 9000, protection: none}\nscale: 100\n"
    ).link("ab")
    assert link.delay_s == pytest.approx(350e-6 + 10e-6 + 0.1e-6)
    assert link.rate_bps == 16e9
    assert link.queue_bytes == round(16e9 * link.delay_s / 8) + 1_000_000
    assert (link.loss, link.mtu, link.protection, link.huts) == (0.001, 9000, "none", 1)


def test_a_rate_replaces_that_of_the_optics_and_is_scaled() -> None:
    assert metro("links.north.rate='100 Gb/s'").link("north").rate_bps == 100e6


def test_the_congestion_control_over_the_fibers_may_be_chosen() -> None:
    lab = metro("congestion=bbr")
    assert (lab.congestion, lab.origins["congestion"]) == ("bbr", "--set")
    assert topology_from_dict(topology_to_dict(lab)) == lab
    assert metro().congestion == "cubic"
    assert "congestion" not in topology_to_dict(metro()), "as versions write it that know of no choice"
    with pytest.raises(FileMistakes, match="vegas"):
        metro("congestion=vegas")


def test_load_by_the_library_is_that_of_the_catalog() -> None:
    assert testbed.load("metro-40km") == METRO_40KM


def test_one_site_needs_no_links() -> None:
    assert topology("sites: {a: {nodes: 3}}").links == ()


def test_set_with_wildcards_defaults_and_origins() -> None:
    lab = metro("links.*.fiber=hollow-core links.n*.km=80 sites.west.nodes=3 scale=100")
    assert [link.fiber for link in lab.links] == ["hollow-core"] * 2
    assert [link.length_m for link in lab.links] == [80_000, 47_000]
    assert (lab.site("west").nodes, lab.scale) == (3, 100)
    keys = ("links.north.km", "links.south.km", "links.south.mtu")
    assert [lab.origins[key] for key in keys] == ["--set", "folder/metro.yaml:6", "default"]


def test_set_may_fill_in_a_section_that_the_file_lacks() -> None:
    lab = metro("defaults.link.loss=1%")
    assert lab.link("north").loss == 0.01
    assert lab.origins["links.north.loss"] == "--set"


@by_input(
    "change, said",
    {
        "links.nort.km=1": "unknown link 'nort'; did you mean north?",
        "links.north.kn=1": "did you mean links.north.km",
        "links.north=1": "unknown field 'links.north'",
        "ducts.north=1": "unknown duct 'north'",
        "scael=1": "did you mean scale?",
        "defaults.link.km=1": "unknown field",
        "links.north.km=-1": "--set links.north.km: km of link 'north': -1 is out of range",
        "links.north.km=[": "--set links.north.km: a bracket is not closed",
        "links.north.km='!!python/none x'": "YAML tag",
        "links.north.via='[a, b]'": "has both km and via",
    },
)
def test_set_that_cannot_be(change: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        metro(change)
    assert said in str(caught.value)


def test_set_of_python_values() -> None:
    assert load_text(METRO.encode(), "x.yaml", {"links.n*.km": 80}).link("north").length_m == 80_000
    with pytest.raises(UserError) as caught:
        load_text(METRO.encode(), "x.yaml", {"sites.*.nodes": object()})
    assert "expected a whole number" in str(caught.value)


def test_set_splits_at_the_first_equals_sign() -> None:
    assert override.split("a.b = c=d") == ("a.b", "c=d")
    for bad in ("a.b", "=1", ""):
        with pytest.raises(UserError, match="KEY=VALUE"):
            override.split(bad)


def test_set_does_not_hide_the_mistakes_of_the_file() -> None:
    with pytest.raises(FileMistakes, match="links: expected a mapping of names"):
        topology("sites: {a: }\nlinks: [1]\n", "links.north.km=1")
    with pytest.raises(UnknownName):
        topology("sites: {a: }\n", "links.north.km=1")


def test_all_mistakes_of_all_kinds_at_once() -> None:
    with pytest.raises(FileMistakes) as caught:
        topology(
            "scael: 1\nsites: {a: {nodes: 0}, b: {nods: 1}}\nlinks:\n  ab: {between: [a, c], km: -1, optics: 9ZR}\n"
        )
    assert [finding.line for finding in caught.value.findings] == [1, 2, 2, 4, 4, 4]


@by_input(
    "label, name",
    {
        "/x/My Lab (2).yaml": "my-lab-2",
        "7.yml": "topology-7",
        "plant.yaml": "topology-plant",
        f"{'x' * 200}.yaml": "x" * 40,
    },
)
def test_names_of_files_become_names_of_topologies(label: str, name: str) -> None:
    assert topology("sites: {a: }\n", label=label).name == name


@given(st.from_regex(r"[a-z][a-z0-9-]{0,44}", fullmatch=True), st.sampled_from(["site", "link", "duct", "topology"]))
def test_names_have_at_most_forty_characters(name: str, kind: str) -> None:
    try:
        names.check_name(kind, name)
    except Unreadable as refusal:
        assert len(name) <= 40 or "--" in name or name[-1] == "-" or refusal.fix == "use at most 40"
    else:
        assert len(name) <= 40


def test_the_largest_topology_loads_in_seconds() -> None:
    sites = "".join(f"  s{i}: {{nodes: {5 if i < 23 else 4}}}\n" for i in range(topology_limits.MOST_SITES))
    # each site to the next, then to the one after it
    links = "".join(
        f"  l{i}: {{between: [s{i % 200}, s{(i + 1 + i // 200) % 200}], km: 10}}\n"
        for i in range(topology_limits.MOST_LINKS)
    )
    lab = topology(f"sites:\n{sites}links:\n{links}")
    assert len(lab.links) == topology_limits.MOST_LINKS
    assert len(lab.node_names) + len(lab.sites) == topology_limits.BRIDGE_PORTS


def many(entry: str, count: int) -> str:
    """``entry`` with its ``#`` counted, between commas."""
    return ", ".join(entry.replace("#", str(index)) for index in range(count))


def test_a_lab_has_at_most_as_many_links_as_fiberd_makes_room_for() -> None:
    links = many("l#: {between: [a1, b1], km: 10}", topology_limits.MOST_LINKS + 1)
    with pytest.raises(FileMistakes) as error:
        topology(f"sites: {{a1: {{}}, b1: {{}}}}\nlinks: {{{links}}}\n")
    assert [*map(str, error.value.findings)] == ["lab.yaml:2: too many links: 257; use at most 256"]
    assert topology_limits.MOST_DIRECTIONS == 2 * topology_limits.MOST_LINKS


LONG = "s" * 900
HOSTILE = {
    "sites": f"sites: {{{many('s#: ', 12_000)}}}\nlinks: {{{many('l#: {between: [x#, y#]}', 6_000)}}}\n",
    "keys": f"{{{many('sitse#: ', 24_000)}}}",
    "keys of a link": f"sites: {{a: }}\nlinks: {{ab: {{{many('kn#: 1', 12_000)}}}}}\n",
    "ducts": f"sites: {{a: }}\nducts: {{{many('d#: 1', 12_000)}}}\nlinks: {{ab: {{via: [{many('e#', 12_000)}]}}}}\n",
    "long names": f"sites: {{{many(LONG + '#: ', 200)}}}\nlinks: {{{many(f'l#: {{between: [{LONG}, b]}}', 500)}}}\n",
}


@table("text", HOSTILE)
def test_hostile_content_is_refused_in_seconds(text: str) -> None:
    began = time.process_time()
    with pytest.raises(FileMistakes) as caught:
        topology(text)
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
    with pytest.raises(ValueError, match="expected a resolved topology"):
        topology_from_dict(data)  # type: ignore[arg-type]


# ---- impair and toward

ASYMMETRIC = """\
defaults: {link: {impair: {jitter: 20us, rate: 400G}, toward: {west: {corrupt: 1e-9}}}}
sites: {east: , west: }
links:
  north:
    between: [east, west]
    km: 40
    impair: {loss: 0.01%, burst: 8}
    toward:
      west: {loss: 1%, delay: 250us}
  south: {between: [east, west], km: 47, optics: 400ZR, loss: 0.1%}
"""


def asymmetric(changes: str = "") -> Topology:
    return topology(ASYMMETRIC, changes)


def test_a_direction_may_differ_from_the_other() -> None:
    north = asymmetric().link("north")
    there, back = north.impairment("north:west"), north.impairment("north:east")
    assert (there.delay_s, there.loss, there.burst, there.jitter_s, there.corrupt) == (250e-6, 0.01, 8, 20e-6, 1e-9)
    assert (back.delay_s, back.loss, back.burst, back.jitter_s, back.corrupt) == (200e-6, 1e-4, 8, 20e-6, 0)
    for direction in (there, back):
        assert direction.rate_bps == 400e6, "the rate in the world over the scale"
        assert direction.queue_bytes == 400e6 * direction.delay_s / 8 + 500_000, "rate x its own delay, and 10 ms"
    assert (north.delay_s, north.loss, north.rate_bps) == (200e-6, 1e-4, 400e6), "what holds both ways"
    assert north.rtt_s == pytest.approx(450e-6)


def test_a_links_own_loss_and_optics_mean_more_than_the_default_impairment() -> None:
    lab = asymmetric("defaults.link.impair.loss=5% defaults.link.impair.burst=4")
    south = lab.link("south").impairment("south:east")
    assert (south.loss, south.burst) == (0.001, 4), "a default burst goes with any loss"
    assert south.rate_bps == 400e6, "of the optics, not because the default says the same"
    assert asymmetric("links.south.optics=800ZR").link("south").rate_bps == 800e6


def test_a_plain_link_has_no_impairments_of_its_own_and_an_old_topology_is_read() -> None:
    assert metro().link("north").impairments == ()
    plain = topology_to_dict(metro())
    for link in plain["links"]:
        del link["impairments"]
    assert topology_from_dict(plain) == metro()


def test_asymmetric_links_go_through_json() -> None:
    plain = json.loads(json.dumps(topology_to_dict(asymmetric())))
    plain["links"][0]["impairments"][0]["of a later version"] = 1
    read = topology_from_dict(plain)
    assert read == asymmetric()
    assert read.link("north").impairment("north:west").delay_s == 250e-6


def test_set_reaches_into_impair_and_toward() -> None:
    lab = asymmetric(
        "links.north.impair.loss=2% links.*.toward.west.delay=300us links.south.toward.e*.corrupt=1e-6"
        " links.south.impair='{overhead: 38 B}'"
    )
    north, south = lab.link("north"), lab.link("south")
    assert north.impairment("north:east").loss == 0.02
    assert north.impairment("north:west").loss == 0.01, "toward has the last word"
    assert north.impairment("north:west").delay_s == south.impairment("south:west").delay_s == 300e-6
    assert (south.impairment("south:east").corrupt, south.impairment("south:west").corrupt) == (1e-6, 1e-9)
    assert south.impairment("south:east").overhead_bytes == 38
    origins = {
        "links.north.impair.loss": "--set",
        "links.north.loss": "--set",
        "links.north.impair.burst": "lab.yaml:7",
        "links.north.impair.jitter": "lab.yaml:1",
        "links.north.toward.west.loss": "lab.yaml:9",
        "links.north.toward.west.delay": "--set",
        "links.south.impair.overhead": "--set",
        "links.north.rate": "lab.yaml:1",
        "links.south.impair.rate": None,  # hidden by its optics
    }
    assert {key: lab.origins.get(key) for key in origins} == origins


@by_input(
    "key, offered",
    {
        "links.north.impair.los": "impair.loss",
        "links.*.toward.wets.loss": "west",
        "links.*.toward.west.colour": "toward.west.loss",
        "links.*.toward.west.loss.x": r"toward.SITE.loss",
        "links.north.km.impair": "links.north.km",
        "defaults.link.impair.los": "defaults.link.impair.loss",
        "defaults.link.toward.mars.loss": "east",
    },
)
def test_set_of_an_impairment_that_is_not_there_offers_the_nearest(key: str, offered: str) -> None:
    with pytest.raises(UnknownName, match=offered):
        asymmetric(f"{key}=1%")


@given(
    st.dictionaries(
        st.sampled_from(["loss", "delay", "burst", "jitter", "rate", "p", "r", "corrupt", "colour"]),
        st.one_of(
            st.floats(-1, 20), st.sampled_from(["1%", "5ms", "8", "400G", "", "x"]), st.none(), st.lists(st.none())
        ),
        max_size=4,
    ),
    st.sampled_from(["impair", "toward"]),
)
@settings(max_examples=100, deadline=None)
def test_any_impairment_is_resolved_or_refused_with_its_place(written: dict[str, object], where: str) -> None:
    north = {"between": ["east", "west"], "km": 9, where: written if where == "impair" else {"west": written}}
    text = json.dumps({"sites": {"east": None, "west": None}, "links": {"north": north}})
    try:
        link = topology(text).link("north")
    except FileMistakes as error:
        assert all(it.line == 1 and "link 'north'" in it.message for it in error.findings), str(error)
    else:
        assert not [finding for name in link.directions for finding in link.impairment(name).findings()]


@by_input(
    "changes, calibrated",
    {
        "": [True, True],
        "links.north.calibrate=false": [False, True],
        "defaults.link.calibrate=false links.south.calibrate=true": [False, True],
    },
)
def test_calibration_is_on_unless_a_link_or_the_default_says_otherwise(changes: str, calibrated: list[bool]) -> None:
    assert [link.calibrate for link in metro(changes).links] == calibrated


def test_calibration_is_true_or_false_and_older_versions_had_no_choice() -> None:
    with pytest.raises(FileMistakes, match="calibrate of link 'north': expected true or false"):
        metro("links.north.calibrate=sometimes")
    written = topology_to_dict(metro())
    del written["links"][0]["calibrate"]
    assert topology_from_dict(written) == metro()
