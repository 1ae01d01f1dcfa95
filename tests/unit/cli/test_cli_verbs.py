"""Commands: what they request of the library, their output and their exit status."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import run_factory
from builders.cli_fixtures import (
    Answers,
    Call,
    Cli,
    FakeLab,
    answers,
    certificate_of,
    cli,
    fake_lab,
    finished_run,
    never,
    noisy,
    unmeasured,
)
from builders.tables import table

from testbed.cli import topology_tables
from testbed.core.topology import resolve
from testbed.errors import FidelityError, LabError, NoisyHost
from testbed.host import doctor, lab_folder, lab_owner
from testbed.host.linux import login
from testbed.lab import api, containers

__all__ = ["answers", "cli", "fake_lab"]  # fixtures

ROOT = Path(__file__).resolve().parents[3]
METRO = api.load("metro-40km")
CERTIFIED, WRONG = certificate_of(METRO), certificate_of(METRO, error_s=90e-6)


# ---- commands on a lab that is up


def inject(
    fault: str, target: str, for_s: float | None = None, wait: bool = False, **parameters: str
) -> tuple[object, ...]:
    return ("inject", fault, target, for_s, wait, parameters)


def call_exec(*argv: str) -> tuple[object, ...]:
    return ("exec", "east-0", [*argv])


UNTOUCHED: dict[str, Any] = {"status": 2, "asked": None}
CALLS = {
    "durations are passed in seconds": Call(
        "cut north --for 1500ms --wait", asked=inject("cut", "north", 1.5, True), out="lasted 2.500 s"
    ),
    "a time limit is shown with its unit": Call("cut north --for 10", err="it ends by itself after 10 s"),
    "cut --wait needs an end": Call("cut north --wait", **UNTOUCHED),
    "inject passes parameters": Call(
        "inject impair north:west delay=5ms loss=0.1% --for 2s",
        asked=inject("impair", "north:west", 2.0, delay="5ms", loss="0.1%"),
    ),
    "a repair takes as long as its cause usually does, 12 h here": Call(
        "inject cut north cause=excavator --for repair", asked=inject("cut", "north", 12.0, cause="excavator")
    ),
    "an unknown cause has no repair": Call("inject cut north cause=gremlin --for repair", err="excavator", **UNTOUCHED),
    "a repair needs a cause": Call("inject cut north --for repair", err="excavator", **UNTOUCHED),
    "a parameter has a value": Call("inject impair north delay", **UNTOUCHED),
    "a parameter has a name": Call("inject impair north =5", **UNTOUCHED),
    "for_s is no parameter": Call("inject impair north for_s=3", **UNTOUCHED),
    "wait is no parameter": Call("inject impair north wait=1", **UNTOUCHED),
    "a parameter is given once": Call(
        "inject impair north delay=1ms delay=2ms", err="delay is given twice (1ms and 2ms)", **UNTOUCHED
    ),
    "a value is set once": Call("show metro-40km --set scale=1 --set scale=2", 2, err="--set scale is given twice"),
    "heal lists what it ended": Call("heal", asked=("heal", None), out="fake: f1: cut north"),
    "heal without active faults has no result": Call("heal south", out="", err="fake: no active faults"),
    "exec passes options": Call("exec east-0 ls -l -v", asked=call_exec("ls", "-l", "-v")),
    "exec drops the first --": Call("exec east-0 -- ls -l", asked=call_exec("ls", "-l")),
    "exec passes a further --": Call("exec -l fake east-0 grep -- -x", asked=call_exec("grep", "--", "-x")),
    "exec passes --help": Call("exec east-0 ping --help", asked=call_exec("ping", "--help")),
    "exec passes quotes": Call(
        "exec east-0 sh -c \"echo '$HOME' [b]\"", asked=call_exec("sh", "-c", "echo '$HOME' [b]")
    ),
    "exec on an unknown node is 125": Call("exec east-9 true", 125, err="east-0"),
    "exec without a program is 125": Call("exec east-0 --", 125),
    **{
        f"{line} returns the child's {status}": Call(line, status, lab={"child_status": status})
        for line in ("exec east-0 x", "launch -- x")
        for status in (0, 1, 2, 125, 126, 127, 137)
    },
    "launch states that bytes are not scaled": Call(
        "launch --runs /somewhere -- python x.py --epochs 3",
        asked=("launch", ["python", "x.py", "--epochs", "3"], Path("/somewhere")),
        err=("not scaled", "1/1000"),
    ),
    "launch reports all mistakes at once": Call(
        "launch --progress nanogtp --progress cvs=a -- true",
        125,
        err=("did you mean nanogpt", "did you mean csv"),
        asked=None,
    ),
    "logs passes the node": Call("logs east-0 -f", asked=("logs", "east-0", True), out="one\ntwo\n"),
    "certify prints what is outside tolerance": Call(
        "certify --thorough",
        1,
        asked=("certify", True),
        out=("outside tolerance", "90 us too long"),
        lab={"certificate": WRONG},
    ),
    "status reports what is wrong": Call("status", out=("the keeper is gone", "east down", "west up")),
}


@table("call", CALLS)
def test_command_on_a_lab(cli: Cli, fake_lab: FakeLab, call: Call) -> None:
    call.check(cli, fake_lab)


@pytest.mark.parametrize("line", ["heal", "heal south", "heal --json"])
def test_heal_without_a_keeper_reports_dark_fibers(cli: Cli, fake_lab: FakeLab, line: str) -> None:
    """Nothing was active, or all was healed: either reads as if the fibers were lit."""
    fake_lab.trouble = "the keeper is gone, so all fibers are dark; take it down with: testbed down fake"
    assert " ".join(Call(line).check(cli).err.split()).endswith(fake_lab.trouble)


@pytest.mark.parametrize("status", [0, 3])
def test_launch_names_its_run_at_begin_and_end(cli: Cli, fake_lab: FakeLab, status: int) -> None:
    fake_lab.child_status = status
    result = cli("launch -- true")
    assert result.out == "[0] hello\n"
    assert result.err.splitlines()[-3:] == [
        "run directory: /runs/fake-1", "output and measurements: /runs/fake-1", "report: testbed report /runs/fake-1",
    ]  # fmt: skip


@table("by_sudo", {"sudo removed TESTBED_RUNS": True, "the shell has TESTBED_RUNS": False})
def test_launch_names_a_run_as_the_callers_shell_finds_it(
    cli: Cli, fake_lab: FakeLab, monkeypatch: pytest.MonkeyPatch, by_sudo: bool
) -> None:
    monkeypatch.setattr("testbed.host.linux.program_user.caller", lambda: (1000, 1000) if by_sudo else None)
    lines = cli("launch -- true", TESTBED_RUNS="/runs").err.splitlines()
    assert lines[-1] == f"report: testbed report {'/runs/fake-1' if by_sudo else 'fake-1'}"


def test_logs_without_a_line_are_reported_on_stderr(
    cli: Cli, fake_lab: FakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_lab, "logs", lambda what, follow: iter(()))
    err = "no output of east-0 yet: no program has written any since lab fake came up"
    Call("logs east-0", out="", err=err).check(cli)
    assert cli("logs").err == ""


NOISY, REFUSED = "certified, noisy host", "outside tolerance"


@table(
    "certificate, line, status, verdict",
    {
        "certified": (CERTIFIED, "certify", 0, "certified"),
        "certified, strictly": (CERTIFIED, "certify --strict", 0, "certified"),
        "a noisy host is certified": (noisy(CERTIFIED), "certify", 0, NOISY),
        "a noisy host is not certified strictly": (noisy(CERTIFIED), "certify --strict", 3, NOISY),
        "outside tolerance": (WRONG, "certify", 1, REFUSED),
        "outside tolerance on a noisy host": (noisy(WRONG), "certify --strict", 1, REFUSED),
        "not measurable": (unmeasured(CERTIFIED), "certify", 3, "not measurable on this host now"),
        "one rate not measurable, others wrong": (unmeasured(WRONG), "certify", 1, REFUSED),
    },
)
def test_certify_exits_by_its_verdict_and_prints_it(
    cli: Cli, fake_lab: FakeLab, certificate: Any, line: str, status: int, verdict: str
) -> None:
    fake_lab.certificate = certificate
    result = cli(line)
    assert result.status == status
    assert verdict in result.out.splitlines()
    assert ("Noisy host: it delayed 12% of the small packets" in result.err) == certificate.noisy
    written = cli(line, "--json")
    assert written.status == status
    document, expected = json.loads(written.out), json.loads(json.dumps(certificate.to_dict()))
    assert {key: document[key] for key in expected} == expected
    assert (document["verdict"], document["certified"]) == (verdict, verdict.startswith("certified"))


def test_status_in_one_line_and_as_json(cli: Cli, fake_lab: FakeLab) -> None:
    assert cli("status").out.startswith("fake: degraded for 1.02 min, topology metro-40km")
    data = json.loads(cli("status --json").out)
    assert data["links"][0]["carrier"] == {"east": False, "west": True}
    assert data["ranks"][0]["train_loss"] == 2.5


# ---- up, down, ls


def test_up_shows_the_links_and_what_to_type_next(cli: Cli, fake_lab: FakeLab, answers: Answers) -> None:
    def up(topology: object, **options: Any) -> FakeLab:
        options["progress"].phase("fibers", "2 fibers")
        return fake_lab

    asked = answers("up", up)
    result = cli("up metro-40km --set links.north.km=80 --name mine --no-agents --keep")
    assert result.status == 0
    assert asked["args"][0].link("north").length_m == 80_000.0
    assert (asked["name"], asked["agents"], asked["keep"], asked["allow_uncertified"]) == ("mine", False, True, False)
    north = next(line for line in result.out.splitlines() if line.strip().startswith("north"))
    assert " ".join(north.split()) == "north → west 200 us +3.0 us 0.0 us 0 of 550 799 Mb/s ok"
    for hint in (
        "fibers: 2 fibers",
        "testbed exec east-0 -- ping",
        "testbed cut north --for 10s",
        "testbed down fake",
    ):
        assert hint in result.err


def test_up_outside_tolerance_is_1(cli: Cli, answers: Answers) -> None:
    answers("up", FidelityError("the lab is outside tolerance: north:west: median delay 90 us too long"))
    Call("up metro-40km", 1, err="north:west").check(cli)


BUSY = dataclasses.replace(WRONG, cpu_busy=0.97)
HIDDEN = dataclasses.replace(unmeasured(CERTIFIED), cpu_busy=0.97)


@table(
    "error, status, row, message, hint",
    {
        "outside tolerance": (
            FidelityError(BUSY.refusal, BUSY),
            1,
            "bad",
            "the lab is outside tolerance: north:west: ",
            "or continue with --allow-uncertified\n",
        ),
        "not measurable": (
            NoisyHost(HIDDEN.refusal, HIDDEN),
            3,
            "not measured",
            "the lab is not measurable on this host now: north:west: ",
            "the CPU was 3% free: stop other programs and try again",
        ),
    },
)
def test_up_shows_a_refused_lab_with_its_table_and_the_way_out(
    cli: Cli, answers: Answers, error: Exception, status: int, row: str, message: str, hint: str
) -> None:
    answers("up", error)
    result = Call("up metro-40km", status, out="").check(cli)
    shown, _, text = result.err.partition("testbed: ")
    north = next(line for line in shown.splitlines() if line.strip().startswith("north →"))
    assert " ".join(north.split()).endswith(f" {row}")
    assert text.startswith(message)
    if status == 1:
        assert "CPU 3% free" in shown
        assert text.endswith(hint)
    assert hint in text


def test_up_dry_run_prints_the_plan_and_does_nothing(cli: Cli, answers: Answers) -> None:
    answers("up", never)
    result = cli("up metro-40km --dry-run --emulator fiberd")
    lines = result.out.splitlines()
    assert len(lines) == len(api.plan(METRO))
    assert any(line.startswith("namespace east-0") for line in lines)
    assert result.err == "lab metro-40km, driver netns (set by TESTBED_DRIVER), emulator fiberd (requested)\n"
    assert json.loads(cli("up metro-40km --dry-run --emulator fiberd --json").out) == {
        "steps": lines,
        "lab": "metro-40km",
        "driver": "netns",
        "driver_why": "set by TESTBED_DRIVER",
        "emulator": "fiberd",
        "emulator_why": "requested",
    }


def test_up_dry_run_of_containers_shows_what_containerlab_does_and_what_is_left(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "why_not", lambda: ("", ""))
    first, *others = cli("up metro-40km --dry-run --driver containerlab --emulator fiberd").out.splitlines()
    assert first.startswith("containers plant ") and first.endswith(", as in: testbed render")
    assert {"east-gw", "east-0", "west-1", "mgmt"} <= set(first.replace(",", "").split())
    assert others and not any(line.startswith(("namespace", "cable", "route", "sysctl")) for line in others)


@pytest.mark.parametrize("options", ["--emulator x", "--driver x", "--name 'A B'"])
def test_up_dry_run_refuses_what_up_would(cli: Cli, options: str) -> None:
    Call(f"up metro-40km --dry-run {options}", 2, out="").check(cli)


@table(
    "up, line, removed, status",
    {
        "without labs there is nothing to do": ("", "down", "", 0),
        "an unknown lab is down already": ("", "down gone", "", 0),
        "the only lab needs no name": ("one", "down", "one", 0),
        "several labs need a name": ("one two", "down", "", 2),
        "by name": ("one two", "down two", "two", 0),
        "each once, in the order given": ("one two", "down two one two", "two one", 0),
        "by option": ("one two", "down -l one", "one", 0),
        "all": ("one two", "down --all", "one two", 0),
        "all excludes names": ("one", "down --all one", "", 2),
        "labs that fail do not hold up others": (
            "stuck1 stuck2 three",
            "down stuck1 stuck2 three",
            "three",
            3,
        ),
    },
)
def test_down(
    cli: Cli,
    answers: Answers,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    up: str,
    line: str,
    removed: str,
    status: int,
) -> None:
    gone: list[str] = []

    def down(name: str) -> bool:
        if name.startswith("stuck"):
            raise LabError(f"{name} will not go")
        gone.extend({name} & {*up.split()})
        return name in gone

    answers("down", down)
    monkeypatch.setenv("TESTBED_STATE", str(tmp_path))
    for name in up.split():
        (tmp_path / "labs" / name).mkdir(parents=True)
        lab_owner.record(lab_folder.folder(name))
    result = cli(line)
    assert (result.status, " ".join(gone), result.out) == (status, removed, "")
    if status != 2:
        failures = [f"testbed: {name} will not go" for name in up.split() if name.startswith("stuck")]
        assert result.err.splitlines() == [f"{name}: down" for name in gone] + failures


def test_ls_lists_labs_and_files(cli: Cli, answers: Answers) -> None:
    answers("labs", (api.LabSummary("one", "metro-40km", "up", 0.0, 4),))
    assert cli("ls").out.splitlines()[3].split()[:4] == ["one", "metro-40km", "up", "4"]
    assert "metro-40km" in cli("ls topologies").out
    assert "first-cut" in cli("ls experiments").out
    assert {fault["name"] for fault in json.loads(cli("ls faults --json").out)} >= {"cut"}


def test_ls_runs(cli: Cli, answers: Answers, tmp_path: Path) -> None:
    run = api.RunSummary("r1", tmp_path, 1.7e9, "metro-40km", "pass")
    answers("runs", (run,))
    assert json.loads(cli("ls runs --json").out)[0]["path"] == str(tmp_path)
    assert "pass" in cli("ls runs").out
    answers("runs", (dataclasses.replace(run, verdict="no report", state="running", pid=4321),))
    Call("ls runs", out="running, pid 4321", folded=True).check(cli)
    assert [(run["state"], run["pid"]) for run in json.loads(cli("ls runs --json").out)] == [("running", 4321)]


def test_ls_topologies_in_short_and_whole_as_json(cli: Cli) -> None:
    lines = cli("ls topologies").out.splitlines()
    for name, links in (
        ("ring-64", "64 links of 12 km"),
        ("regional-ring", "alba-brava 90 km, brava-costa 140 km, costa-alba 110 km"),
    ):
        (row,) = (line for line in lines if name in line)
        assert links in row
    assert max(map(len, lines)) <= 120
    documents = {document["name"]: document for document in json.loads(cli("ls topologies --json").out)}
    assert len(documents["ring-64"]["links"]) == 64


@table(
    "km, shown",
    {
        "a long name": ({"l" * 40: 10}, "l" * 40 + " 10 km"),
        "long names are counted": ({"l" * 40: 10, "m" * 40: 12}, "2 links of 10 to 12 km"),
        "lengths from the shortest to the longest": (
            {f"l{number}": 10 + number for number in range(7)},
            "7 links of 10 to 16 km",
        ),
    },
)
def test_links_in_short(km: dict[str, int], shown: str) -> None:
    links = ", ".join(f"{name}: {{between: [a1, b1], km: {length}}}" for name, length in km.items())
    text = f"sites: {{a1: , b1: }}\nlinks: {{{links}}}"
    assert topology_tables.links_in_short(resolve.load_text(text.encode(), "x")) == shown


# ---- run, train, report


def test_run_passes_its_options_and_ends_with_the_report(cli: Cli, answers: Answers, tmp_path: Path) -> None:
    asked = answers("run", finished_run(tmp_path))
    result = cli("run metro-40km --steps 20 --seed 7 --set scale=100 --runs", tmp_path)
    assert result.status == 0
    options = {"args": ("metro-40km",), "steps": 20, "seed": 7, "runs": tmp_path, "set": {"scale": "100"}, "data": None}
    assert {name: asked[name] for name in options} == options
    lines = result.out.splitlines()
    assert (lines[0], lines[-1]) == ("pass: It trained.", f"report: {tmp_path / 'index.html'}")
    assert "train_loss went from 5.5 to 2.1." in result.out


@pytest.mark.parametrize("status", [0, 1, 3, 130])
def test_run_exits_with_the_status_of_the_run(cli: Cli, answers: Answers, tmp_path: Path, status: int) -> None:
    answers("run", finished_run(tmp_path, status))
    assert cli("run metro-40km").status == status


VERDICTS = {"pass is 0": ("pass", 0), "fail is 1": ("fail", 1), "unknown is 3": ("unknown", 3)}


@table("verdict, status", VERDICTS)
def test_train_exits_with_the_status_of_the_verdict(
    cli: Cli, fake_lab: FakeLab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verdict: str, status: int
) -> None:
    released: list[tuple[object, ...]] = []
    claim = SimpleNamespace(stop_why="", release=lambda *how: released.append(how))
    job = SimpleNamespace(id="j1", over=lambda: True, failure=lambda: "")
    report = dataclasses.replace(finished_run(tmp_path).report, verdict=verdict)
    fake_lab.run_directory = SimpleNamespace(path=tmp_path)
    for name, value in (("claimed", contextlib.nullcontext(claim)), ("train", job), ("report", report)):
        monkeypatch.setattr(FakeLab, name, lambda *_, value=value, **options: value, raising=False)
    result = cli("train --steps 20")
    assert (result.status, released) == (status, [("finished", "", status)]), result.err


def test_report_of_the_latest_run(cli: Cli, answers: Answers, tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    asked = answers("report", (finished_run(tmp_path).report, page))
    assert cli("report").out.splitlines()[-1] == f"report: {page}"
    assert asked["args"] == (None,)


@pytest.mark.parametrize("option", ["", "--json"])
@table("verdict, status", VERDICTS)
def test_report_exits_with_the_status_of_the_verdict(
    cli: Cli, tmp_path: Path, verdict: str, status: int, option: str
) -> None:
    end = {"pass": "finished", "fail": "failed", "unknown": "interrupted"}[verdict]
    run = run_factory.make_run(tmp_path / "run", status=end, steps=400 if verdict == "pass" else 120)
    result = cli(f"report {option}", run)
    assert json.loads((run / "report.json").read_text())["verdict"] == verdict
    assert result.status == status, result.err


@pytest.mark.parametrize("option", ["", "--json"])
def test_report_of_an_unknown_run_is_2(cli: Cli, tmp_path: Path, option: str) -> None:
    result = cli(f"report no-such-run {option}", TESTBED_RUNS=tmp_path)
    assert (result.status, result.out) == (2, "")
    assert "unknown run 'no-such-run'" in result.err


def test_report_open_without_a_display_is_2(
    cli: Cli, answers: Answers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    answers("report", (finished_run(tmp_path).report, tmp_path / "index.html"))
    Call("report --open", 2, err="no browser").check(cli)


# ---- show, lint, doctor


def test_show_names_the_origin_of_each_value(cli: Cli) -> None:
    out = cli("show metro-40km --set links.north.km=80").out
    rows = {line.split()[0]: line for line in out.splitlines() if line.split()}
    assert rows["links.north.km"].split()[1:] == ["80", "--set"]
    assert rows["links.north.fiber"].split()[1:] == ["smf", "default"]
    assert rows["links.south.km"].rstrip().endswith("metro-40km.yaml:8")
    assert "400 us" in out and "800 us" in out, "80 km at 5 us/km, one way and both ways"


def test_show_has_a_value_for_every_origin_of_every_shipped_topology(cli: Cli) -> None:
    for document in json.loads(cli("ls topologies --json").out):
        topology = api.load(document["name"])
        lines = cli(f"show {topology.name}").out.splitlines()
        shown = {line.split()[0]: line.split()[1] for line in lines if len(line.split()) > 1}
        assert [key for key in topology.origins if shown[key] == "-"] == [], topology.name


def test_show_json_derives_physics(cli: Cli) -> None:
    data = json.loads(cli("show metro-40km --json").out)
    (north, south) = data["derived"]
    assert (north["link"], north["rate_bps"], north["real_rate_bps"]) == ("north", 8e8, 8e11)
    assert north["rtt_s"] == pytest.approx(2 * 40 * 5e-6)
    assert south["in_flight_bytes"] == 47 * 5 * 100  # 47 km x 5 us/km x 0.8 Gb/s / 8
    assert data["origins"]["links.north.km"].endswith("metro-40km.yaml:7")


Lint = Callable[..., list[str]]


@pytest.fixture
def lint(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lint:
    """``lint("x.yaml", **{"x.yaml": text})`` writes these files, and returns the mistakes in those named."""
    monkeypatch.chdir(tmp_path)

    def run(*names: str, **texts: str) -> list[str]:
        for name, text in texts.items():
            Path(name).write_text(text)
        result = cli("lint", *names)
        assert result.status == (2 if result.out else 0)
        return result.out.splitlines()

    return run


SITES = "sites: {a1: {nodes: 1}, b1: {nodes: 0}}\nlinks:\n  x1: {between: [a1, b1], km: 10}\n"
FILES = {
    "good.yaml": SITES.replace("nodes: 0", "nodes: 1"),
    "bad.yaml": SITES.replace("b1], km: 10", "c1], km: -10"),
    "experiment.yaml": "schedule:\n  - {at: 20s, inject: no-such-fault, target: north}\n",
    "t.yaml": SITES,
    "own.yaml": "topology: t.yaml\nset: {links.x1.km: -3}\nexpect: [spead > 3]\n",
}


@table(
    "names, places",
    {
        "no mistake": ("good.yaml", ""),
        "all mistakes of all files": (
            "bad.yaml good.yaml experiment.yaml none.yaml",
            "bad.yaml:1 bad.yaml:3 bad.yaml:3 experiment.yaml:2 none.yaml",
        ),
        "an experiment and the topology that it names": ("own.yaml", "own.yaml:2 own.yaml:3 t.yaml:1"),
    },
)
def test_lint_reports_all_mistakes_with_their_places(lint: Lint, names: str, places: str) -> None:
    assert [line.split(": ")[0] for line in lint(*names.split(), **FILES)] == places.split()


def test_lint_json(cli: Cli, lint: Lint) -> None:
    lint("bad.yaml", **FILES)
    assert set(json.loads(cli("lint --json bad.yaml").out)[0]) == {"file", "line", "message", "fix"}


def test_lint_tells_a_missing_field_from_a_missing_file(lint: Lint) -> None:
    (mistake,) = lint("own.yaml", **{"own.yaml": "topology: metro-40km\nset: {linx.north.km: 1}\nschedule: []\n"})
    assert "unknown field 'linx.north.km'" in mistake
    assert "no such file" in lint("owm.yaml")[0]
    Path("own.yaml").unlink()
    assert lint("own.yaml") == ["own.yaml: no such file"], "there is none to suggest"


MISTAKEN = """topology: metro-40km
set: {links.nroth.km: 80, sites.east.nodes: many, links.south.km: 60, linx.a: 3}
workload: {steps: 100}
hypothesis: {before: [ranks_up == 4, speed > 3]}
schedule:
  - {after: step 40%, inject: cut, target: nroth, for: 10s}
  - {after: step 900, inject: cut, target: "link[7]", for: 10s}
  - {at: 3s, inject: cot, target: soth, for: 10s}
  - {at: 3s, inject: cut, target: "north:wst", for: soon}
  - {at: 3s, inject: rank-kill, target: 99}
  - {inject: cut, target: south, with: {cause: rodnt}, for: 3s}
  - {at: 3s, inject: flap, target: nowhere, with: {donw: 1s}, for: 3s}
  - {at: 3s, inject: cut, target: west-0, for: 1s}
expect: [goodput >= 0.5, spead > 3]
"""
"""Mistakes of every kind: each would hide others in a separate pass."""

MISTAKES = """
2: unknown link 'nroth'; did you mean north?
2: nodes of site 'east': expected a whole number, got 'many'
2: unknown field 'linx.a'
4: unknown metric 'speed'
6: unknown link or duct 'nroth'; did you mean north?
7: step 900 is out of range; expected 0 to 99
7: unknown link 'link[7]' in topology 'metro-40km'
8: unknown fault 'cot'; did you mean cut?
8: unknown target 'soth'; did you mean south?
9: unknown link end 'wst'; did you mean west?
9: for of a fault: expected a time, got 'soon'
10: unknown rank, node or site '99'
11: a fault has no trigger
11: unknown cause 'rodnt'; did you mean rodent?
12: unknown flap parameter 'donw'
12: unknown link or duct 'nowhere'
13: unknown link or duct 'west-0'
14: unknown metric 'spead'
""".strip().splitlines()


def test_lint_and_run_report_all_mistakes_in_one_pass(cli: Cli, lint: Lint) -> None:
    lines = lint("x.yaml", **{"x.yaml": MISTAKEN})
    for place, _, text in (mistake.partition(": ") for mistake in MISTAKES):
        assert any(line.startswith(f"x.yaml:{place}: ") and text in line for line in lines), (place, text)
    assert len(lines) == len(MISTAKES)
    assert "18 mistakes" in cli("lint x.yaml").err
    result = cli("run x.yaml --runs runs")
    assert result.status == 2
    assert [line.strip().removeprefix("testbed: ") for line in result.err.splitlines()] == lines
    assert not Path("runs").exists()


def test_lint_accepts_what_is_left_without_the_mistakes(lint: Lint) -> None:
    lines = MISTAKEN.splitlines()
    right = [lines[0], lines[2], lines[4], "  - {at: 3s, inject: cut, target: south, for: 1s}"]
    assert lint("x.yaml", **{"x.yaml": "\n".join(right)}) == []


def test_lint_names_the_line_of_an_unknown_topology(lint: Lint) -> None:
    lines = "\n".join(lint("x.yaml", **{"x.yaml": MISTAKEN.replace("metro-40km", "metro-40kn")}))
    assert "x.yaml:1: unknown topology 'metro-40kn'; did you mean metro-40km?" in lines
    assert "x.yaml:8: unknown fault 'cot'" in lines and "x.yaml:14: unknown metric 'spead'" in lines


def test_lint_finds_no_mistakes_in_shipped_files(lint: Lint) -> None:
    files = [path for folder in ("topologies", "experiments") for path in sorted((ROOT / folder).glob("*.yaml"))]
    assert files
    assert lint(*files) == []


def test_doctor_exit_status(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = doctor.Check("fiberd", "missing", "not compiled", "apt-get install gcc", needed=True)
    monkeypatch.setattr(doctor, "examine", lambda: (lacking,))
    Call("doctor", 3, out=("apt-get install gcc", "cannot run the testbed. Missing: fiberd")).check(cli)
    assert json.loads(cli("doctor --json").out)["can_run"] is False
    monkeypatch.setattr(doctor, "examine", lambda: (doctor.Check("fiberd", "ok", "/somewhere", needed=True),))
    assert cli("doctor").status == 0


# ---- whose lab


@pytest.mark.parametrize(
    ("line", "suggested"),
    [
        ("cut north --for 10s", "cut -l metro north --for 10s"),
        ("inject flap north 'down=0.2 s'", "inject -l metro flap north 'down=0.2 s'"),
        ("heal", "heal -l metro"),
        ("launch -- true", "launch -l metro -- true"),
        ("exec east-0 true", "exec -l metro east-0 true"),
        ("certify", "certify -l metro"),
        ("down", "down metro"),
    ],
)
def test_lab_of_another_user_must_be_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, suggested: str
) -> None:
    monkeypatch.setenv("TESTBED_STATE", str(tmp_path))
    monkeypatch.setattr(login, "current", lambda: login.Login(4711, None, "/dev/pts/3"))
    (tmp_path / "labs" / "metro").mkdir(parents=True)
    lab_owner.record(lab_folder.folder("metro"))
    monkeypatch.setattr(login, "current", lambda: login.Login(4712))
    status = 125 if line.startswith(("launch", "exec")) else 2
    hint = f" testbed {suggested}  # brought up by uid 4711 at "
    Call(line, status, out="", err=(hint, "from /dev/pts/3")).check(cli)
    assert (tmp_path / "labs" / "metro").is_dir()
