"""`up --observe` with the real Prometheus, queried by promtool and plain HTTP from inside the management namespace.

Expected values of series come from the kernel (`ip`), from a file, or from the test itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import host_stalls
import pytest
from builders.commands import TESTBED, Child, Command, captured, piped, run_line
from builders.conditions import LABS, NEEDS_PROMETHEUS
from builders.json_files import read_json, read_lines
from builders.labs import Lab, OwnLab, bring_up, ns
from builders.proc import status_of, until_gone
from oracles import oracle

import testbed
from testbed.errors import HostError, LabError, MissingTool, UserError

pytestmark = [*LABS, NEEDS_PROMETHEUS]

EXPORTER, PROMETHEUS = "172.31.0.1:9101", "172.31.0.1:9090"

BITS = 'testbed_fiber_rate_bits_per_second use base unit "bytes" instead of "bits"'
"""The one thing that promtool has to say: the rates of fibers are in bits per second everywhere, in topologies too."""

WHILE_HEALTHY = (
    "testbed_fiber_packets_total",
    "testbed_fiber_bytes_total",
    "testbed_fiber_segments_total",
    "testbed_fiber_dropped_packets_total",
    "testbed_fiber_corrupted_packets_total",
    "testbed_fiber_duplicated_packets_total",
    "testbed_fiber_held_back_packets_total",
    "testbed_fiber_queue_bytes",
    "testbed_fiber_lateness_seconds_bucket",
    "testbed_fiber_lateness_seconds_count",
    "testbed_fiber_delay_seconds",
    "testbed_fiber_rate_bits_per_second",
    "testbed_link_up",
    "testbed_link_carrier_changes_total",
    "testbed_rank_up",
    "testbed_faults_total",
    "testbed_certified",
    "testbed_certificate_timestamp_seconds",
    "testbed_certificate_within_tolerance",
    "testbed_certificate_delay_error_seconds",
    "testbed_certificate_tolerance_seconds",
    "testbed_emulator_up",
    "testbed_emulator_cpu_seconds_total",
    "testbed_keeper_cpu_seconds_total",
    "testbed_emulator_info",
    "testbed_transmit_bytes_total",
    "testbed_receive_bytes_total",
)
"""What the keeper exports while no fault is in force, as docs/observability.md has it."""

Labels = frozenset[tuple[str, str]]


@pytest.fixture(scope="module")
def lab(state_folder: Path) -> Iterator[Lab]:
    """metro-40km with agents, observed, up for all tests of this module."""
    name = oracle.unused_name()
    with bring_up(name, agents=True, observe=True) as up:
        # Prometheus looks for targets every five seconds.
        oracle.until(lambda: len(asked(name, "up == 1")) == 5, 20.0, "every target is up")
        yield up
    assert oracle.left_behind(name, state_folder) == []
    assert oracle.working_in(state_folder) == []


def fetch(lab: str, where: str) -> str:
    """Body of http://``where`` as it is seen from the management namespace."""

    def get() -> str:
        with urllib.request.urlopen(f"http://{where}", timeout=10) as answer:
            return str(answer.read().decode())

    return oracle.inside(oracle.netns(lab, "mgmt"), get)


def asked(lab: str, expression: str) -> dict[Labels, float]:
    """`promtool query instant`: labels of each sample, the metric's name as ``__name__`` left out, and its value."""
    argv = ["ip", "netns", "exec", oracle.netns(lab, "mgmt"), "promtool", "query", "instant"]
    found = {}
    for line in oracle.run(*argv, f"http://{PROMETHEUS}", expression).splitlines():
        series, arrow, value = line.partition(" => ")
        if not arrow:
            continue  # no sample is an empty line
        labels = frozenset(re.findall(r'(\w+)="([^"]*)"', series))
        found[labels] = float(value.split()[0])
    return found


def exported(lab: str, name: str, **labels: str) -> float:
    """The one sample of this name whose labels are exactly these, from the exporter itself."""
    for line in fetch(lab, f"{EXPORTER}/metrics").splitlines():
        series, _, value = line.rpartition(" ")
        if series.partition("{")[0] == name and dict(re.findall(r'(\w+)="([^"]*)"', series)) == labels:
            return float(value)
    raise AssertionError(f"no sample {name} {labels}")


# ---- what is scraped


def test_promtool_finds_no_mistake_in_the_configuration(lab: Lab, state_folder: Path) -> None:
    said = run_line("promtool check config", state_folder / "labs" / lab.name / "prometheus" / "prometheus.yml")
    assert "SUCCESS" in said and "rules found" in said


@pytest.mark.parametrize(("target", "remarks"), [(EXPORTER, [BITS]), ("172.31.0.2:9100", [])])
def test_promtool_finds_no_mistake_in_the_metrics(lab: Lab, target: str, remarks: list[str]) -> None:
    text = fetch(lab.name, f"{target}/metrics")
    done = captured(["promtool", "check", "metrics"], input=text, timeout=30)
    assert (done.stdout + done.stderr).splitlines() == remarks


def test_every_target_says_whose_it_is(lab: Lab) -> None:
    found = [dict(labels) for labels, value in asked(lab.name, "up").items() if value == 1]
    assert {it.pop("lab") for it in found} == {lab.name}
    ranks = [(it["site"], it["node"], it["rank"]) for it in found if it["job"] == "agents"]
    assert sorted(ranks) == [
        ("east", "east-0", "0"),
        ("east", "east-1", "1"),
        ("west", "west-0", "2"),
        ("west", "west-1", "3"),
    ]
    assert [it["instance"] for it in found if it["job"] == "lab"] == [EXPORTER]


def test_every_series_of_the_keeper_is_there(lab: Lab) -> None:
    answer = json.loads(fetch(lab.name, f"{PROMETHEUS}/api/v1/label/__name__/values?match[]={{job=%22lab%22}}"))
    assert set(WHILE_HEALTHY) <= set(answer["data"])


STORED = {
    "steps": "testbed_steps_total",
    "tokens": "testbed_tokens_total",
    "compute_s": "testbed_compute_seconds_total",
    "peer_wait_s": 'testbed_exposed_communication_seconds_total{part="peer_wait"}',
    "network_s": 'testbed_exposed_communication_seconds_total{part="network"}',
    "cpu_s": "testbed_process_cpu_seconds_total",
    "memory_bytes": "testbed_process_resident_memory_bytes",
}


def test_both_ways_of_watching_see_the_same_series(lab: Lab) -> None:
    """What the built-in scraper stored of the ranks, what Prometheus answers, and the step records, once a job is
    over."""
    job = lab.train(steps=20)
    job.wait_for(5)
    early = asked(lab.name, "testbed_steps_total")
    job.wait()
    oracle.until(lambda: set(asked(lab.name, "testbed_steps_total").values()) == {20.0}, 10.0, "the last step is seen")
    assert all(value < 20 for value in early.values())
    lab.report()  # the built-in scraper has written its last
    text = (lab.run_directory.path / "metrics.jsonl").read_text()
    lines = [(json.loads(line), len(line) + 1) for line in text.splitlines()]
    assert max(length for it, length in lines if it["kind"] == "rank") <= 200
    stored = {it["rank"]: it for it, _ in lines if it["kind"] == "rank"}
    assert len(stored) == 4

    # Each scrape itself takes time of the CPU, and memory: these two go on.
    for key, series in STORED.items():
        theirs = {int(dict(labels)["rank"]): value for labels, value in asked(lab.name, series).items()}
        near: dict[str, Any] = {"cpu_s": {"abs": 5.0}, "memory_bytes": {"rel": 0.2}}.get(key, {"abs": 0.002})
        assert {rank: it[key] for rank, it in stored.items()} == pytest.approx(theirs, **near), key

    for rank, it in stored.items():
        records = read_lines(lab.run_directory.ranks / f"rank-{rank}.jsonl")
        steps = [record for record in records if record["kind"] == "step"]
        assert (it["steps"], it["tokens"]) == (len(steps), sum(each["tokens"] for each in steps))
        assert it["compute_s"] == pytest.approx(sum(each["compute_s"] for each in steps), abs=0.002)
        exposed_s = it["peer_wait_s"] + it["network_s"]
        assert exposed_s == pytest.approx(sum(each["exposed_s"] for each in steps), abs=0.003)
    said = read_json(lab.run_directory.path / "report.json")["scraped"]
    assert [each["disagreement"] for each in said["comparisons"]] == [0.0] * 3


def test_a_fiber_is_counted_for_the_site_that_it_leaves(lab: Lab) -> None:
    """50 datagrams of 1400 B from east to west, and nothing back."""
    gateways = {site: ns(lab, f"{site}-gw") for site in ("east", "west")}
    there = oracle.addresses(gateways["west"], "north")["inet"]

    def receiver() -> socket.socket:
        found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        found.bind((there, 0))
        return found

    def counted() -> dict[str, float]:
        name = "testbed_fiber_bytes_total"
        return {site: exported(lab.name, name, link="north", site=site) for site in gateways}

    before = counted()
    with oracle.inside(gateways["west"], receiver) as end:
        with oracle.inside(gateways["east"], lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
            for _ in range(50):
                sender.sendto(bytes(1400), end.getsockname())
                time.sleep(0.0005)
        end.settimeout(5.0)
        for _ in range(50):
            end.recv(2000)
    after = counted()
    grown = {site: after[site] - before[site] for site in gateways}
    assert 50 * 1442 <= grown["east"] < 70 * 1442
    assert grown["west"] < 20 * 1442


def test_gateways_are_counted_as_the_kernel_counts_them(lab: Lab) -> None:
    def by_ip() -> tuple[int, int]:
        (link,) = oracle.ip(ns(lab, "west-gw"), "-s", "link", "show", "dev", "south")
        return link["stats64"]["tx"]["bytes"], link["stats64"]["rx"]["bytes"]

    before = by_ip()
    labels = {"site": "west", "node": "west-gw", "interface": "south"}
    sent = exported(lab.name, "testbed_transmit_bytes_total", **labels)
    received = exported(lab.name, "testbed_receive_bytes_total", **labels)
    after = by_ip()
    assert before[0] <= sent <= after[0] and before[1] <= received <= after[1]
    assert sent > 0


def test_a_cut_is_seen_and_its_heal(lab: Lab) -> None:
    def lit(link: str) -> set[float]:
        return set(asked(lab.name, f'testbed_link_up{{link="{link}"}}').values())

    changes = asked(lab.name, "sum(testbed_link_carrier_changes_total)")
    cuts = asked(lab.name, 'testbed_faults_total{type="cut"}')
    with lab.cut("north"):
        oracle.until(lambda: lit("north") == {0.0}, 5.0, "both ends are seen dark")
        assert lit("south") == {1.0}
        (fault,) = asked(lab.name, "testbed_fault_active")
        assert ("type", "cut") in fault and ("target", "north") in fault
    oracle.until(lambda: lit("north") == {1.0}, 5.0, "both ends are seen lit")
    oracle.until(lambda: not asked(lab.name, "testbed_fault_active"), 5.0, "no fault is in force")
    after = asked(lab.name, "sum(testbed_link_carrier_changes_total)")
    assert [after[key] - value for key, value in changes.items()] == [4], "two gateways, there and back"
    now = asked(lab.name, 'testbed_faults_total{type="cut"}')
    assert [now[key] - value for key, value in cuts.items()] == [1]


def test_one_direction_that_is_cut_is_dark_at_its_receiver(lab: Lab) -> None:
    with lab.cut("north:west"):
        dark = {("link", "north"), ("site", "west")}
        oracle.until(
            lambda: [it for it in asked(lab.name, "testbed_link_up == 0") if dark <= it], 5.0, "west sees no light"
        )
        assert len(asked(lab.name, "testbed_link_up == 0")) == 1
    oracle.until(lambda: not asked(lab.name, "testbed_link_up == 0"), 5.0, "all are lit")


def test_what_a_fiber_should_do_does_not_follow_faults(lab: Lab) -> None:
    with lab.inject("impair", "north", delay="20ms"):
        delays = asked(lab.name, 'testbed_fiber_delay_seconds{link="north"}')
    assert list(delays.values()) == [pytest.approx(200e-6, rel=0.05)] * 2


@pytest.mark.alone
def test_the_certificate_is_what_its_file_says(lab: Lab, state_folder: Path) -> None:
    path = state_folder / "labs" / lab.name / "certificate.json"

    def agree() -> bool:
        written = read_json(path)
        assert list(asked(lab.name, "testbed_certified").values()) == [float(written["certified"])]
        taken = next(iter(asked(lab.name, "testbed_certificate_timestamp_seconds").values()))
        return bool(taken == pytest.approx(written["taken_unix_s"], abs=0.01))

    oracle.until(agree, 5.0, "the time of the certificate")
    testbed.attach(lab.name).certify()
    oracle.until(agree, 5.0, "the time of the new one")
    north = next(it for it in read_json(path)["links"] if it["name"] == "north")
    west = next(it for it in north["directions"] if it["direction"] == "north:west")
    leaves_east = {"link": "north", "site": "east"}
    assert exported(lab.name, "testbed_certificate_tolerance_seconds", **leaves_east) == west["tolerance_s"]
    error = exported(lab.name, "testbed_certificate_delay_error_seconds", **leaves_east)
    assert error == pytest.approx(west["error_s"]["median"])


@pytest.mark.alone
def test_who_asks_and_stays_silent_keeps_nobody_waiting(lab: Lab) -> None:
    management = ns(lab, "mgmt")
    address = ("172.31.0.1", 9101)
    silent = [oracle.inside(management, lambda: socket.create_connection(address, 5)) for _ in range(5)]
    try:
        began = time.monotonic()
        assert "testbed_emulator_up 1.0" in fetch(lab.name, f"{EXPORTER}/metrics")
        assert host_stalls.elapsed_s(began) < 1.5
    finally:
        for each in silent:
            each.close()


def test_another_page_is_not_there(lab: Lab) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetch(lab.name, f"{EXPORTER}/")


# ---- who it is


def test_the_server_has_no_privileges_and_is_nowhere_else(lab: Lab, state_folder: Path) -> None:
    (pid,) = oracle.working_in(state_folder)
    fields = status_of(pid)
    assert set(fields["Uid"].split()) == set(fields["Gid"].split()) == {"65534"}
    assert fields["Groups"].split() == []
    assert {int(fields[f"Cap{kind}"], 16) for kind in ("Eff", "Prm", "Inh", "Amb")} == {0}
    assert fields["NoNewPrivs"] == "1"
    management = Path("/run/netns", ns(lab, "mgmt")).stat().st_ino
    assert Path(f"/proc/{pid}/ns/net").stat().st_ino == management
    environment = Path(f"/proc/{pid}/environ").read_bytes().decode()
    assert "TESTBED" not in environment, "what we were started with is none of its business"


def test_the_lab_says_that_it_is_observed(lab: Lab, command: Command) -> None:
    assert "emulator fiberd, with Prometheus" in " ".join(command(f"status -l {lab.name}").stdout.split())
    assert json.loads(command(f"status -l {lab.name} --json").stdout)["prometheus"] == PROMETHEUS


@pytest.mark.parametrize("words", [[], ["--no-agents"]])
def test_a_dry_run_shows_the_step(command: Command, words: list[str]) -> None:
    *_, last = command("up metro-40km --observe --dry-run", *words).stdout.splitlines()
    ranks = 0 if words else 4
    assert last == f"prometheus mgmt: {PROMETHEUS} scrapes {ranks} ranks and {EXPORTER}, the keeper"
    assert "prometheus" not in command("up metro-40km --dry-run", *words).stdout


# ---- testbed observe


@contextlib.contextmanager
def observing(*words: str) -> Iterator[tuple[Child, str]]:
    """`testbed observe` as a process, and the URL that it says first."""
    argv = [*TESTBED, "observe", *words]
    with piped(argv) as child:
        try:
            yield child, child.stdout.readline().strip()
        finally:
            child.kill()


def test_observe_leads_a_port_of_this_host_to_it_until_ctrl_c(lab: Lab) -> None:
    with observing(lab.name, "--port", "0") as (child, url):
        host, port = re.fullmatch(r"http://([\d.]+):(\d+)", url).groups()  # type: ignore[union-attr]
        assert host == "127.0.0.1"
        listening = f"{socket.htonl(int.from_bytes(socket.inet_aton(host), 'big')):08X}:{int(port):04X}"
        assert listening in Path("/proc/net/tcp").read_text()
        for _ in range(3):
            with urllib.request.urlopen(f"{url}/api/v1/query?query=up", timeout=10) as answer:
                assert len(json.load(answer)["data"]["result"]) == 5
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=10)
        assert child.returncode == 130 and "Traceback" not in out + err
    with pytest.raises(OSError):
        socket.create_connection((host, int(port)), 1).close()


def test_a_port_that_is_taken_is_said_so(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} of 127.0.0.1 is in use; choose another with --port"):
            lab.observe(port)


def test_a_lab_that_is_not_observed_has_nothing_of_it(own: OwnLab) -> None:
    with bring_up(own) as plain:
        with pytest.raises(UserError, match=f"lab {own} runs no Prometheus; .*testbed up --observe"):
            plain.observe(0)
        assert plain.prometheus == plain.status().prometheus == ""
        assert run_line("ip netns exec", oracle.netns(own, "mgmt"), "ss", "-ltnH") == ""
        folder = own.folder
        assert not (folder / "prometheus").exists() and not (folder / "prometheus.log").exists()


# ---- trouble


@pytest.mark.thorough
def test_two_observed_labs_are_apart(lab: Lab, lab_name: str) -> None:
    with bring_up(lab_name, "intra-metro-5km", observe=True):
        oracle.until(lambda: asked(lab_name, 'up{job="lab"} == 1'), 20.0, "its own exporter is scraped")
        assert {dict(labels)["lab"] for labels in asked(lab_name, "testbed_link_up")} == {lab_name}
    assert len(asked(lab.name, "up == 1")) == 5


@pytest.mark.thorough
def test_killed_with_its_keeper_and_down_leaves_nothing(own: OwnLab, lab: Lab) -> None:
    others = oracle.working_in(own.state)
    bring_up(own, observe=True)
    (mine,) = set(oracle.working_in(own.state)) - set(others)
    oracle.kill(own.keepers())
    until_gone(mine, bound_s=5.0)
    assert testbed.down(own) is True
    assert own.left() == []
    assert oracle.working_in(own.state) == others


@pytest.mark.thorough
def test_that_it_ended_is_told_and_stops_nothing_else(own: OwnLab, lab: Lab, command: Command) -> None:
    others = oracle.working_in(own.state)
    with bring_up(own, observe=True) as mine:
        with observing(own, "--port", "0") as (child, _):
            oracle.kill(list(set(oracle.working_in(own.state)) - set(others)))
            _, err = child.communicate(timeout=10)
            assert child.returncode == LabError.exit_code and f"Prometheus of lab {own} has ended" in err
        (why,) = mine.status().why
        assert why == "Prometheus was killed by SIGKILL: nothing scrapes the lab any more"
        assert mine.status().state == "degraded"
        with pytest.raises(LabError, match="was killed by SIGKILL"):
            mine.observe(0)
        assert (
            "prometheus was killed by SIGKILL; the lab continues without monitoring" in command(f"logs -l {own}").stdout
        )
        with mine.cut("north"):
            assert oracle.no_carrier(oracle.netns(own, "east-gw"), "north")


def test_without_the_program_nothing_is_built(own: OwnLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTool, match=r"prometheus is missing: .*install it with: apt-get install prometheus"):
        bring_up(own, observe=True)
    assert not own.folder.exists()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may look into; pytest's own are closed to the user that the server runs as."""
    with tempfile.TemporaryDirectory(prefix="testbed-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_one_that_does_not_come_up_is_quoted_and_the_lab_undone(
    own: OwnLab, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = open_folder / "prometheus"
    fake.write_text("#!/bin/sh\necho 'err=\"no room for the head block\"' >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{open_folder}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises((LabError, HostError), match=r"prometheus ended with status 3: .*no room for the head block"):
        bring_up(own, observe=True)
    assert own.left() == []


STUBBORN = """#!/bin/sh
exec setpriv --pdeathsig clear -- perl -e 'sleep 600' -- "$@"
"""
"""Never ready, and without the signal that a child gets when its parent dies."""


def test_one_that_outlives_a_keeper_killed_while_it_starts_is_found_by_its_folder(
    own: OwnLab, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal does not know its pid yet."""
    fake = open_folder / "prometheus"
    fake.write_text(STUBBORN)
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{open_folder}{os.pathsep}{os.environ['PATH']}")
    folder = own.folder / "prometheus"
    words = f"up metro-40km --name {own} --no-agents --observe --keep".split()
    argv = [*TESTBED, *words]
    with piped(argv) as child:

        def stubborn() -> list[int]:
            return [pid for pid in oracle.working_in(folder) if Path(f"/proc/{pid}/comm").read_text().strip() == "perl"]

        oracle.until(stubborn, 30.0, "the server has been started")
        (pid,) = stubborn()
        oracle.kill(own.keepers())
        _, err = child.communicate(timeout=30)
        assert child.returncode == LabError.exit_code and "Traceback" not in err
    assert Path(f"/proc/{pid}").exists(), "the kernel has not ended it"
    assert testbed.down(own) is True
    assert oracle.working_in(folder) == []
