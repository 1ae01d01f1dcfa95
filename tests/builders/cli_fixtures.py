"""Run the command line in the test's process, with fakes in place of host access."""

from __future__ import annotations

import dataclasses
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.cli import app, console
from testbed.core.certification.certificate import Certificate, HostNoise
from testbed.core.certification.judge import DirectionSample, Stream, judge_direction
from testbed.core.certification.link_certificate import Check, LinkCertificate
from testbed.core.topology.model import Link, Topology
from testbed.errors import UnknownName
from testbed.host.files import catalog
from testbed.lab import api

__all__ = ["Cli", "FakeLab", "Said", "certificate_of", "cli", "fake_lab", "finished_run", "noisy", "unmeasured"]


@dataclass(frozen=True)
class Said:
    status: int
    out: str
    err: str


Cli = Callable[..., Said]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """``cli("cut", "north")`` is ``testbed cut north``."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for stream in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(f"sys.{stream}", getattr(sys, stream))  # main() replaces them
    for name in ("TESTBED_LAB", "TESTBED_RUNS", "COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def call(*words: str) -> Said:
        console.reset()
        monkeypatch.setattr("sys.argv", ["testbed", *words])
        with pytest.raises(SystemExit) as ended:
            app.main()
        said = capfd.readouterr()
        return Said(int(ended.value.code or 0), said.out, said.err)

    yield call
    console.reset()
    for number, handler in handlers.items():
        signal.signal(number, handler)


def certificate_of(topology: Topology, error_s: float = 3e-6) -> Certificate:
    """Return a certificate with every direction measured ``error_s`` too slow, over a baseline of 40 us."""

    def sample(link: Link, name: str) -> DirectionSample:
        delays = [link.impairment(name).delay_s + 40e-6 + error_s] * 50
        return DirectionSample(delays, [40e-6] * 50, 50, stream=Stream(500, range(500)), rate_bps=799e6)

    links = [
        LinkCertificate(
            link.name,
            link.length_m / 1e3,
            tuple(judge_direction(name, link.impairment(name), sample(link, name)) for name in link.directions),
        )
        for link in topology.links
    ]
    return Certificate("lab", topology.name, 0.0, "fiberd", tuple(links), True, "", 0.1)


def noisy(certificate: Certificate) -> Certificate:
    """Return ``certificate`` of a host that delayed 12 % of the small packets."""
    return dataclasses.replace(certificate, noise=HostNoise(500, 60, 300e-6, 4e-3))


def unmeasured(certificate: Certificate) -> Certificate:
    """Return ``certificate`` with a rate that is not measurable, in the first direction."""
    link, *others = certificate.links
    direction, *directions = link.directions
    rate = Check(
        "rate", 8e8, None, verdict="unmeasured", why="the rate is not measurable: 2 pairs of packets, 5 needed"
    )
    direction = dataclasses.replace(direction, checks=(*direction.checks, rate))
    return dataclasses.replace(
        certificate, links=(dataclasses.replace(link, directions=(direction, *directions)), *others)
    )


@dataclass
class FakeLab:
    """Records its calls."""

    name: str = "fake"
    topology: Topology = field(default_factory=lambda: catalog.load_topology("metro-40km"))
    certificate: Certificate | None = None
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    child_status: int = 0
    trouble: str = ""
    strict: bool = False
    allow_uncertified: bool = False
    run_directory: Any = None

    def _fault(self, kind: str, target: str, ended: float | None = None) -> api.Fault:
        return api.Fault("f1", kind, target, ("north",), 100.0, 1.7e9, ended)

    def inject(
        self, fault: str, target: str, *, for_s: float | None = None, wait: bool = False, **parameters: str
    ) -> api.Fault:
        self.asked.append(("inject", fault, target, for_s, wait, parameters))
        return self._fault(fault, target, 102.5 if wait else None)

    def heal(self, what: str | None = None) -> tuple[api.Fault, ...]:
        self.asked.append(("heal", what))
        return (self._fault("cut", "north", 103.0),) if what != "south" else ()

    def without_keeper(self) -> str:
        return self.trouble

    runs_as_root = True

    def exec(self, node: str, argv: Sequence[str]) -> int:
        self.asked.append(("exec", node, list(argv)))
        if node not in self.topology.node_names:
            raise UnknownName("node", node, self.topology.node_names)
        return self.child_status

    def launch(
        self,
        argv: Sequence[str],
        *,
        directory: Path | None = None,
        echo: Callable[[str], None],
        as_root: bool = False,
        tell: Callable[[str], None],
        read_only: bool = False,
        ranks_per_node: int = 1,
        progress: object = None,
        keep_scratch: bool = False,
        note: Callable[[str], None] | None = None,
        start: str = "direct",
        mpiexec: str = "",
        echo_error: object = None,
    ) -> Any:
        self.asked.append(("launch", list(argv), directory))
        self.run_directory = SimpleNamespace(path=Path("/runs/fake-1"))
        tell("run directory: /runs/fake-1")
        echo("[0] hello")
        return SimpleNamespace(
            id="j1", interrupted="", failure=lambda: "", same_files={}, exit_status=lambda: self.child_status
        )

    def certify(self, thorough: bool = False, tell: Callable[[str], None] | None = None) -> Certificate:
        self.asked.append(("certify", thorough))
        assert self.certificate
        return self.certificate

    def logs(self, what: str | None = None, follow: bool = False, job: str | None = None) -> Iterator[str]:
        self.asked.append(("logs", what, follow))
        yield from ("one", "two")

    def status(self) -> api.LabStatus:
        link = api.LinkStatus("north", 40.0, {"east": False, "west": True}, "ok", ("f1",), {"north:west": 7}, 3)
        rank = api.RankStatus(0, "east-0", "east", "training", 12, 2.5)
        # By name: these tests ignore the other fields of a status.
        known = {
            "name": self.name,
            "state": "degraded",
            "why": ("the keeper is gone",),
            "topology": "metro-40km",
            "uptime_s": 61.0,
            "driver": "netns",
            "emulator": "fiberd",
            "scheduling": "SCHED_FIFO 40",
            "links": (link,),
            "ranks": (rank,),
        }
        return api.LabStatus(**known)  # type: ignore[arg-type]


@pytest.fixture
def fake_lab(monkeypatch: pytest.MonkeyPatch) -> FakeLab:
    """Provide the only lab that is up; ``asked`` begins with the name used to attach."""
    lab = FakeLab()
    lab.certificate = certificate_of(lab.topology)

    def attach(name: str | None = None, **how: object) -> FakeLab:
        lab.asked.append(("attach", name))
        return lab

    monkeypatch.setattr(api, "attach", attach)
    monkeypatch.setattr(api, "strangers", lambda name: "")
    return lab


def finished_run(directory: Path, exit_code: int = 0) -> SimpleNamespace:
    """Return the result of ``api.run``, with the fields that the command line prints."""
    answer = SimpleNamespace(
        id="trained", question="Did it train?", answer="yes", text="train_loss went from 5.5 to 2.1.", lines=()
    )
    report = SimpleNamespace(
        noise=None,
        verdict="pass" if exit_code == 0 else "fail",
        headline="It trained.",
        answers=(answer,),
        goodput=None,
        rank_seconds=None,
        prediction=None,
        unpredicted="",
        declared=None,
        program=None,
    )
    return SimpleNamespace(report=report, directory=directory, exit_code=exit_code)
