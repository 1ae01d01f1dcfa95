"""Conventions of the command line: exit statuses, where words go, -q and -v, help whose examples are true."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from builders.cli_fixtures import Cli, FakeLab, cli, fake_lab
from oracles import oracle

from testbed import __version__, errors
from testbed.cli import app, verb
from testbed.lab import api

__all__ = ["cli", "fake_lab"]  # fixtures

ROOT = Path(__file__).resolve().parents[3]
RUNS = ("run", "compare", "launch", "train", "jobs", "attach", "stop", "report", "validate", "fetch")
LABS = ("up", "down", "status", "exec", "logs", "certify", "observe", "capture", "ssh-config")
FAULTS, LOOK = (
    ("inject", "cut", "heal"),
    ("ls", "show", "lint", "doctor", "audit", "predict", "host", "render", "image"),
)
VERBS = (*RUNS, *LABS, *FAULTS, *LOOK)
ERRORS = [
    (errors.TestbedError("it broke"), 3),
    (errors.UserError("it broke"), 2),
    (errors.NotAllowed("it broke"), 2),
    (errors.NameTaken("it broke"), 2),
    (errors.MeasuredBad("it broke"), 1),
    (errors.FidelityError("it broke"), 1),
    (errors.HostError("it broke"), 3),
    (errors.LabError("it broke"), 3),
    (errors.LabBusy("it broke"), 2),
    (errors.Interrupted("it broke"), 130),
]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'agents'}", **more}


def program(*words: str) -> list[str]:
    return [sys.executable, "-m", "testbed.cli.app", *words]


def commands() -> dict[str, typer.models.CommandInfo]:
    return {str(command.name): command for command in app.app.registered_commands}


# ---- help


def test_all_verbs_are_there_and_no_others() -> None:
    assert sorted(commands()) == sorted(VERBS)


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"testbed {__version__}\n"


def test_help_names_every_verb(cli: Cli) -> None:
    said = cli("--help")
    assert said.status == 0
    for name in VERBS:
        assert f" {name} " in said.out


@pytest.mark.parametrize("name", VERBS)
def test_each_verb_teaches_with_examples(cli: Cli, name: str) -> None:
    said = cli(name, "--help")
    assert said.status == 0
    assert "Examples" in said.out
    assert f"testbed {name}" in said.out


def examples() -> list[str]:
    lines = [line for command in app.app.registered_commands for line in str(command.epilog).splitlines()[1:]]
    return [line.strip().removeprefix("[cyan]").removesuffix("[/cyan]") for line in lines]


@pytest.mark.parametrize("line", examples())
def test_examples_are_accepted_by_the_parser(line: str) -> None:
    command, name, *words = shlex.split(line, comments=True)
    assert command == "testbed"
    group = typer.main.get_command(app.app)
    group.commands[name].make_context(name, words)  # type: ignore[attr-defined]


def test_reference_documents_every_verb() -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    for name in VERBS:
        assert f"testbed {name}" in text


# ---- exit statuses


@pytest.mark.parametrize(("error", "status"), ERRORS, ids=lambda value: type(value).__name__)
def test_errors_become_one_line_and_their_status(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(api, "labs", fail)
    said = cli("ls")
    assert (said.status, said.out, said.err) == (status, "", "testbed: it broke\n")


def test_several_findings_are_lines_under_the_first(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("sites: {}\nlink: 1\n")
    said = cli("show", str(tmp_path / "bad.yaml"))
    assert said.status == 2
    assert said.err.startswith("testbed: ")
    assert "Traceback" not in said.err
    assert "bad.yaml:2" in said.err


@pytest.mark.parametrize(
    "words",
    [
        ("frobnicate",),
        ("up",),
        ("up", "metro-40km", "--frobnicate"),
        ("ls", "planets"),
        ("exec",),
        ("run", "metro-40km", "--steps", "many"),
        ("run", "metro-40km", "--steps", "0"),
    ],
)
def test_usage_errors_are_2(cli: Cli, words: tuple[str, ...]) -> None:
    said = cli(*words)
    assert said.status == 2
    assert said.err
    assert "Traceback" not in said.err


def test_ctrl_c_is_130(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "labs", interrupt)
    said = cli("ls")
    assert (said.status, said.err) == (130, "testbed: interrupted\n")


def test_a_bug_is_one_line_and_its_traceback_a_file(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(api, "labs", lambda: 1 / 0)
    said = cli("ls")
    assert said.status == 3
    assert said.err.startswith("testbed: this is a bug in the testbed: ZeroDivisionError")
    assert said.err.count("\n") == 1
    (saved,) = tmp_path.iterdir()
    assert str(saved) in said.err
    assert "Traceback" in saved.read_text()
    assert "Traceback" in cli("ls", "-v").err


def test_elsewhere_than_on_linux_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    said = cli("ls")
    assert said.status == 3
    assert "Linux" in said.err
    assert said.err.count("\n") == 1


def test_sigterm_is_an_interruption() -> None:
    """A real process, so that the handler is the real one; it is stopped while it waits for a lab that never comes."""
    code = (
        "import sys, time; from testbed.lab import api; from testbed.cli import app\n"
        "def wait():\n    print('waiting', flush=True)\n    time.sleep(60)\n"
        "api.labs = wait; sys.argv = ['testbed', 'ls']; app.main()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "waiting\n"
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=20)
    assert (child.returncode, err) == (130, "testbed: interrupted\n")


@pytest.mark.parametrize(("by", "status"), [((), 130), (("nohup",), 1)])
def test_a_terminal_that_is_closed_is_an_interruption_unless_under_nohup(
    tmp_path: Path, by: tuple[str, ...], status: int
) -> None:
    """The real handler, a real terminal; what is drawn on the way out has nowhere to go, and that is no bug."""
    code = (
        "import sys, time; from pathlib import Path; from testbed.lab import api; from testbed.cli import app\n"
        "from testbed.errors import FidelityError; from testbed.lab.interruption import interruptible\n"
        "def run(*words, progress, **more):\n"
        "    with interruptible():\n"
        "        try:\n"
        "            progress.phase('train'); Path('training').touch()\n"
        "            while not Path('closed').exists(): time.sleep(0.01)\n"
        "            raise FidelityError('trained to the end')\n"
        "        finally:\n"
        "            progress.phase('report'); progress.phase('down'); Path('undone').touch()\n"
        "api.run = run; sys.argv = ['testbed', 'run', 'metro-40km']; app.main()"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        argv = [*by, sys.executable, "-c", code]
        os.execvpe(argv[0], argv, environment(TERM="xterm", TMPDIR=str(tmp_path)))
    oracle.until((tmp_path / "training").exists, 20.0, "it is training")
    os.close(terminal)
    if by:
        (tmp_path / "closed").touch()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == status
    made = {"closed", "nohup.out"} if by else set()
    assert {it.name for it in tmp_path.iterdir()} == {"training", "undone", *made}, "no bug was reported"


def test_ctrl_c_in_exec_is_the_childs_to_answer() -> None:
    """As a terminal does it: SIGINT to the whole group. The child catches it, and its status is ours."""
    child_code = (
        "import signal, sys; signal.signal(signal.SIGINT, lambda *_: sys.exit(7)); "
        "print('ready', flush=True); signal.pause()"
    )
    code = (
        "import sys; from types import SimpleNamespace; from testbed.host import runner; from testbed.lab import api\n"
        "from testbed.cli import app\n"
        "api.attach = lambda name, **how: SimpleNamespace(\n"
        "    name='fake', runs_as_root=True, exec=lambda node, argv: runner.run(argv)\n"
        ")\n"
        f"sys.argv = ['testbed', 'exec', 'east-0', sys.executable, '-c', {child_code!r}]; app.main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment(), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=20) == 7


def test_verbose_shows_where_an_error_came_from(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise errors.HostError("it broke") from OSError("the cause")

    monkeypatch.setattr(api, "labs", fail)
    said = cli("ls", "-v")
    assert "OSError: the cause" in said.err
    assert said.err.endswith("testbed: it broke\n")


@pytest.mark.parametrize("words", [("show", "metro-40km"), ("ls", "topologies", "--json"), ("--help",)])
def test_a_reader_that_has_gone_is_no_matter(words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(program(*words), env=environment(), stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert done.returncode == verb.BROKEN_PIPE
    assert done.stderr == b""


@pytest.mark.parametrize("words", ["show metro-40km", "ls topologies --json", "--help", "--version"])
@pytest.mark.parametrize(("where", "why"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")])
def test_results_that_cannot_be_written(words: str, where: str, why: str) -> None:
    line = f"exec {shlex.join(program())} {words} {where}"
    done = subprocess.run(["sh", "-c", line], env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (3, f"testbed: could not write the output: {why}\n")


def test_without_any_stream_nothing_we_open_becomes_one(tmp_path: Path) -> None:
    """With all three closed the first file that is opened would be descriptor 0, 1 or 2, and be written into."""
    line = f"exec {shlex.join(program())} lint {tmp_path}/x.yaml <&- >&- 2>&-"
    (tmp_path / "x.yaml").write_text("scale: x\n")
    done = subprocess.run(["sh", "-c", line], env=environment(TMPDIR=str(tmp_path)), timeout=60)
    assert done.returncode == 3
    assert (tmp_path / "x.yaml").read_text() == "scale: x\n"
    assert [it.name for it in tmp_path.iterdir()] == ["x.yaml"], "no bug was reported"


def test_in_a_folder_that_was_removed(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    line = f"mkdir {gone}; cd {gone}; rmdir {gone}; exec {shlex.join(program('ls', 'runs'))}"
    env = environment(TMPDIR=str(tmp_path))
    env.pop("TESTBED_RUNS", None)
    done = subprocess.run(["sh", "-c", line], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "testbed: the current directory no longer exists; cd to an existing one\n"
    assert list(tmp_path.iterdir()) == [], "no bug was reported"


def test_an_unknown_verb_offers_the_nearest(cli: Cli) -> None:
    said = cli("stauts")
    assert said.status == 2
    assert "Did you mean 'status'?" in said.err
    assert "Usage: testbed " in said.err


# ---- where words go


def test_json_is_alone_on_stdout(cli: Cli, fake_lab: FakeLab) -> None:
    for words in (
        ["ls"],
        ["ls", "topologies"],
        ["ls", "faults"],
        ["show", "metro-40km"],
        ["status"],
        ["certify"],
        ["cut", "north"],
        ["heal"],
    ):
        json.loads(cli(*words, "--json").out)


def test_a_table_in_a_pipe_has_neither_colour_nor_folds() -> None:
    done = subprocess.run(
        program("show", "regional-ring"),
        env=environment(TERM="xterm-256color"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert any("alba-brava" in line and "90 km" in line for line in done.stdout.splitlines())


@pytest.mark.parametrize("columns", ["0", "1", "20", "72"])
def test_however_few_columns_there_are_tables_can_be_read(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    out = cli("ls", "topologies").out
    assert any("metro-triangle" in line for line in out.splitlines()), out
    assert cli("--help").out.strip()


def test_no_color_is_obeyed_on_a_terminal() -> None:
    def on_a_terminal(**more: str) -> bytes:
        main_end, child_end = os.openpty()
        env = environment(TERM="xterm-256color", COLUMNS="100", **more)
        env.pop("FORCE_COLOR", None)
        with subprocess.Popen(program("show", "metro-40km"), env=env, stdout=child_end, stderr=child_end) as child:
            os.close(child_end)
            text = b""
            until = time.monotonic() + 60
            try:
                while time.monotonic() < until and (piece := os.read(main_end, 65536)):
                    text += piece
            except OSError:
                pass  # Linux says EIO when the other end has gone
            os.close(main_end)
            assert child.wait(timeout=10) == 0
        return text

    assert b"\x1b[" in on_a_terminal()
    plain = on_a_terminal(NO_COLOR="1")
    # Bold and dim may stay (no-color.org); colours, 30 to 49 and 90 to 107, may not.
    assert not any(code in plain for code in (b"\x1b[31m", b"\x1b[32m", b"\x1b[36m", b";32m", b";31m"))


@pytest.mark.parametrize("words", [("-q", "cut", "north"), ("cut", "north", "-q"), ("cut", "-q", "north")])
def test_quiet_counts_before_the_verb_and_after_it(cli: Cli, fake_lab: FakeLab, words: tuple[str, ...]) -> None:
    assert "testbed heal" in cli("cut", "north").err
    said = cli(*words)
    assert said.err == ""
    assert said.out.startswith("fake: f1: cut north")


# ---- how the lab is chosen


def test_the_lab_is_named_by_option_else_by_environment(
    cli: Cli, fake_lab: FakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("status")
    monkeypatch.setenv("TESTBED_LAB", "from-environment")
    cli("status")
    cli("status", "-l", "from-option")
    assert fake_lab.asked == [("attach", None), ("attach", "from-environment"), ("attach", "from-option")]


def completed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], line: str) -> list[str]:
    """What bash offers at the end of ``line``."""
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    monkeypatch.setenv("_TESTBED_COMPLETE", "complete_bash")
    with pytest.raises(SystemExit):
        app.app(prog_name="testbed")
    return capfd.readouterr().out.split()


def test_completion_is_of_the_lab_that_the_line_names(
    fake_lab: FakeLab, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert completed(monkeypatch, capfd, "testbed cut -l other n") == ["north"]
    assert completed(monkeypatch, capfd, "testbed exec east") == ["east-0", "east-1", "east-gw"]
    assert fake_lab.asked == [("attach", "other"), ("attach", None)]


def test_completion_never_raises(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(api, "attach", lambda name: 1 / 0)
    assert completed(monkeypatch, capfd, "testbed cut n") == []


@pytest.mark.parametrize(("text", "seconds"), [("10s", 10.0), ("500ms", 0.5), ("2 min", 120.0), ("3", 3.0)])
def test_durations(text: str, seconds: float) -> None:
    assert verb.read_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1s", "10 parsecs", "nan", "inf", "1e99s"])
def test_bad_durations_say_what_would_be_right(text: str) -> None:
    with pytest.raises(errors.UserError, match="--for"):
        verb.read_duration_s(text)
