"""Contract of a lab whose names have 40 characters, for every driver. Subclass it and provide ``lab`` and ``inside``.

As in ``lab_contract.py``, ``inside(node, *argv)`` is the oracle: it runs a program in a node or gateway without any
code of the testbed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from contract.lab_contract import Inside
from oracles import oracle

from testbed.host import lab_folder
from testbed.keeper import client
from testbed.lab.lab import Lab

SITES = ("frankfurt-am-main-east-campus-building-2", "san-francisco-mission-bay-campus-north-1")
LINKS = ("frankfurt-to-san-francisco-first-route-a", "frankfurt-to-san-francisco-second-routes")
DUCT = "under-the-river-main-at-the-honsell-brid"
POWER = "pacific-gas-and-electric-substation-four"
FILE = f"""\
sites:
  {SITES[0]}: {{nodes: 1}}
  {SITES[1]}: {{nodes: 1, power: {POWER}}}
ducts: {{{DUCT}: 43 km}}
links:
  {LINKS[0]}: {{between: [{SITES[0]}, {SITES[1]}], km: 40}}
  {LINKS[1]}: {{between: [{SITES[0]}, {SITES[1]}], via: [{DUCT}]}}
"""
PEERS = """\
import os, socket, sys
found = {it[4][0] for it in socket.getaddrinfo(sys.argv[2 - int(os.environ["RANK"])], 1, type=socket.SOCK_STREAM)}
listener = socket.socket(socket.AF_UNIX)
listener.bind(os.path.join(os.environ.get("TMPDIR", "/tmp"), "listener-12345678"))
print(os.environ["RANK"], socket.gethostname(), " ".join(sorted(found)))
"""


def long_name(unused: str) -> str:
    """A lab's name of 40 characters that begins with ``unused``."""
    return f"{unused}-the-longest-name-of-a-lab".ljust(40, "x")


class LongNamesContract:
    def test_no_name_of_it_is_shorter_than_the_limit(self, lab: Lab) -> None:
        assert {len(it) for it in (lab.name, *SITES, *LINKS, DUCT, POWER)} == {40}

    def test_interfaces_have_their_full_name_as_alternative(self, lab: Lab, inside: Inside) -> None:
        found = {place: _names(inside(place, "ip", "-j", "link")) for place in (f"{SITES[0]}-gw", "plant", "mgmt")}
        nodes = [f"{site}-0" for site in SITES]
        assert found[f"{SITES[0]}-gw"] >= {*LINKS, nodes[0]}
        assert found["plant"] >= {f"{link}-{end}" for link in LINKS for end in "ab"}
        assert found["mgmt"] >= {*nodes, *(f"{site}-gw" for site in SITES)}

    def test_status_tells_the_interfaces(self, lab: Lab, inside: Inside) -> None:
        status = lab.status()
        gateway = _by_full_name(inside(f"{SITES[0]}-gw", "ip", "-j", "link"))
        plant = _by_full_name(inside("plant", "ip", "-j", "link"))
        assert {it.name: it.interface for it in status.links} == {link: gateway[link] for link in LINKS}
        assert [it.ends for it in status.links] == [(plant[f"{link}-a"], plant[f"{link}-b"]) for link in LINKS]
        assert [gateway[it.node] for it in status.ranks[:1]] == [status.ranks[0].port]

    @pytest.mark.alone
    def test_it_is_certified_and_nothing_goes_around(self, lab: Lab) -> None:
        assert lab.certificate is not None and lab.certificate.around_ok, lab.certificate
        directions = [direction for link in lab.certificate.links for direction in link.directions]
        assert {it.direction for it in directions} == {f"{link}:{site}" for link in LINKS for site in SITES}
        assert all(it.measured is not None for it in directions)

    def test_programs_find_each_other_by_name_and_make_sockets(
        self, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "peers.py").write_text(PEERS)
        tmp_path.chmod(0o777)  # in containers programs need a folder that they can write
        monkeypatch.chdir(tmp_path)
        lines: list[str] = []
        nodes = [f"{site}-0" for site in SITES]
        words = ["/usr/bin/env", "PATH=/opt/testbed/bin:/usr/bin", "python3", "peers.py", *nodes]
        assert lab.launch(words, directory=tmp_path, echo=lines.append).exit_status() == 0, lines
        peers = ["10.2.1.1 fd5c:a1e:ac05:2::101", "10.1.1.1 fd5c:a1e:ac05:1::101"]
        assert sorted(lines) == [f"[rank {rank}] {rank} {nodes[rank]} {peers[rank]}" for rank in (0, 1)]

    def test_faults_by_name_of_link_direction_duct_and_power_domain(self, lab: Lab, inside: Inside) -> None:
        gateways = [f"{site}-gw" for site in SITES]

        def dark() -> list[tuple[str, str]]:
            return [
                (site, link)
                for site, gateway in zip(SITES, gateways, strict=True)
                for link in LINKS
                if "LOWER_UP" not in _flags(inside(gateway, "ip", "-j", "link"), link)
            ]

        def told() -> list[tuple[str, str]]:
            links = lab.status().links
            return [(site, it.name) for site in SITES for it in links if not it.carrier[site]]

        targets = {
            LINKS[0]: [(site, LINKS[0]) for site in SITES],
            f"{LINKS[0]}:{SITES[1]}": [(SITES[1], LINKS[0])],
            DUCT: [(site, LINKS[1]) for site in SITES],
        }
        for target, expected in targets.items():
            with lab.cut(target):
                oracle.until(lambda expected=expected: dark() == expected, 5, f"{target} is dark")  # type: ignore[misc]
                assert told() == expected
            oracle.until(lambda: dark() == [], 5, "all fibers are lit")
        with lab.inject("power-loss", POWER):
            oracle.until(lambda: len(dark()) == 4, 5, "the gateway's fibers are dark")
            port = f"{SITES[1]}-0"
            oracle.until(lambda: "UP" not in _flags(inside("mgmt", "ip", "-j", "link"), port), 5, f"{port} is off")
        oracle.until(lambda: dark() == [], 5, "all fibers are lit")

    def test_events_name_the_links(self, lab: Lab) -> None:
        with lab.cut(LINKS[0]):
            pass
        oracle.until(lambda: len(_carriers(lab)) >= 4, 5, "both ends went down and came up")
        assert _carriers(lab) >= {(LINKS[0], site, up) for site in SITES for up in (False, True)}


def _names(said: str) -> set[str]:
    """All names of the interfaces; containerlab gives each an alternative name of its own, too."""
    links = json.loads(said)
    assert all(len(it["ifname"]) < 16 for it in links)
    return {name for it in links for name in (it["ifname"], *it.get("altnames", []))}


def _by_full_name(said: str) -> dict[str, str]:
    return {name: it["ifname"] for it in json.loads(said) for name in it.get("altnames", [])}


def _flags(said: str, name: str) -> list[str]:
    (flags,) = (it["flags"] for it in json.loads(said) if name in it.get("altnames", []))
    return flags  # type: ignore[no-any-return]


def _carriers(lab: Lab) -> set[tuple[Any, ...]]:
    return {(it["link"], it["site"], it["up"]) for it in _events(lab) if it["event"] == "carrier"}


def _events(lab: Lab) -> list[dict[str, Any]]:
    return client.keeper(lab_folder.folder(lab.name)).events(since=0)["events"]
