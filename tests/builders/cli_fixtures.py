"""Run the command line in the test's process, with fakes in place of host access."""

from __future__ import annotations

import dataclasses
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import EllipsisType, SimpleNamespace
from typing import Any

import pytest

from testbed.cli import app, console
from testbed.core.certification.certificate import Certificate, HostNoise
from testbed.core.certification.judge import DirectionSample, Stream, judge_direction
from testbed.core.certification.link_certificate import LinkCertificate, QuantityCheck
from testbed.core.records.run_record import RunData
from testbed.core.report.answers import Answer
from testbed.core.report.run_report import build
from testbed.core.topology.model import Link, Topology
from testbed.errors import UnknownName
from testbed.host.files import catalog
from testbed.lab import api

__all__ = [
    "Answers", "Call", "Cli", "FakeLab", "Result", "answers", "certificate_of", "cli", "fake_lab", "finished_run",
    "never", "noisy", "unmeasured",
]  # fmt: skip


@dataclass(frozen=True)
class Result:
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str


Cli = Callable[..., Result]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """``cli("cut north", "--for", path, COLUMNS=80)`` is ``COLUMNS=80 testbed cut north --for path``.

    The first argument is split as by a shell, the others are words. Variables stay set for the test.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for stream in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(f"sys.{stream}", getattr(sys, stream))  # main() replaces them
    for name in ("TESTBED_LAB", "TESTBED_RUNS", "COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def call(line: str, *words: object, **variables: object) -> Result:
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        console.reset()
        monkeypatch.setattr("sys.argv", ["testbed", *shlex.split(line), *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            app.main()
        captured = capfd.readouterr()
        return Result(int(ended.value.code or 0), captured.out, captured.err)

    yield call
    console.reset()
    for number, handler in handlers.items():
        signal.signal(number, handler)


@dataclass(frozen=True)
class Call:
    """A command line and its effects: a row of a table.

    Of ``out`` and ``err``, None is not compared, ``""`` is no output, other strings are parts of the output.
    """

    line: str
    status: int = 0
    _: dataclasses.KW_ONLY
    out: str | Sequence[str] | None = None
    err: str | Sequence[str] | None = None
    folded: bool = False
    """Parts may be broken into lines."""
    asked: tuple[object, ...] | EllipsisType | None = ...
    """The last request to the lab; None: there is no request; ``...``: not compared."""
    lab: Mapping[str, object] = field(default_factory=dict)
    """Attributes of the lab."""

    def check(self, cli: Cli, lab: FakeLab | None = None) -> Result:
        """Run the command, and compare its effects."""
        for name, value in self.lab.items():
            setattr(lab, name, value)
        result = cli(self.line)
        assert result.status == self.status, result
        for output, expected in ((result.out, self.out), (result.err, self.err)):
            text = " ".join(output.split()) if self.folded else output
            if expected == "":
                assert output == ""
            for part in (expected,) if isinstance(expected, str) else expected or ():
                assert part in text, output
        if lab is not None and self.asked is not ...:
            assert (lab.asked[-1] if lab.asked else None) == self.asked, lab.asked
        return result


Answers = Callable[..., dict[str, Any]]
never = pytest.fail.Exception("called")
"""The answer of a function that must not be called."""


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """``answers("up", value)``: ``api.up`` returns ``value``, or what it returns, or raises it.

    The result holds the keyword arguments of the last call, and its positional ones as ``args``.
    """

    def answer(name: str, value: Any = None) -> dict[str, Any]:
        arguments: dict[str, Any] = {}

        def function(*args: Any, **options: Any) -> Any:
            arguments.clear()
            arguments.update(options, args=args)
            if isinstance(value, BaseException):
                raise value
            return value(*args, **options) if callable(value) else value

        monkeypatch.setattr(api, name, function)
        return arguments

    return answer


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
    rate = QuantityCheck(
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
        fields = {
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
        return api.LabStatus(**fields)  # type: ignore[arg-type]


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
    report = dataclasses.replace(
        build(RunData()),
        verdict="pass" if exit_code == 0 else "fail",
        headline="It trained.",
        answers=(Answer("trained", "Did it train?", "yes", "train_loss went from 5.5 to 2.1."),),
    )
    return SimpleNamespace(report=report, directory=directory, exit_code=exit_code)
