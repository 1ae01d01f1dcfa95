"""One run as on an ordinary kernel, from end to end: docker, containerlab, netem, a job, a cut and a heal.

Runs in the machine of ``vm.py`` (started by tests/containerlab/test_whole_on_netem.py), with a docker daemon of its own
in memory, which uses the layers of the outer daemon's image without a copy.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oracles import oracle

import testbed
from testbed.host.drivers import containerlab, images
from testbed.host.emulators.netem import available
from testbed.lab.progress import Silent

WHY_NOT = available() if os.geteuid() == 0 else "needs root"
if WHY_NOT:
    pytest.skip(f"netem: {WHY_NOT}; tests/containerlab/test_whole_on_netem.py runs this", allow_module_level=True)
if "TESTBED_VM_IMAGES" not in os.environ:
    pytest.skip("tests/containerlab/test_whole_on_netem.py runs this", allow_module_level=True)
pytestmark = pytest.mark.netns

LAYERS = Path(os.environ["TESTBED_VM_IMAGES"])
DATA = Path("/mnt/docker")
MODULES = (
    *("veth", "bridge", "overlay", "sch_netem", "sch_tbf", "sch_ingress"),
    *("act_mirred", "act_gact", "cls_matchall", "cls_u32"),
)
BOUND_S = 60.0
NAME = "whole"


def run(*words: str | Path, check: bool = True, timeout_s: float = 120.0) -> str:
    return subprocess.run(words, check=check, capture_output=True, text=True, timeout=timeout_s).stdout


def show_layers() -> None:
    """The outer daemon's images in ``DATA``: its records copied, its layers shown where they lie.

    docker's overlay2 needs a place whose file system is not itself an overlay for what it writes: that is memory.
    """
    DATA.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=1500m", "layers", DATA)
    shutil.copytree(LAYERS / "image", DATA / "image")
    shutil.copytree(LAYERS / "overlay2" / "l", DATA / "overlay2" / "l", symlinks=True)
    for cache_id in (DATA / "image" / "overlay2" / "layerdb" / "sha256").glob("*/cache-id"):
        layer = cache_id.read_text().strip()
        there, here = LAYERS / "overlay2" / layer, DATA / "overlay2" / layer
        here.mkdir()
        for record in ("link", "lower", "committed"):
            if (there / record).exists():
                shutil.copy(there / record, here / record)
        (here / "diff").mkdir()
        (here / "work").mkdir()
        run("mount", "--bind", there / "diff", here / "diff")


@pytest.fixture(scope="module")
def docker() -> Iterator[None]:
    run("modprobe", "-a", *MODULES)
    show_layers()
    address = "unix:///run/whole.sock"
    options = [f"--host={address}", f"--data-root={DATA}", "--exec-root=/run/whole", "--pidfile=/run/whole.pid"]
    options += ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"]
    with Path("/mnt/out/dockerd.log").open("wb") as log:
        daemon = subprocess.Popen(["dockerd", *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        os.environ["DOCKER_HOST"] = address
        until = time.monotonic() + BOUND_S
        while subprocess.run(["docker", "version"], capture_output=True).returncode != 0:
            assert daemon.poll() is None and time.monotonic() < until, Path("/mnt/out/dockerd.log").read_text()[-2000:]
            time.sleep(0.2)
        assert images.missing() == ""
        assert containerlab.missing() == ""
        yield
    finally:
        daemon.terminate()
        daemon.wait(30)


def inside(node: str, *words: str, check: bool = True) -> str:
    return run("docker", "exec", f"clab-{NAME}-{node}", *words, check=check)


def carriers(link: str) -> set[bool]:
    return {
        "LOWER_UP" in json.loads(inside(gateway, "ip", "-j", "link", "show", link))[0]["flags"]
        for gateway in ("east-gw", "west-gw")
    }


def qdiscs() -> dict[str, dict[str, Any]]:
    """{"north-a": {"netem": …, "tbf": …}}, as tc shows what stands in the plant."""
    found: dict[str, dict[str, Any]] = {}
    (pid,) = json.loads(run("docker", "inspect", f"clab-{NAME}-plant", "--format", "[{{.State.Pid}}]"))
    for it in json.loads(run("nsenter", f"--net=/proc/{pid}/ns/net", "tc", "-s", "-j", "qdisc", "show")):
        found.setdefault(it["dev"], {})[it["kind"]] = it
    return found


def test_the_whole_of_it(docker: None, state_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_DRIVER", "auto")
    said: list[str] = []

    def told(what: str) -> None:
        said.append(f"{time.monotonic() - began:.1f} s: {what}")
        print(said[-1], flush=True)

    class Phases(Silent):
        def phase(self, name: str, detail: str = "") -> None:
            told(name)

    began = time.monotonic()
    topology = testbed.load("metro-40km", set={"sites.east.nodes": 1, "sites.west.nodes": 1})
    # One noisy CPU may push a median out of tolerance; what was measured is judged below.
    with testbed.up(topology, name=NAME, allow_uncertified=True, progress=Phases()) as lab:
        told("up")
        status = lab.status()
        assert (status.driver, status.emulator) == ("containerlab", "netem"), "auto takes both where they are"
        running = set(run("docker", "ps", "--format", "{{.Names}}").split())
        nodes = ("east-0", "west-0", "east-gw", "west-gw", "plant", "mgmt")
        assert running == {f"clab-{NAME}-{node}" for node in nodes}

        for link, delay_s in (("north", 200e-6), ("south", 235e-6)):
            for end in (f"{link}-a", f"{link}-b"):
                standing = qdiscs()[end]
                assert standing["netem"]["options"]["delay"]["delay"] == pytest.approx(delay_s, abs=2e-6)
                assert standing["tbf"]["options"]["rate"] == 100_000_000, "800 Mb/s, in bytes per second"
        assert lab.certificate is not None
        for certified in lab.certificate.links:
            for direction in certified.directions:
                assert direction.measured is not None and direction.bare is not None
                error_s = direction.measured.median - direction.bare.median - direction.target_s
                assert abs(error_s) < 1e-3, direction
                assert direction.lost == 0
                # On this kernel a veth without checksum offload, as containerlab makes it, refuses super-packets.
                assert not [it.why for it in direction.checks if "could be sent" in it.why], direction
                # One CPU, which other tests may want too, need not fill the line; that it is not wider it can show.
                assert direction.rate is not None, direction
                assert 0.1 * 0.8e9 < direction.rate.measured_bps < 1.1 * 0.8e9, direction

        (address,) = re.findall(r"10\.2\.1\.1", inside("west-0", "ip", "-4", "addr", "show", "fabric0"))
        words = inside("east-0", "ping", "-c", "20", "-i", "0.1", "-q", address)
        assert 0.4 <= float(words.rpartition("= ")[2].split("/")[0]) < 10.0, words
        told("pinged")

        before = qdiscs()
        job = lab.train(steps=12)
        job.wait_for(step=3, timeout=120)
        told("two ranks train")
        assert carriers("north") == {True}
        with lab.cut("north"):
            oracle.until(lambda: carriers("north") == {False}, 10, "both gateways see no carrier")
            assert carriers("south") == {True}
            inside("east-0", "ping", "-c", "1", "-W", "5", address)
            told("north is dark, the ping takes south")
        oracle.until(lambda: carriers("north") == {True}, 10, "both gateways see the carrier")
        job.wait(180)
        told("the job is over")
        report = lab.report()
        assert report.run.driver == "containerlab"
        assert report.training.steps_committed == 12
        assert report.wire.ok is True, report.wire
        after = qdiscs()
        moved = sum(after[f"{link}-{end}"]["netem"]["bytes"] - before[f"{link}-{end}"]["netem"]["bytes"]
                    for link in ("north", "south") for end in "ab")  # fmt: skip
        # Two ranks: each all-reduce puts its payload on the fiber at least once each way.
        assert moved > 2 * 12 * 4 * 1e5, "the gradients crossed the fibers"
    told("down")
    assert run("docker", "ps", "--all", "--quiet") == ""
    assert oracle.left_behind(NAME, state_folder) == []
    assert NAME not in Path("/etc/hosts").read_text()
