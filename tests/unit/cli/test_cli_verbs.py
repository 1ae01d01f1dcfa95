"""Each verb: what it asks of the library, and what it says of the answer."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import run_factory
from builders.cli_fixtures import Cli, FakeLab, certificate_of, cli, fake_lab, finished_run, noisy, unmeasured

from testbed.cli import tables
from testbed.core.certification.certificate import Certificate
from testbed.core.topology import resolve
from testbed.core.topology.model import Topology
from testbed.errors import FidelityError, LabError, NoisyHost
from testbed.host import lab_folder, lab_owner
from testbed.host.linux import login
from testbed.lab import api, containers

__all__ = ["cli", "fake_lab"]  # fixtures


# ---- up, down, ls


def test_up_shows_the_links_and_what_to_type_next(cli: Cli, fake_lab: FakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def up(topology: Topology, **words: Any) -> FakeLab:
        asked.update(words, topology=topology)
        words["progress"].phase("fibers", "2 fibers")
        return fake_lab

    monkeypatch.setattr(api, "up", up)
    said = cli("up", "metro-40km", "--set", "links.north.km=80", "--name", "mine", "--no-agents", "--keep")
    assert said.status == 0
    assert asked["topology"].link("north").length_m == 80_000.0
    assert (asked["name"], asked["agents"], asked["keep"], asked["allow_uncertified"]) == ("mine", False, True, False)
    north = next(line for line in said.out.splitlines() if line.strip().startswith("north"))
    cells = " ".join(north.split())
    assert cells == "north → west 200 us +3.0 us 0.0 us 0 of 550 799 Mb/s ok"
    assert "fibers: 2 fibers" in said.err
    for words in ("testbed exec east-0 -- ping", "testbed cut north --for 10s", "testbed down fake"):
        assert words in said.err


def test_up_outside_tolerance_is_1(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def up(topology: Topology, **words: Any) -> FakeLab:
        raise FidelityError("the lab is outside tolerance: north:west: median delay 90 us too long")

    monkeypatch.setattr(api, "up", up)
    said = cli("up", "metro-40km")
    assert said.status == 1
    assert "north:west" in said.err


def test_a_refused_lab_is_shown_with_its_table_the_cpu_that_was_free_and_the_way_out(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = dataclasses.replace(certificate_of(api.load("metro-40km"), error_s=90e-6), cpu_busy=0.97)

    def up(topology: Topology, **words: Any) -> FakeLab:
        raise FidelityError(found.refusal, found)

    monkeypatch.setattr(api, "up", up)
    said = cli("up", "metro-40km")
    assert said.status == 1
    assert said.out == ""
    row = next(line for line in said.err.splitlines() if line.strip().startswith("north →"))
    assert row.split()[-1] == "bad"
    assert "CPU 3% free" in said.err
    message = said.err.partition("testbed: ")[2]
    assert message.startswith("the lab is outside tolerance: north:west: ")
    assert message.rstrip().endswith("or continue with --allow-uncertified")


def test_a_lab_that_is_not_measurable_is_refused_with_its_table_and_status_3(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = dataclasses.replace(unmeasured(certificate_of(api.load("metro-40km"))), cpu_busy=0.97)

    def up(topology: Topology, **words: Any) -> FakeLab:
        raise NoisyHost(certificate.refusal, certificate)

    monkeypatch.setattr(api, "up", up)
    result = cli("up", "metro-40km")
    assert (result.status, result.out) == (3, "")
    row = next(line for line in result.err.splitlines() if line.strip().startswith("north →"))
    assert " ".join(row.split()).endswith("not measured")
    message = result.err.partition("testbed: ")[2]
    assert message.startswith("the lab is not measurable on this host now: north:west: ")
    assert "the CPU was 3% free: stop other programs and try again" in message


def test_dry_run_prints_the_plan_and_does_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "up", lambda *a, **k: pytest.fail("it was brought up"))
    said = cli("up", "metro-40km", "--dry-run", "--emulator", "fiberd")
    lines = said.out.splitlines()
    assert len(lines) == len(api.plan(api.load("metro-40km")))
    assert any(line.startswith("namespace east-0") for line in lines)
    assert said.err == "lab metro-40km, driver netns (set by TESTBED_DRIVER), emulator fiberd (requested)\n"
    found = json.loads(cli("up", "metro-40km", "--dry-run", "--emulator", "fiberd", "--json").out)
    assert found.pop("steps") == lines
    assert found == {
        "lab": "metro-40km",
        "driver": "netns",
        "driver_why": "set by TESTBED_DRIVER",
        "emulator": "fiberd",
        "emulator_why": "requested",
    }


def test_a_dry_run_of_containers_shows_what_containerlab_does_and_what_is_left(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "why_not", lambda: ("", ""))
    said = cli("up", "metro-40km", "--dry-run", "--driver", "containerlab", "--emulator", "fiberd")
    first, *rest = said.out.splitlines()
    assert first.startswith("containers plant ") and first.endswith(", as in: testbed render")
    assert {"east-gw", "east-0", "west-1", "mgmt"} <= set(first.replace(",", "").split())
    assert rest and not any(line.startswith(("namespace", "cable", "route", "sysctl")) for line in rest)


@pytest.mark.parametrize("words", [("--emulator", "x"), ("--driver", "x"), ("--name", "A B")])
def test_dry_run_refuses_what_up_would(cli: Cli, words: tuple[str, ...]) -> None:
    said = cli("up", "metro-40km", "--dry-run", *words)
    assert (said.status, said.out) == (2, "")


def summaries(*names: str) -> tuple[api.LabSummary, ...]:
    return tuple(api.LabSummary(name, "metro-40km", "up", 0.0, 4) for name in names)


@pytest.mark.parametrize(
    ("up", "words", "removed", "status"),
    [
        ([], (), [], 0),
        (["one"], (), ["one"], 0),
        (["one", "two"], (), [], 2),
        (["one", "two"], ("two",), ["two"], 0),
        (["one", "two"], ("two", "one", "two"), ["two", "one"], 0),
        (["one", "two"], ("-l", "one"), ["one"], 0),
        (["one", "two"], ("--all",), ["one", "two"], 0),
        (["one"], ("--all", "one"), [], 2),
    ],
)
def test_down(
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    up: list[str],
    words: tuple[str, ...],
    removed: list[str],
    status: int,
) -> None:
    gone: list[str] = []
    monkeypatch.setenv("TESTBED_STATE", str(tmp_path))
    for name in up:
        (tmp_path / "labs" / name).mkdir(parents=True)
        lab_owner.record(lab_folder.folder(name))
    monkeypatch.setattr(api, "down", lambda name: gone.append(name) or True)  # type: ignore[func-returns-value]
    said = cli("down", *words)
    assert (said.status, gone) == (status, removed)


def test_down_of_nothing_is_silent(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "lab_names", tuple)
    monkeypatch.setattr(api, "down", lambda name: False)
    for words in (("down",), ("down", "gone")):
        said = cli(*words)
        assert (said.status, said.out, said.err) == (0, "", "")


def test_one_that_will_not_go_keeps_no_other_up(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(name: str) -> bool:
        if name != "three":
            raise LabError(f"{name} will not go")
        return True

    monkeypatch.setattr(api, "down", down)
    said = cli("down", "one", "two", "three")
    assert said.status == 3
    assert said.err == "three: down\ntestbed: one will not go\ntestbed: two will not go\n"


def test_ls(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "labs", lambda: summaries("one"))
    assert cli("ls").out.splitlines()[3].split()[:4] == ["one", "metro-40km", "up", "4"]
    assert "metro-40km" in cli("ls", "topologies").out
    assert "first-cut" in cli("ls", "experiments").out
    assert {fault["name"] for fault in json.loads(cli("ls", "faults", "--json").out)} >= {"cut"}


def test_ls_runs(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(api, "runs", lambda: (api.RunSummary("r1", tmp_path, 1.7e9, "metro-40km", "pass"),))
    assert json.loads(cli("ls", "runs", "--json").out)[0]["path"] == str(tmp_path)
    assert "pass" in cli("ls", "runs").out
    live = api.RunSummary("r1", tmp_path, 1.7e9, "metro-40km", "no report", "running", 4321)
    monkeypatch.setattr(api, "runs", lambda: (live,))
    assert "running, pid 4321" in " ".join(cli("ls", "runs").out.split())
    assert [(it["state"], it["pid"]) for it in json.loads(cli("ls", "runs", "--json").out)] == [("running", 4321)]


# ---- faults


def test_cut_asks_for_seconds(cli: Cli, fake_lab: FakeLab) -> None:
    said = cli("cut", "north", "--for", "1500ms", "--wait")
    assert fake_lab.asked[-1] == ("inject", "cut", "north", 1.5, True, {})
    assert "lasted 2.500 s" in said.out


def test_inject_passes_parameters(cli: Cli, fake_lab: FakeLab) -> None:
    assert cli("inject", "impair", "north:west", "delay=5ms", "loss=0.1%", "--for", "2s").status == 0
    assert fake_lab.asked[-1] == ("inject", "impair", "north:west", 2.0, False, {"delay": "5ms", "loss": "0.1%"})


def test_a_repair_takes_as_long_as_its_cause_usually_does(cli: Cli, fake_lab: FakeLab) -> None:
    assert cli("inject", "cut", "north", "cause=excavator", "--for", "repair").status == 0
    assert fake_lab.asked[-1] == ("inject", "cut", "north", 12.0, False, {"cause": "excavator"})  # 12 h
    for words in (("cause=gremlin",), ()):
        said = cli("inject", "cut", "north", *words, "--for", "repair")
        assert said.status == 2
        assert "excavator" in said.err
    assert sum(it[0] == "inject" for it in fake_lab.asked) == 1


@pytest.mark.parametrize("word", ["delay", "=5", "for_s=3", "wait=1"])
def test_bad_parameters_are_refused_before_the_lab_is_touched(cli: Cli, fake_lab: FakeLab, word: str) -> None:
    assert cli("inject", "impair", "north", word).status == 2
    assert fake_lab.asked == []


def test_what_is_given_twice_is_refused(cli: Cli, fake_lab: FakeLab) -> None:
    said = cli("inject", "impair", "north", "delay=1ms", "delay=2ms")
    assert (said.status, fake_lab.asked) == (2, [])
    assert "delay is given twice (1ms and 2ms)" in said.err
    said = cli("show", "metro-40km", "--set", "scale=1", "--set", "scale=2")
    assert said.status == 2
    assert "--set scale is given twice" in said.err


def test_a_time_limit_is_said_with_its_unit(cli: Cli, fake_lab: FakeLab) -> None:
    assert "it ends by itself after 10 s" in cli("cut", "north", "--for", "10").err


def test_waiting_for_ever_is_refused(cli: Cli, fake_lab: FakeLab) -> None:
    assert cli("cut", "north", "--wait").status == 2
    assert fake_lab.asked == []


def test_heal(cli: Cli, fake_lab: FakeLab) -> None:
    assert "fake: f1: cut north" in cli("heal").out
    assert fake_lab.asked[-1] == ("heal", None)
    said = cli("heal", "south")
    assert (said.status, said.out) == (0, "")
    assert "fake: no active faults" in said.err


@pytest.mark.parametrize("words", [("heal",), ("heal", "south"), ("heal", "--json")])
def test_a_heal_without_a_keeper_says_so(cli: Cli, fake_lab: FakeLab, words: tuple[str, ...]) -> None:
    """Nothing was active, or all was healed: either sounds as if the fibers were lit."""
    fake_lab.trouble = "the keeper is gone, so all fibers are dark; take it down with: testbed down fake"
    said = cli(*words)
    assert said.status == 0
    assert " ".join(said.err.split()).endswith(fake_lab.trouble)


# ---- exec, launch, logs


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        (["east-0", "ls", "-l", "-v"], ["ls", "-l", "-v"]),
        (["east-0", "--", "ls", "-l"], ["ls", "-l"]),
        (["-l", "fake", "east-0", "grep", "--", "-x"], ["grep", "--", "-x"]),
        (["east-0", "ping", "--help"], ["ping", "--help"]),
        (["east-0", "sh", "-c", "echo '$HOME' [b]"], ["sh", "-c", "echo '$HOME' [b]"]),
    ],
)
def test_exec_passes_words_on_untouched(cli: Cli, fake_lab: FakeLab, words: list[str], argv: list[str]) -> None:
    assert cli("exec", *words).status == 0
    assert fake_lab.asked[-1] == ("exec", "east-0", argv)


@pytest.mark.parametrize("status", [0, 1, 2, 125, 126, 127, 137])
def test_exec_and_launch_return_the_childs_status(cli: Cli, fake_lab: FakeLab, status: int) -> None:
    fake_lab.child_status = status
    assert cli("exec", "east-0", "x").status == status
    assert cli("launch", "--", "x").status == status


def test_exec_has_125_for_what_is_not_the_childs(cli: Cli, fake_lab: FakeLab) -> None:
    said = cli("exec", "east-9", "true")
    assert said.status == 125
    assert "east-0" in said.err
    assert cli("exec", "east-0", "--").status == 125


def test_launch_says_that_bytes_are_not_scaled(cli: Cli, fake_lab: FakeLab, tmp_path: Path) -> None:
    said = cli("launch", "--runs", str(tmp_path), "--", "python", "x.py", "--epochs", "3")
    assert fake_lab.asked[-1] == ("launch", ["python", "x.py", "--epochs", "3"], tmp_path)
    assert said.out == "[0] hello\n"
    assert "not scaled" in said.err
    assert "1/1000" in said.err


def test_launch_refuses_a_wrong_progress_before_it_looks_for_a_lab(cli: Cli, fake_lab: FakeLab) -> None:
    said = cli("launch", "--progress", "nanogtp", "--progress", "cvs=a", "--", "true")
    assert said.status == 125
    assert "did you mean nanogpt" in said.err and "did you mean csv" in said.err, "all mistakes at once"
    assert fake_lab.asked == []


@pytest.mark.parametrize("status", [0, 3])
def test_launch_says_where_its_run_is_at_its_begin_and_end(cli: Cli, fake_lab: FakeLab, status: int) -> None:
    fake_lab.child_status = status
    lines = cli("launch", "--", "true").err.splitlines()
    assert lines[-3:] == [
        "run directory: /runs/fake-1", "output and measurements: /runs/fake-1", "report: testbed report /runs/fake-1",
    ]  # fmt: skip


@pytest.mark.parametrize("by_sudo", [False, True])
def test_launch_names_a_run_as_the_callers_shell_finds_it(
    cli: Cli, fake_lab: FakeLab, monkeypatch: pytest.MonkeyPatch, by_sudo: bool
) -> None:
    """sudo removed what that shell may have in XDG_DATA_HOME or TESTBED_RUNS."""
    monkeypatch.setenv("TESTBED_RUNS", "/runs")
    monkeypatch.setattr("testbed.host.linux.program_user.caller", lambda: (1000, 1000) if by_sudo else None)
    named = "/runs/fake-1" if by_sudo else "fake-1"
    assert cli("launch", "--", "true").err.splitlines()[-1] == f"report: testbed report {named}"


def test_a_log_without_a_line_is_told_on_stderr(cli: Cli, fake_lab: FakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_lab, "logs", lambda what, follow: iter(()))
    said = cli("logs", "east-0")
    assert (said.status, said.out) == (0, "")
    assert "no output of east-0 yet: no program has written any since lab fake came up" in said.err
    assert cli("logs").err == ""


def test_logs(cli: Cli, fake_lab: FakeLab) -> None:
    assert cli("logs", "east-0", "-f").out == "one\ntwo\n"
    assert fake_lab.asked[-1] == ("logs", "east-0", True)


# ---- certify, status


@pytest.mark.parametrize(
    ("make", "options", "status", "verdict"),
    [
        (certificate_of, (), 0, "certified"),
        (certificate_of, ("--strict",), 0, "certified"),
        (lambda topology: noisy(certificate_of(topology)), (), 0, "certified, noisy host"),
        (lambda topology: noisy(certificate_of(topology)), ("--strict",), 3, "certified, noisy host"),
        (lambda topology: certificate_of(topology, 9e-5), (), 1, "outside tolerance"),
        (lambda topology: noisy(certificate_of(topology, 9e-5)), ("--strict",), 1, "outside tolerance"),
        (lambda topology: unmeasured(certificate_of(topology)), (), 3, "not measurable on this host now"),
        (lambda topology: unmeasured(certificate_of(topology, 9e-5)), (), 1, "outside tolerance"),
    ],
)
def test_certify_exits_by_its_verdict_and_prints_it(
    cli: Cli,
    fake_lab: FakeLab,
    make: Callable[[Topology], Certificate],
    options: tuple[str, ...],
    status: int,
    verdict: str,
) -> None:
    certificate = make(fake_lab.topology)
    fake_lab.certificate = certificate
    result = cli("certify", *options)
    assert result.status == status
    assert verdict in result.out.splitlines()
    assert ("Noisy host: it delayed 12% of the small packets" in result.err) == certificate.noisy
    written = cli("certify", *options, "--json")
    assert written.status == status
    document = json.loads(written.out)
    assert {key: document[key] for key in certificate.to_dict()} == json.loads(json.dumps(certificate.to_dict()))
    assert (document["verdict"], document["certified"]) == (verdict, verdict.startswith("certified"))


def test_certify_exit_status(cli: Cli, fake_lab: FakeLab) -> None:
    assert cli("certify").status == 0
    fake_lab.certificate = certificate_of(fake_lab.topology, error_s=90e-6)
    said = cli("certify", "--thorough")
    assert fake_lab.asked[-1] == ("certify", True)
    assert said.status == 1
    assert "outside tolerance" in said.out
    assert "90 us too long" in said.out
    assert json.loads(cli("certify", "--json").out)["verdict"] == "outside tolerance"


def test_status_says_what_is_wrong(cli: Cli, fake_lab: FakeLab) -> None:
    said = cli("status")
    assert said.out.startswith("fake: degraded for 1.02 min, topology metro-40km")
    assert "the keeper is gone" in said.out
    assert "east down" in said.out
    assert "west up" in said.out
    data = json.loads(cli("status", "--json").out)
    assert data["links"][0]["carrier"] == {"east": False, "west": True}
    assert data["ranks"][0]["train_loss"] == 2.5


# ---- run, report


def test_run_passes_its_options_and_ends_with_the_report(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {}

    def run(what: str, **words: Any) -> Any:
        asked.update(words, what=what)
        return finished_run(tmp_path)

    monkeypatch.setattr(api, "run", run)
    said = cli("run", "metro-40km", "--steps", "20", "--seed", "7", "--set", "scale=100", "--runs", str(tmp_path))
    assert said.status == 0
    assert (asked["what"], asked["steps"], asked["seed"], asked["runs"]) == ("metro-40km", 20, 7, tmp_path)
    assert asked["set"] == {"scale": "100"}
    assert asked["data"] is None
    lines = said.out.splitlines()
    assert lines[0] == "pass: It trained."
    assert lines[-1] == f"report: {tmp_path / 'index.html'}"
    assert "train_loss went from 5.5 to 2.1." in said.out


@pytest.mark.parametrize("status", [0, 1, 3, 130])
def test_run_exits_as_the_run_went(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int) -> None:
    monkeypatch.setattr(api, "run", lambda what, **words: finished_run(tmp_path, status))
    assert cli("run", "metro-40km").status == status


def test_report_of_the_latest_run(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    monkeypatch.setattr(api, "report", lambda run: (finished_run(tmp_path).report, page))
    assert cli("report").out.splitlines()[-1] == f"report: {page}"


@pytest.mark.parametrize(("verdict", "status"), [("pass", 0), ("fail", 1), ("unknown", 3)])
def test_train_exits_with_the_status_of_the_verdict(
    cli: Cli, fake_lab: FakeLab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verdict: str, status: int
) -> None:
    claim = SimpleNamespace(stop_why="", release=lambda *how: released.append(how))
    job = SimpleNamespace(id="j1", over=lambda: True, failure=lambda: "")
    report = finished_run(tmp_path).report
    report.verdict, released = verdict, []
    fake_lab.run_directory = SimpleNamespace(path=tmp_path)
    monkeypatch.setattr(FakeLab, "claimed", lambda *words: contextlib.nullcontext(claim), raising=False)
    monkeypatch.setattr(FakeLab, "train", lambda *words, **workload: job, raising=False)
    monkeypatch.setattr(FakeLab, "report", lambda *words: report, raising=False)
    said = cli("train", "--steps", "20")
    assert (said.status, released) == (status, [("finished", "", status)]), said.err


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize(
    ("ended", "verdict", "status"), [("finished", "pass", 0), ("failed", "fail", 1), ("interrupted", "unknown", 3)]
)
def test_report_exits_with_the_status_of_the_verdict(
    cli: Cli, tmp_path: Path, ended: str, verdict: str, status: int, words: tuple[str, ...]
) -> None:
    run = run_factory.make_run(tmp_path / "run", status=ended, steps=400 if ended == "finished" else 120)
    said = cli("report", str(run), *words)
    assert json.loads((run / "report.json").read_text())["verdict"] == verdict
    assert said.status == status, said.err


def test_open_without_a_display_says_so(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(api, "report", lambda run: (finished_run(tmp_path).report, tmp_path / "index.html"))
    said = cli("report", "--open")
    assert said.status == 2
    assert "no browser" in said.err


# ---- show, lint, doctor


def test_show_tells_where_each_value_came_from(cli: Cli) -> None:
    said = cli("show", "metro-40km", "--set", "links.north.km=80")
    rows = {line.split()[0]: line for line in said.out.splitlines() if line.split()}
    assert rows["links.north.km"].split()[1:] == ["80", "--set"]
    assert rows["links.north.fiber"].split()[1:] == ["smf", "default"]
    assert rows["links.south.km"].rstrip().endswith("metro-40km.yaml:8")
    assert "400 us" in said.out, "80 km at 5 us/km, one way"
    assert "800 us" in said.out, "and both ways"


def test_show_names_every_origin_of_every_shipped_topology(cli: Cli) -> None:
    for name in json.loads(cli("ls", "topologies", "--json").out):
        topology = api.load(name["name"])
        shown = {line.split()[0]: line.split() for line in cli("show", topology.name).out.splitlines() if line.split()}
        for key in topology.origins:
            assert shown[key][1] != "-", f"{topology.name}: {key} has no value"


def test_show_json_derives_physics(cli: Cli) -> None:
    data = json.loads(cli("show", "metro-40km", "--json").out)
    (north, south) = data["derived"]
    assert (north["link"], north["rate_bps"], north["real_rate_bps"]) == ("north", 8e8, 8e11)
    assert north["rtt_s"] == pytest.approx(2 * 40 * 5e-6)
    assert south["in_flight_bytes"] == 47 * 5 * 100  # 47 km x 5 us/km x 0.8 Gb/s / 8
    assert data["origins"]["links.north.km"].endswith("metro-40km.yaml:7")


def test_lint_tells_a_missing_field_from_a_missing_file(cli: Cli, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("topology: metro-40km\nset: {linx.north.km: 1}\nschedule: []\n")
    assert "unknown field 'linx.north.km'" in cli("lint", str(own)).out
    assert "no such file" in cli("lint", str(tmp_path / "owm.yaml")).out
    own.unlink()
    assert cli("lint", str(own)).out == f"{own}: no such file\n", "there is none to suggest"


def test_lint(cli: Cli, tmp_path: Path) -> None:
    good, bad, experiment = tmp_path / "good.yaml", tmp_path / "bad.yaml", tmp_path / "experiment.yaml"
    good.write_text("sites: {a1: {nodes: 1}, b1: {nodes: 1}}\nlinks:\n  x1: {between: [a1, b1], km: 10}\n")
    bad.write_text("sites: {a1: {nodes: 1}, b1: {nodes: 0}}\nlinks:\n  x1: {between: [a1, c1], km: -10}\n")
    experiment.write_text("schedule:\n  - {at: 20s, inject: no-such-fault, target: north}\n")
    assert cli("lint", str(good)).status == 0
    said = cli("lint", str(bad), str(good), str(experiment), str(tmp_path / "none.yaml"))
    assert said.status == 2
    places = [line.split(": ")[0] for line in said.out.splitlines()]
    assert places == [f"{bad}:1", f"{bad}:3", f"{bad}:3", f"{experiment}:2", str(tmp_path / "none.yaml")]
    found = json.loads(cli("lint", "--json", str(bad)).out)
    assert {"file", "line", "message", "fix"} == set(found[0])


MISTAKEN = """topology: {topology}
set: {{links.nroth.km: 80, sites.east.nodes: many, links.south.km: 60, linx.a: 3}}
workload: {{steps: 100}}
hypothesis: {{before: [ranks_up == 4, speed > 3]}}
schedule:
  - {{after: step 40%, inject: cut, target: nroth, for: 10s}}
  - {{after: step 900, inject: cut, target: "link[7]", for: 10s}}
  - {{at: 3s, inject: cot, target: soth, for: 10s}}
  - {{at: 3s, inject: cut, target: "north:wst", for: soon}}
  - {{at: 3s, inject: rank-kill, target: 99}}
  - {{inject: cut, target: south, with: {{cause: rodnt}}, for: 3s}}
  - {{at: 3s, inject: flap, target: nowhere, with: {{donw: 1s}}, for: 3s}}
  - {{at: 3s, inject: cut, target: west-0, for: 1s}}
expect: [goodput >= 0.5, spead > 3]
"""
"""Mistakes of every kind: each would hide others if it were looked for in a pass of its own."""


def test_lint_finds_what_does_not_fit_the_topology_in_the_same_pass(cli: Cli, tmp_path: Path) -> None:
    own = tmp_path / "x.yaml"
    own.write_text(MISTAKEN.format(topology="metro-40km"))
    said = cli("lint", str(own))
    assert said.status == 2
    for line, words in (
        (2, "unknown link 'nroth'; did you mean north?"),
        (2, "nodes of site 'east': expected a whole number, got 'many'"),
        (2, "unknown field 'linx.a'"),
        (4, "unknown metric 'speed'"),
        (6, "unknown link or duct 'nroth'; did you mean north?"),
        (7, "step 900 is out of range; expected 0 to 99"),
        (7, "unknown link 'link[7]' in topology 'metro-40km'"),
        (8, "unknown fault 'cot'; did you mean cut?"),
        (8, "unknown target 'soth'; did you mean south?"),
        (9, "unknown link end 'wst'; did you mean west?"),
        (9, "for of a fault: expected a time, got 'soon'"),
        (10, "unknown rank, node or site '99'"),
        (11, "a fault has no trigger"),
        (11, "unknown cause 'rodnt'; did you mean rodent?"),
        (12, "unknown flap parameter 'donw'"),
        (12, "unknown link or duct 'nowhere'"),
        (13, "unknown link or duct 'west-0'"),
        (14, "unknown metric 'spead'"),
    ):
        assert any(it.startswith(f"{own}:{line}: ") and words in it for it in said.out.splitlines()), (line, words)
    assert len(said.out.splitlines()) == 18, said.out
    assert "18 mistakes" in said.err
    # What is right shows: with them out of the way there are none.
    right = MISTAKEN.format(topology="metro-40km").splitlines()
    kept = [line for number, line in enumerate(right, 1) if number in (1, 3, 5)]
    own.write_text("\n".join([*kept, "  - {at: 3s, inject: cut, target: south, for: 1s}"]))
    assert cli("lint", str(own)).status == 0


def test_run_tells_the_same_mistakes_in_one_pass(cli: Cli, tmp_path: Path) -> None:
    own = tmp_path / "x.yaml"
    own.write_text(MISTAKEN.format(topology="metro-40km"))
    told = cli("lint", str(own)).out.splitlines()
    said = cli("run", str(own), "--runs", str(tmp_path / "runs"))
    assert said.status == 2
    assert [line.strip().removeprefix("testbed: ") for line in said.err.splitlines()] == told
    assert not (tmp_path / "runs").exists()


def test_lint_names_the_line_of_a_topology_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    own = tmp_path / "x.yaml"
    own.write_text(MISTAKEN.format(topology="metro-40kn"))
    said = cli("lint", str(own)).out
    assert f"{own}:1: unknown topology 'metro-40kn'; did you mean metro-40km?" in said
    assert f"{own}:8: unknown fault 'cot'" in said and f"{own}:14: unknown metric 'spead'" in said


def test_mistakes_of_a_topology_file_and_of_an_experiment_that_names_it_are_told_at_once(
    cli: Cli, tmp_path: Path
) -> None:
    topology, own = tmp_path / "t.yaml", tmp_path / "x.yaml"
    topology.write_text("sites: {a1: {nodes: 1}, b1: {nodes: 0}}\nlinks:\n  x1: {between: [a1, b1], km: 10}\n")
    own.write_text(f"topology: {topology}\nset: {{links.x1.km: -3}}\nexpect: [spead > 3]\n")
    places = [line.split(": ")[0] for line in cli("lint", str(own)).out.splitlines()]
    assert sorted(places) == [f"{topology}:1", f"{own}:2", f"{own}:3"]


def test_topologies_are_listed_in_short_and_whole_as_json(cli: Cli) -> None:
    said = cli("ls", "topologies")
    (row,) = (line for line in said.out.splitlines() if "ring-64" in line)
    assert "64 links of 12 km" in row
    (row,) = (line for line in said.out.splitlines() if "regional-ring" in line)
    assert "alba-brava 90 km, brava-costa 140 km, costa-alba 110 km" in row
    assert max(map(len, said.out.splitlines())) <= 120
    (ring,) = (it for it in json.loads(cli("ls", "topologies", "--json").out) if it["name"] == "ring-64")
    assert len(ring["links"]) == 64


def test_links_of_long_names_are_counted_in_a_list() -> None:
    text = "sites: {{a1: {{}}, b1: {{}}}}\nlinks: {{{}}}"
    links = [f"{name}: {{between: [a1, b1], km: {km}}}" for name, km in (("l" * 40, 10), ("m" * 40, 12))]
    one, two = (resolve.load_text(text.format(", ".join(it)).encode(), "x") for it in (links[:1], links))
    assert tables.links_in_short(one) == "l" * 40 + " 10 km"
    assert tables.links_in_short(two) == "2 links of 10 to 12 km"


def test_links_of_different_lengths_are_told_from_the_shortest_to_the_longest() -> None:
    links = ", ".join(f"l{n}: {{between: [a1, b1], km: {10 + n}}}" for n in range(7))
    text = f"sites: {{a1: {{nodes: 1}}, b1: {{nodes: 1}}}}\nlinks: {{{links}}}"
    assert tables.links_in_short(resolve.load_text(text.encode(), "x")) == "7 links of 10 to 16 km"


def test_shipped_files_have_no_mistakes(cli: Cli) -> None:
    root = Path(__file__).resolve().parents[3]
    files = [str(path) for folder in ("topologies", "experiments") for path in sorted((root / folder).glob("*.yaml"))]
    assert files
    said = cli("lint", *files)
    assert (said.status, said.out) == (0, "")


def test_doctor_exit_status(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from testbed.host import doctor

    lacking = doctor.Check("fiberd", "missing", "not compiled", "apt-get install gcc", needed=True)
    monkeypatch.setattr(doctor, "examine", lambda: (lacking,))
    said = cli("doctor")
    assert said.status == 3
    assert "apt-get install gcc" in said.out
    assert "cannot run the testbed. Missing: fiberd" in said.out
    assert json.loads(cli("doctor", "--json").out)["can_run"] is False
    monkeypatch.setattr(doctor, "examine", lambda: (doctor.Check("fiberd", "ok", "/somewhere", needed=True),))
    assert cli("doctor").status == 0


# ---- whose lab


@pytest.mark.parametrize(
    ("words", "suggested"),
    [
        (("cut", "north", "--for", "10s"), "testbed cut -l metro north --for 10s"),
        (("inject", "flap", "north", "down=0.2 s"), "testbed inject -l metro flap north 'down=0.2 s'"),
        (("heal",), "testbed heal -l metro"),
        (("launch", "--", "true"), "testbed launch -l metro -- true"),
        (("exec", "east-0", "true"), "testbed exec -l metro east-0 true"),
        (("certify",), "testbed certify -l metro"),
        (("down",), "testbed down metro"),
    ],
)
def test_a_verb_that_changes_a_lab_takes_no_lab_of_another_user_by_itself(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...], suggested: str
) -> None:
    monkeypatch.setenv("TESTBED_STATE", str(tmp_path))
    monkeypatch.setattr(login, "current", lambda: login.Login(4711, None, "/dev/pts/3"))
    (tmp_path / "labs" / "metro").mkdir(parents=True)
    lab_owner.record(lab_folder.folder("metro"))
    monkeypatch.setattr(login, "current", lambda: login.Login(4712))
    monkeypatch.setattr(sys, "argv", ["testbed", *words])
    said = cli(*words)
    assert said.status == (125 if words[0] in ("launch", "exec") else 2)
    assert said.out == ""
    assert f" {suggested}  # brought up by uid 4711 at " in said.err
    assert "from /dev/pts/3" in said.err
    assert (tmp_path / "labs" / "metro").is_dir()
