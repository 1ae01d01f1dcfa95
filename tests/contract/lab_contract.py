"""Contract of a lab of two sites and two fibers, for every driver. Subclass it and provide ``lab`` and ``inside``.

``inside(node, *argv)`` is the oracle: it runs a program in a node or gateway without any code of the testbed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from oracles import oracle

from testbed.lab.lab import Lab

FILE = "sites: {east: {nodes: 1}, west: {nodes: 1}}\nscale: 1000\nlinks:\n" + "".join(
    f"  {name}: {{between: [east, west], km: {km}, optics: 800ZR}}\n" for name, km in (("north", 40), ("south", 47))
)
Inside = Callable[..., str]


class LabContract:
    driver = ""

    def test_every_fiber_is_certified(self, lab: Lab) -> None:
        assert lab.certificate is not None and lab.certificate.certified, lab.certificate
        assert lab.certificate.around_ok
        for link, target_s in zip(lab.certificate.links, (200e-6, 235e-6), strict=True):
            for direction in link.directions:
                assert direction.measured is not None and direction.bare is not None, direction
                # No packet is faster than its fiber, but what the host takes beside it varies, and is taken off.
                host_varies_s = direction.bare.median - direction.bare.min
                assert direction.measured.min >= target_s - host_varies_s, direction
                assert direction.measured.min - direction.bare.min - target_s < 100e-6, direction

    def test_addresses_and_routes_are_those_of_the_plan(self, lab: Lab, inside: Inside) -> None:
        addresses = {
            (it["ifname"], address["local"])
            for it in json.loads(inside("east-gw", "ip", "-j", "addr"))
            for address in it["addr_info"]
            if address["scope"] == "global"
        }
        assert addresses == {
            ("fabric", "10.1.0.1"), ("fabric", "fd5c:a1e:ac05:1::1"), ("mgmt0", "172.31.0.4"),
            ("north", "10.255.0.0"), ("north", "fd5c:a1e:ac05:ffff::"),
            ("south", "10.255.0.2"), ("south", "fd5c:a1e:ac05:ffff::2"),
        }  # fmt: skip
        routes = json.loads(inside("east-gw", "ip", "-j", "route", "show", "10.2.0.0/16"))
        assert [(it["dev"], it["metric"]) for it in routes] == [("north", 10), ("south", 20)]
        assert inside("east-gw", "cat", "/proc/sys/net/ipv4/conf/all/ignore_routes_with_linkdown").strip() == "1"
        for interface in ("fabric0", "mgmt0"):
            assert json.loads(inside("east-0", "ip", "-j", "link", "show", interface))[0]["mtu"] == 1500

    def test_a_ping_takes_the_round_trip_of_the_shorter_fiber(self, lab: Lab, inside: Inside) -> None:
        for address in ("10.2.1.1", "fd5c:a1e:ac05:2::101"):
            words = inside("east-0", "ping", "-c", "20", "-i", "0.05", "-q", address)
            assert 0.4 <= float(words.rpartition("= ")[2].split("/")[0]) < 1.0, words

    def test_the_management_network_is_no_way_around(self, lab: Lab, inside: Inside) -> None:
        (address,) = (
            it["addr_info"][0]["local"]
            for it in json.loads(inside("west-0", "ip", "-4", "-j", "addr", "show", "mgmt0"))
        )
        with pytest.raises(Exception, match="ping"):
            inside("east-0", "ping", "-c", "1", "-W", "1", address)

    def test_a_cut_is_a_lost_carrier_on_both_gateways_and_undone(self, lab: Lab, inside: Inside) -> None:
        def carriers() -> set[bool]:
            return {
                "LOWER_UP" in json.loads(inside(gateway, "ip", "-j", "link", "show", "north"))[0]["flags"]
                for gateway in ("east-gw", "west-gw")
            }

        assert carriers() == {True}
        with lab.cut("north"):
            oracle.until(lambda: carriers() == {False}, 5, "both gateways see no carrier")
            inside("east-0", "ping", "-c", "1", "-W", "2", "10.2.1.1")  # by the other fiber
        oracle.until(lambda: carriers() == {True}, 5, "both gateways see the carrier")

    def test_a_program_runs_once_per_rank(self, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "who.py").write_text("import os, socket; print(os.environ['RANK'], socket.gethostname())\n")
        tmp_path.chmod(0o777)  # programs are not root, and in containers must be able to write where they start
        monkeypatch.chdir(tmp_path)
        lines: list[str] = []
        # The image's Python, or the host's: not one below /root, which programs cannot use.
        assert (
            lab.launch(
                ["/usr/bin/env", "PATH=/opt/testbed/bin:/usr/bin", "python3", "who.py"],
                directory=tmp_path,
                echo=lines.append,
            ).exit_status()
            == 0
        )
        assert sorted(lines) == ["[rank 0] 0 east-0", "[rank 1] 1 west-0"]

    def test_a_node_waits_for_no_name_server(self, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With a host name server in 10.0.0.0/8, each name that is not in /etc/hosts would take 10 s."""
        tmp_path.chmod(0o777)
        monkeypatch.chdir(tmp_path)
        said: list[str] = []
        assert (
            lab.launch(["grep", "^nameserver", "/etc/resolv.conf"], directory=tmp_path, echo=said.append).exit_status()
            == 0
        )
        assert sorted(said) == [f"[rank {rank}] nameserver 127.0.0.1" for rank in (0, 1)]

    @pytest.mark.thorough
    def test_a_failed_program_is_its_status_and_the_others_end(
        self, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tmp_path.chmod(0o777)
        monkeypatch.chdir(tmp_path)
        mark = f"1{tmp_path.stat().st_ino}"  # a unique sleep time
        script = f"import os, sys, time; sys.exit(7) if os.environ['RANK'] == '0' else time.sleep({mark})"
        assert lab.launch(["python3", "-c", script], directory=tmp_path).exit_status() == 7
        oracle.until(lambda: not any(mark in " ".join(words) for _, words, _ in oracle.processes()), 10, "rank 1 ends")

    def test_ranks_train_across_the_fibers(self, lab: Lab) -> None:
        lab.train(steps=8).wait(120)
        report = lab.report()
        assert report.run.driver == self.driver
        assert report.training.steps_committed == 8

    def test_exec_passes_the_status_on(self, lab: Lab) -> None:
        assert lab.exec("east-gw", ["true"]) == 0
        assert lab.exec("plant", ["sh", "-c", "exit 9"]) == 9

    def test_status_tells_the_driver_and_the_carriers(self, lab: Lab) -> None:
        status = lab.status()
        assert (status.state, status.driver) == ("up", self.driver)
        assert all(all(link.carrier.values()) for link in status.links)
