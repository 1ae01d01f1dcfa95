"""Every verb on another host: a host of namespaces with a real sshd, seen by `ip`, /proc and `ls` there."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import random
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from builders import ROOT
from builders.commands import TESTBED, argv_of, captured, check, check_refused, run_line, words_of
from builders.conditions import HOSTS
from builders.json_files import read_json
from client_of_hosts import HEEDS_CTRL_C, Far, environment, on
from oracles import oracle

pytestmark = HOSTS


def test_a_lab_there_is_used_as_one_here(far: Far, tmp_path: Path) -> None:
    (tmp_path / "mein Labor é.yaml").write_text((ROOT / "topologies" / "metro-single.yaml").read_text())
    up = far("up 'mein Labor é.yaml' --name near --no-agents --allow-uncertified", cwd=tmp_path)
    assert up.returncode == 0, up.stderr
    assert "sent to h1: mein Labor é.yaml" in " ".join(up.stderr.split())
    assert "north → west" in up.stdout
    assert {"tb.near.east-0", "tb.near.plant"} <= {it.name for it in far.host.path("/run/netns").iterdir()}
    assert not oracle.namespaces("near"), "nothing is made here"
    shown = on(far.hosts, "--on h1 status -l near --json")
    assert json.loads(shown.stdout)["name"] == "near"
    script = "cat; echo here >&2; hostname; exit 4"
    done = far("exec -l near east-0 -- sh -c", script, given="1\n2\n")
    assert (done.returncode, done.stdout, done.stderr) == (4, "1\n2\neast-0\n", "here\n")
    hint = next(it for it in up.stderr.splitlines() if " down --on " in it)
    assert shlex.split(hint) == argv_of("down --on h1 near")
    check(on(far.hosts, *shlex.split(hint)[len(TESTBED) :]))


def test_a_hint_names_the_host_and_the_file_as_they_were_typed(far: Far, tmp_path: Path) -> None:
    (tmp_path / "mein Labor é.yaml").write_text((ROOT / "topologies" / "metro-single.yaml").read_text())
    (tmp_path / "work").mkdir()
    line = "show '../mein Labor é.yaml'"
    typed = far(line, cwd=tmp_path / "work")
    named = on(far.hosts, line, cwd=tmp_path / "work", TESTBED_ON="h1")
    for shown, host in ((typed, ["--on", "h1"]), (named, [])):
        assert shown.returncode == 0, shown.stderr
        (hint,) = re.findall(r"; more: (.*)", shown.stderr)
        assert shlex.split(hint) == [*TESTBED, "predict", *host, "../mein Labor é.yaml"]


def test_a_child_there_knows_nothing_of_the_client(far: Far) -> None:
    """Neither a program of `exec` nor the lab's keeper and its children have the words of any client."""
    shown = far("exec -l far east-0 -- env")
    assert shown.returncode == 0, shown.stderr
    assert "CLIENT_WORDS" not in shown.stdout
    told = {pid: Path(f"/proc/{pid}/environ").read_bytes() for pid, line in far.host.pids().items() if "far" in line}
    assert told
    assert not any(b"CLIENT_WORDS" in it for it in told.values())


def test_ctrl_c_of_a_terminal_that_is_not_stdin_arrives_once(far: Far) -> None:
    """The terminal here sends it to the client's process group; a program that takes signals one by one counts it."""
    program = (
        "import signal, time; signal.pthread_sigmask(0, {2}); print('ready', flush=True); got = 0\n"
        "while signal.sigtimedwait({2}, 1 if got else 20): got += 1\n"
        "print('got', got, 'in all', flush=True)"
    )
    words = argv_of("exec --on h1 -l far east-0 --", sys.executable, "-c", program)
    master, slave = pty.openpty()
    with open(os.devnull) as nothing:  # noqa: PTH123
        client = subprocess.Popen(
            [sys.executable, "-c", HEEDS_CTRL_C, *far.hosts.client(*words)],
            env=environment(far.hosts),
            stdin=nothing,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
    os.close(slave)
    seen = b""
    with contextlib.suppress(OSError):  # EIO: the client has ended
        while piece := os.read(master, 65536):
            if b"ready" in piece:
                os.killpg(client.pid, signal.SIGINT)
            seen += piece
    os.close(master)
    assert client.wait(timeout=20) == 0, seen
    assert b"got 1 in all" in seen


def test_a_mistake_is_told_as_here(far: Far, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("sites: 3\n")
    there = far("lint bad.yaml", cwd=tmp_path)
    here = on(far.hosts, "lint bad.yaml", cwd=tmp_path)
    assert there.returncode == here.returncode == 2
    assert there.stdout == here.stdout
    assert here.stderr in there.stderr


KEYS = {
    "unknown": ("{nothing}", "its key is not known (ssh-ed25519 SHA256:"),
    "changed": ("192.0.2.11 {other}", r"offers another key .* than \S+/kh:1 says"),
    "revoked": ("192.0.2.11 {key}\n@revoked * {key}", r"is revoked by \S+/kh:2"),
    "authority": ("@cert-authority 192.0.2.* {other}", r"only the certificate authority of \S+/kh:1 vouches for it"),
    "known": ("@cert-authority *.example.net {other}\n@revoked * {other}\nnonsense\n192.0.2.11 {key}", ""),
    "hashed": ("{hashed}", ""),
}


@pytest.mark.parametrize("what", KEYS)
def test_a_host_is_known_by_its_key_alone(far: Far, tmp_path: Path, what: str) -> None:
    lines, refusal = KEYS[what]
    run_line("ssh-keygen -q -t ed25519 -N", "", "-f", tmp_path / "other")
    other = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    known = tmp_path / "kh"
    known.write_text(f"192.0.2.11 {far.host.key}\n")
    if what == "hashed":
        run_line("ssh-keygen -q -H -f", known)
    else:
        known.write_text(lines.format(key=far.host.key, other=other, nothing="") + "\n")
    config = tmp_path / "config"
    config.write_text(far.hosts.config.read_text().replace(str(far.hosts.known_hosts), str(known)))
    before = known.read_bytes()
    done = far("ls labs", config=config)
    assert known.read_bytes() == before, "no key is learned"
    if refusal:
        assert done.returncode == 2
        assert re.search(f"h1: refused: .*{refusal}" if "\\" in refusal else re.escape(refusal), done.stderr), (
            done.stderr
        )
        assert done.stderr.count("\n") == 1
    else:
        assert done.returncode == 0, done.stderr


def test_a_user_whose_key_is_not_accepted(far: Far, tmp_path: Path) -> None:
    run_line("ssh-keygen -q -t ed25519 -N", "", "-f", tmp_path / "other")
    config = tmp_path / "config"
    config.write_text(far.hosts.config.read_text().replace(f"{far.hosts.folder}/client", str(tmp_path / "other")))
    done = far("status", config=config)
    check_refused(done, 2, "root is not let in at 192.0.2.11")
    assert done.stderr.count("\n") == 1
    check_refused(on(far.hosts, "status --on 192.0.2.99", config=config), 3, "cannot connect to 192.0.2.99 port 22")


def test_another_version_there_is_not_used(far: Far) -> None:
    leash = far.host.path("/usr/local/bin/testbed-leash")
    content = leash.read_text()
    try:
        leash.write_text("#!/bin/sh\necho testbed-leash 0.0.1\ncat > /dev/null\n")
        check_refused(far("status"), 2, "has testbed 0.0.1", "host prepare h1")
        leash.unlink()
        check_refused(far("status"), 2, "not installed there")
    finally:
        leash.write_text(content)
        leash.chmod(0o755)


def test_what_start_up_files_print_there_is_no_answer(far: Far) -> None:
    startup = far.host.path("/root/.bashrc")  # hosts begin without one
    try:
        startup.write_text("printf 'hello\\ntestbed-leash? '\n")
        with Path("/dev/full").open("w") as full:
            words = far.hosts.client(*TESTBED, "ls", "topologies", "--on", "h1")
            done = subprocess.run(
                words,
                env=environment(far.hosts),
                stdin=subprocess.DEVNULL,
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
            )
        check_refused(done, 3, "could not write the output: No space left")
    finally:
        startup.unlink()


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("status --on ''", id="no name behind the verb"),
        pytest.param("--on '' status", id="no name before the verb"),
        pytest.param("status --on a..b", id="an empty label"),
        pytest.param("status --on -oX", id="an option of ssh"),
    ],
)
def test_no_host_is_not_this_one(far: Far, line: str) -> None:
    done = on(far.hosts, line)
    assert (done.returncode in (2, 3), "expected a" in done.stderr, done.stderr.count("\n")) == (True, True, 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_runs_there_ends_with_the_client(far: Far, number: signal.Signals) -> None:
    client = far.begin("exec -l far east-0 -- sleep 7136")
    far.until_runs("sleep 7136", 20.0)
    client.send_signal(number)
    client.communicate(timeout=20)
    assert client.returncode in (-number, 128 + number, 130)
    far.until_ends("sleep 7136")
    assert json.loads(far("status -l far --json").stdout)["name"] == "far", "it stays"


def ended_while_built(far: Far, line: str, number: signal.Signals, after_s: float, undone_s: float) -> None:
    """End the client of a lab ``near`` while it is being built there; the lab must be undone."""

    def is_there() -> bool:
        return any(it.name.startswith("tb.near.") for it in far.host.path("/run/netns").iterdir())

    client = far.begin(line)
    oracle.until(is_there, 30.0, "it is being built")
    time.sleep(after_s)
    client.send_signal(number)
    client.communicate(timeout=30)
    assert client.returncode in (-number, 130)
    oracle.until(lambda: not is_there(), undone_s, "it is undone")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_up_undoes_itself(far: Far, number: signal.Signals) -> None:
    after_s = random.Random(number).random() * 0.5
    ended_while_built(far, "up metro-40km --name near --no-agents --allow-uncertified", number, after_s, 10.0)


def test_a_terminal_is_one_there(far: Far) -> None:
    """Its size, a resize, Ctrl-C as its line discipline makes it, and what is typed."""
    pid, terminal = pty.fork()
    if pid == 0:
        words = far.hosts.client(*TESTBED, "exec", "--on", "h1", "-l", "far", "east-0", "--", "bash", "--norc")
        os.execvpe(words[0], words, environment(far.hosts, TERM="dumb", PS1="$ "))
    seen = b""

    def shows(text: str) -> bool:
        nonlocal seen
        with contextlib.suppress(OSError):  # EIO: it has ended
            seen += os.read(terminal, 65536)
        return re.search(text.encode(), seen) is not None

    try:
        os.set_blocking(terminal, False)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 97, 0, 0))
        oracle.until(lambda: shows(r"[$#] "), 20.0, "a prompt")
        os.write(terminal, b"stty size; tty\n")
        oracle.until(lambda: shows(r"31 97[\r\n]+/dev/pts/"), 10.0, "the size")
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        os.kill(pid, signal.SIGWINCH)
        oracle.until(lambda: os.write(terminal, b"stty size\n") and shows(r"40 120"), 10.0, "the new size")
        os.write(terminal, b"sleep 7137\n")
        far.until_runs("sleep 7137", 10.0)
        os.write(terminal, b"\x03")
        far.until_ends("sleep 7137")
        os.write(terminal, b"exit 5\n")
        ended: list[int] = []

        def over() -> bool:
            shows("$^")
            done, status = os.waitpid(pid, os.WNOHANG)
            ended.extend([os.waitstatus_to_exitcode(status)] if done else [])
            return bool(done)

        oracle.until(over, 10.0, "it ends")
        assert ended == [5]
    finally:
        os.close(terminal)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(it.relative_to(folder)): it.read_bytes() for it in folder.rglob("*") if it.is_file()}


RUNS = "/var/lib/testbed/runs"
REPORT = ("index.html", "report.json", "report.md")


def same_reports(far: Far, run: Path) -> None:
    """Make the report of a fetched run anew at both ends, whose clocks show different zones; compare them by byte."""
    there = far.run(run.name)
    for name in REPORT:
        (run / name).unlink(missing_ok=True)
        (there / name).unlink(missing_ok=True)
    enter = words_of(f"nsenter -t {far.host.first()} -m -u -i -n -p -- testbed report {RUNS}/{run.name}")
    plain = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "TZ": "Asia/Kolkata"}
    made = captured(enter, env=plain, timeout=60)
    near = on(far.hosts, f"report {run}", TZ="America/St_Johns", COLUMNS="60", LANG="C.UTF-8")
    assert made.returncode == near.returncode, made.stderr + near.stderr
    for name in REPORT:
        assert (run / name).read_bytes() == (there / name).read_bytes(), name


def test_a_run_is_here_when_it_has_ended(far: Far, tmp_path: Path) -> None:
    (tmp_path / "mine é.py").write_text("import os; print('rank', os.environ['RANK'], 'of mine')\n")
    launch = f"launch -l far --runs {tmp_path}/runs --allow-uncertified --"
    done = far(launch, sys.executable, "mine é.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("of mine") == 4
    (run,) = (tmp_path / "runs").iterdir()
    assert f"fetchedfromh1:{run}(" in "".join(done.stderr.split()), "lines break anywhere"
    there = far.run(run.name)
    assert contents(run) == contents(there)
    assert read_json(run / "run.json")["status"] == "finished"
    same_reports(far, run)
    again = f"fetch {run.name} --runs {tmp_path}/again"
    assert check(far(again)).strip() == str(tmp_path / "again" / run.name)
    assert contents(tmp_path / "again" / run.name) == contents(there)
    browser = tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\necho \"$1\" > '{tmp_path}/opened'\n")
    browser.chmod(0o755)
    shown = far(f"report {run.name} --open", DISPLAY=":9", BROWSER=f"{browser} %s")
    assert shown.returncode in (0, 1, 3), shown.stderr
    page = Path((tmp_path / "opened").read_text().strip().removeprefix("file://"))
    assert page.read_bytes() == (there / "index.html").read_bytes()
    shutil.rmtree(page.parent)
    check_refused(far(again), 3, "exists")
    check_refused(far(f"fetch no-such-run --runs {tmp_path}/again"), 3, "no-such-run")
    # As a SIGKILL of the process that made it leaves it.
    document = read_json(there / "run.json")
    (there / "run.json").write_text(json.dumps(document | {"status": "running"}))
    lost = far(f"fetch {run.name} --runs {tmp_path}/third")
    assert lost.returncode == 0, lost.stderr
    assert "is lost: its process is gone" in " ".join(lost.stderr.split())
    assert contents(tmp_path / "third" / run.name) == contents(there)


def test_a_detached_job_goes_on_without_the_client(far: Far, tmp_path: Path) -> None:
    """It keeps the files that were sent, until its end; then they go, and the run can be fetched."""
    (tmp_path / "mine.py").write_text(
        "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.1)\n"
        "print(pathlib.Path('mine.py').read_text()[:6], 'is read')\n"
    )
    launch = f"launch --detach -l far --allow-uncertified --runs {tmp_path}/runs --"
    begun_there = far(launch, sys.executable, "mine.py", cwd=tmp_path)
    job = check(begun_there).split()[0]
    assert not (tmp_path / "runs").exists(), "it is not fetched before it has ended"
    (name,) = re.findall(r"fetch --on h1 --runs \S+ (\S+)", begun_there.stderr)
    (folder,) = far.host.path("/var/tmp").glob("testbed-on-*")
    fetch = f"fetch {name} --runs {tmp_path}/runs"
    check_refused(far(fetch), 3, "has not ended")
    assert not (tmp_path / "runs").exists() or list((tmp_path / "runs").iterdir()) == []
    run = far.listed(name)
    assert (run["state"], run["pid"] > 0) == ("running", True)
    (folder / "here" / "go").touch()
    attached = check(far(f"attach {job} -l far"))
    assert attached.count("import is read") == 4, attached
    check(far(fetch))
    (here,) = (tmp_path / "runs").iterdir()
    assert read_json(here / "run.json")["status"] == "finished"


@pytest.mark.thorough
@pytest.mark.alone
def test_a_report_of_training_and_a_cut_made_here_is_the_one_made_there(far: Far, tmp_path: Path) -> None:
    done = far(f"run metro-40km --steps 20 --allow-uncertified --runs {tmp_path}/runs")
    assert done.returncode in (0, 1, 3), done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert contents(run) == contents(far.run(run.name))
    same_reports(far, run)
    assert contents(run) == contents(far.run(run.name))


@pytest.mark.thorough
@pytest.mark.alone
def test_a_detached_run_goes_on_without_the_client_and_holds_the_host(far: Far, tmp_path: Path) -> None:
    detach = "run metro-single --detach --allow-uncertified --name"
    client = far(f"{detach} near --steps 2000 --runs {tmp_path}/runs")
    name = check(client).strip()
    assert f"fetch --on h1 --runs {tmp_path}/runs {name}" in client.stderr
    listed = far.listed(name)
    assert listed["state"] == "running"
    check_refused(far(f"{detach} other"), 3, "found run metro-single in lab near")
    (pid,) = [pid for pid, line in far.host.pids().items() if "entry import detached" in line]
    os.kill(pid, signal.SIGINT)
    oracle.until(lambda: pid not in far.host.pids(), 60.0, "it ends in order")
    fetched = far(f"fetch {name} --runs {tmp_path}/runs")
    assert fetched.returncode == 0, fetched.stderr
    run = tmp_path / "runs" / name
    assert read_json(run / "run.json")["status"] == "interrupted"
    assert (run / "index.html").exists()
    log = far.host.path(listed["log"])
    assert log == far.host.path(listed["path"]) / "output.log"
    here = run / "output.log"
    assert here.read_bytes() == log.read_bytes()
    assert f"its output there: {here}" in " ".join(fetched.stderr.split())
    assert name in here.read_text()


@pytest.mark.thorough
@pytest.mark.alone
def test_a_detached_validation_and_a_detached_training_come_here(far: Far, tmp_path: Path) -> None:
    """One after the other in a lab there, each fetched by the command that was told, as soon as it has ended."""
    check(far("up metro-single --name both --allow-uncertified"))
    common = f"--detach -l both --allow-uncertified --runs {tmp_path}/runs"
    try:
        for line in ("train --steps 20", "validate torch-gloo --only correctness"):
            begun_there = far(f"{line} {common}")
            check(begun_there)
            (fetch,) = re.findall(r"once it has ended: (.*)", begun_there.stderr)
            name = shlex.split(fetch)[-1]
            oracle.until(lambda name=name: far.listed(name)["state"] != "running", 300.0, "it ends")  # type: ignore[misc]
            assert far.listed(name)["state"] == "finished"
            check(on(far.hosts, *shlex.split(fetch)[len(TESTBED) :]))
            run, there = tmp_path / "runs" / name, far.run(name)
            oracle.until(lambda: contents(run) == contents(there), 1.0, "it is here byte for byte")  # noqa: B023
            assert (run / "index.html").exists()
            assert (run / "output.log").exists() == line.startswith("validate")
        assert "torch-gloo" in (run / "output.log").read_text()
    finally:
        check(far("down both"))


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.alone
def test_a_detached_run_whose_client_goes_before_its_beginning_is_undone(far: Far, number: signal.Signals) -> None:
    ended_while_built(far, "run metro-single --detach --name near --allow-uncertified", number, 0.0, 15.0)


def asked(far: Far, url: str) -> str:
    """Return what a page says that the client asks for; empty if nothing answers."""
    script = "import sys, urllib.request as it; print(it.urlopen(sys.argv[1], timeout=5).read().decode())"
    words = far.hosts.client(sys.executable, "-c", script, url)
    return captured(words, timeout=30).stdout


def test_observe_of_a_lab_without_prometheus(far: Far) -> None:
    none = far("observe -l far --port 0")
    assert (none.returncode, "lab far runs no Prometheus" in none.stderr, none.stdout) == (2, True, "")


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus: apt install prometheus")
def test_observe_listens_here(far: Far) -> None:
    check(far("up metro-single --name seen --no-agents --allow-uncertified --observe"))
    client = far.begin("observe seen --port 0")
    try:
        url = client.stdout.readline().strip()
        oracle.until(lambda: "is Ready" in asked(far, f"{url}/-/ready"), 30.0, "it answers")
        assert asked(far, f"{url}/-/ready") == asked(far, f"{url}/-/ready"), "a second one, too"
        port = url.rpartition(":")[2]
        check_refused(far(f"observe seen --port {port}"), 2, f"port {port} of 127.0.0.1 is in use")
        client.send_signal(signal.SIGINT)
        _, told = client.communicate(timeout=20)
        assert (client.returncode, "Prometheus of lab seen on h1" in told) == (130, True)
        assert asked(far, f"{url}/-/ready") == ""
    finally:
        client.kill()
        client.communicate()
        check(far("down seen"))


EXPERIMENT = """topology: mine.yaml
workload: {command: [sh, train.sh], steps: 5, timeout: 60s}
"""


def write_experiment(folder: Path) -> None:
    (folder / "jöbs" / "sub").mkdir(parents=True)
    (folder / "mine.yaml").write_text((ROOT / "topologies" / "metro-single.yaml").read_text())
    (folder / "jöbs" / "x.yaml").write_text(EXPERIMENT)
    (folder / "jöbs" / "train.sh").write_text('echo "it says $(cat "sub/a word.txt")"\n')
    (folder / "jöbs" / "sub" / "a word.txt").write_text("hello")


def test_a_topology_that_an_experiment_names_travels(far: Far, tmp_path: Path) -> None:
    write_experiment(tmp_path)
    done = far("lint jöbs/x.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sent to h1: mine.yaml, jöbs/x.yaml" in " ".join(done.stderr.split())


@pytest.mark.thorough
def test_a_program_runs_there_with_the_files_of_its_folder(far: Far, tmp_path: Path) -> None:
    write_experiment(tmp_path)
    done = far("run jöbs/x.yaml --runs runs --allow-uncertified --junit out.xml", cwd=tmp_path)
    assert done.returncode in (0, 1, 3), done.stdout + done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    said = [it.read_text() for it in run.rglob("*.log") if "it says hello" in it.read_text(errors="replace")]
    assert said, done.stdout + done.stderr
    assert "<testsuite" in (tmp_path / "out.xml").read_text()


def test_files_that_a_command_writes_come_back(far: Far, tmp_path: Path) -> None:
    here = tmp_path / "work"
    (here / "ä sub").mkdir(parents=True)
    near = on(far.hosts, "render metro-single", cwd=here)
    for name, shown in (("ä sub/x.yml", "ä sub/x.yml"), (str(tmp_path / "abs.yml"), ""), ("../up.yml", "")):
        done = far("render metro-single -o", name, cwd=here)
        assert done.returncode == 0, done.stderr
        assert shown in done.stderr
        assert (here / name).read_text() == near.stdout
        assert not [it for it in (here / name).parent.iterdir() if it.name.startswith(".")]
    check(far("capture north:west -l far -w c.pcap --for 1s", cwd=here))
    assert (here / "c.pcap").read_bytes()[:4] == bytes.fromhex("0a0d0d0a"), "a section header of pcapng"
    check_refused(far("render metro-single -o none/x.yml", cwd=here), 3, "cannot write none/x.yml")
    assert not (here / "none").exists()
    check_refused(far("render metro-single -o 'ä sub'", cwd=here), 2, "got the folder ä sub")
    failed = far("run only-fiber --steps 1 --junit bad.xml --set x.y=1", cwd=here)
    assert failed.returncode == 2
    assert "<error" in (here / "bad.xml").read_text(), "whatever the exit status"


@pytest.mark.thorough
def test_a_dark_cable_ends_it_at_both_ends(far: Far) -> None:
    client = far.begin("exec -l far east-0 -- sleep 7138")
    far.until_runs("sleep 7138", 20.0)
    far.hosts.cable(far.host, False)
    try:
        far.until_ends("sleep 7138", 45.0)
        _, told = client.communicate(timeout=45)
        assert client.returncode == 125
        assert "the connection was lost" in told
    finally:
        far.hosts.cable(far.host, True)
