"""Conventions of the command line: exit statuses, streams, -q and -v, help with valid examples."""

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
from typing import Any

import pytest
import typer
from builders.cli_fixtures import Answers, Call, Cli, FakeLab, answers, cli, fake_lab
from builders.tables import table
from oracles import oracle

import testbed
from testbed import errors
from testbed.cli import app, verb

__all__ = ["answers", "cli", "fake_lab"]  # fixtures

ROOT = Path(__file__).resolve().parents[3]
NAMES = """
run compare launch train jobs attach stop report validate fetch
up down status exec logs certify observe capture ssh-config
inject cut heal
ls show lint doctor audit predict host render image
"""
VERBS = NAMES.split()
PROGRAM = (sys.executable, "-m", "testbed.cli.app")


def environment(**variables: object) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'agents'}"} | {
        name: str(value) for name, value in variables.items()
    }


def run(line: str, without: str = "", **variables: object) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell in which ``testbed`` is the command under test."""
    env = environment(**variables)
    env.pop(without, None)
    line = line.replace("testbed ", f"exec {shlex.join(PROGRAM)} ")
    return subprocess.run(["sh", "-c", line], env=env, capture_output=True, text=True, timeout=60)


def start(code: str, **options: Any) -> subprocess.Popen[str]:
    """Start Python code, and wait for its first line."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child = subprocess.Popen([sys.executable, "-c", code], env=environment(), **pipes, **options)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


# ---- help


def test_app_has_all_verbs_and_no_others() -> None:
    assert sorted(str(command.name) for command in app.app.registered_commands) == sorted(VERBS)


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"testbed {testbed.__version__}\n"


def test_help_names_every_verb(cli: Cli) -> None:
    Call("--help", out=[f" {name} " for name in VERBS]).check(cli)


@pytest.mark.parametrize("name", VERBS)
def test_help_of_a_verb_has_examples(cli: Cli, name: str) -> None:
    Call(f"{name} --help", out=("Examples", f"testbed {name}")).check(cli)


def examples() -> list[str]:
    lines = [line for command in app.app.registered_commands for line in str(command.epilog).splitlines()[1:]]
    return [line.strip().removeprefix("[cyan]").removesuffix("[/cyan]") for line in lines]


@pytest.mark.parametrize("line", examples())
def test_help_examples_are_accepted_by_the_parser(line: str) -> None:
    command, name, *words = shlex.split(line, comments=True)
    assert command == "testbed"
    group = typer.main.get_command(app.app)
    group.commands[name].make_context(name, words)  # type: ignore[attr-defined]


def test_reference_documents_every_verb() -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    assert [name for name in VERBS if f"testbed {name}" not in text] == []


# ---- exit statuses


@table(
    "error, status, message",
    {
        "TestbedError": (errors.TestbedError("it broke"), 3, "it broke"),
        "UserError": (errors.UserError("it broke"), 2, "it broke"),
        "NotAllowed": (errors.NotAllowed("it broke"), 2, "it broke"),
        "NameTaken": (errors.NameTaken("it broke"), 2, "it broke"),
        "MeasuredBad": (errors.MeasuredBad("it broke"), 1, "it broke"),
        "FidelityError": (errors.FidelityError("it broke"), 1, "it broke"),
        "HostError": (errors.HostError("it broke"), 3, "it broke"),
        "LabError": (errors.LabError("it broke"), 3, "it broke"),
        "LabBusy": (errors.LabBusy("it broke"), 2, "it broke"),
        "Interrupted": (errors.Interrupted("it broke"), 130, "it broke"),
        "Ctrl-C": (KeyboardInterrupt(), 130, "interrupted"),
    },
)
def test_error_becomes_one_line_and_its_status(
    cli: Cli, answers: Answers, error: BaseException, status: int, message: str
) -> None:
    answers("labs", error)
    result = cli("ls")
    assert (result.status, result.out, result.err) == (status, "", f"testbed: {message}\n")


def test_several_mistakes_are_lines_under_the_first(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("sites: {}\nlink: 1\n")
    result = cli("show", tmp_path / "bad.yaml")
    assert result.status == 2
    assert result.err.startswith("testbed: ")
    assert "Traceback" not in result.err
    assert "bad.yaml:2" in result.err


@pytest.mark.parametrize(
    "line",
    [
        "frobnicate",
        "up",
        "up metro-40km --frobnicate",
        "ls planets",
        "exec",
        "run metro-40km --steps many",
        "run metro-40km --steps 0",
    ],
)
def test_usage_error_is_2(cli: Cli, line: str) -> None:
    result = cli(line)
    assert result.status == 2
    assert result.err
    assert "Traceback" not in result.err


def test_bug_is_one_line_and_its_traceback_a_file(
    cli: Cli, answers: Answers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    answers("labs", lambda: 1 / 0)
    result = cli("ls")
    assert result.status == 3
    assert result.err.startswith("testbed: this is a bug in the testbed: ZeroDivisionError")
    assert result.err.count("\n") == 1
    (saved,) = tmp_path.iterdir()
    assert str(saved) in result.err
    assert "Traceback" in saved.read_text()
    assert "Traceback" in cli("ls -v").err


def test_elsewhere_than_on_linux_there_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert Call("ls", 3, err="Linux").check(cli).err.count("\n") == 1


def test_sigterm_is_an_interruption() -> None:
    """A real process, so that the handler is the real one; it is stopped while it waits for a lab that never comes."""
    child = start(
        "import sys, time; from testbed.lab import api; from testbed.cli import app\n"
        "def wait():\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "api.labs = wait; sys.argv = ['testbed', 'ls']; app.main()"
    )
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=20)
    assert (child.returncode, err) == (130, "testbed: interrupted\n")


@pytest.mark.parametrize(("by", "status"), [((), 130), (("nohup",), 1)])
def test_closed_terminal_is_an_interruption_unless_under_nohup(
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
        os.execvpe(argv[0], argv, environment(TERM="xterm", TMPDIR=tmp_path))
    oracle.until((tmp_path / "training").exists, 20.0, "it is training")
    os.close(terminal)
    if by:
        (tmp_path / "closed").touch()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == status
    made = {"closed", "nohup.out"} if by else set()
    assert {path.name for path in tmp_path.iterdir()} == {"training", "undone", *made}, "no bug was reported"


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
    with start(code, start_new_session=True) as process:
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=20) == 7


def test_verbose_shows_the_cause_of_an_error(cli: Cli, answers: Answers) -> None:
    error = errors.HostError("it broke")
    error.__cause__ = OSError("the cause")
    answers("labs", error)
    result = cli("ls -v")
    assert "OSError: the cause" in result.err
    assert result.err.endswith("testbed: it broke\n")


@pytest.mark.parametrize("line", ["show metro-40km", "ls topologies --json", "--help"])
def test_reader_that_has_gone_is_no_error(line: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    argv = [*PROGRAM, *line.split()]
    done = subprocess.run(argv, env=environment(), stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (verb.BROKEN_PIPE, b"")


@pytest.mark.parametrize("line", ["show metro-40km", "ls topologies --json", "--help", "--version"])
@pytest.mark.parametrize(("where", "why"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")])
def test_results_that_cannot_be_written_are_3(line: str, where: str, why: str) -> None:
    done = run(f"testbed {line} {where}")
    assert (done.returncode, done.stderr) == (3, f"testbed: could not write the output: {why}\n")


def test_without_streams_no_file_becomes_one(tmp_path: Path) -> None:
    """With all three closed the first file that is opened would be descriptor 0, 1 or 2, and be written into."""
    (tmp_path / "x.yaml").write_text("scale: x\n")
    done = run(f"testbed lint {tmp_path}/x.yaml <&- >&- 2>&-", TMPDIR=tmp_path)
    assert done.returncode == 3
    assert (tmp_path / "x.yaml").read_text() == "scale: x\n"
    assert [path.name for path in tmp_path.iterdir()] == ["x.yaml"], "no bug was reported"


def test_removed_current_folder_is_2(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    done = run(f"mkdir {gone}; cd {gone}; rmdir {gone}; testbed ls runs", without="TESTBED_RUNS", TMPDIR=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "testbed: the current directory no longer exists; cd to an existing one\n"
    assert list(tmp_path.iterdir()) == [], "no bug was reported"


def test_unknown_verb_offers_the_nearest(cli: Cli) -> None:
    Call("stauts", 2, err=("Did you mean 'status'?", "Usage: testbed ")).check(cli)


# ---- streams


@pytest.mark.parametrize(
    "line", ["ls", "ls topologies", "ls faults", "show metro-40km", "status", "certify", "cut north", "heal"]
)
def test_json_is_alone_on_stdout(cli: Cli, fake_lab: FakeLab, line: str) -> None:
    json.loads(cli(f"{line} --json").out)


def test_table_in_a_pipe_has_neither_color_nor_folds() -> None:
    done = run("testbed show regional-ring", TERM="xterm-256color")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert any("alba-brava" in line and "90 km" in line for line in done.stdout.splitlines())


@pytest.mark.parametrize("columns", [0, 1, 20, 72])
def test_tables_can_be_read_in_few_columns(cli: Cli, columns: int) -> None:
    out = cli("ls topologies", COLUMNS=columns).out
    assert any("metro-triangle" in line for line in out.splitlines()), out
    assert cli("--help").out.strip()


def test_no_color_is_obeyed_on_a_terminal() -> None:
    def on_a_terminal(**variables: str) -> bytes:
        main_end, child_end = os.openpty()
        env = environment(TERM="xterm-256color", COLUMNS="100", **variables)
        env.pop("FORCE_COLOR", None)
        with subprocess.Popen([*PROGRAM, "show", "metro-40km"], env=env, stdout=child_end, stderr=child_end) as child:
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


@pytest.mark.parametrize("line", ["-q cut north", "cut north -q", "cut -q north"])
def test_quiet_counts_before_the_verb_and_after_it(cli: Cli, fake_lab: FakeLab, line: str) -> None:
    assert "testbed heal" in cli("cut north").err
    result = cli(line)
    assert result.err == ""
    assert result.out.startswith("fake: f1: cut north")


# ---- how the lab is chosen


def test_lab_is_named_by_option_else_by_environment(cli: Cli, fake_lab: FakeLab) -> None:
    cli("status")
    cli("status", TESTBED_LAB="from-environment")
    cli("status -l from-option")
    assert fake_lab.asked == [("attach", None), ("attach", "from-environment"), ("attach", "from-option")]


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """``complete(line)``: the words that bash offers at the end of ``line``."""

    def run(line: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        monkeypatch.setenv("_TESTBED_COMPLETE", "complete_bash")
        with pytest.raises(SystemExit):
            app.app(prog_name="testbed")
        return capfd.readouterr().out.split()

    return run


def test_completion_is_of_the_lab_that_the_line_names(fake_lab: FakeLab, complete: Any) -> None:
    assert complete("testbed cut -l other n") == ["north"]
    assert complete("testbed exec east") == ["east-0", "east-1", "east-gw"]
    assert fake_lab.asked == [("attach", "other"), ("attach", None)]


def test_completion_never_raises(answers: Answers, complete: Any) -> None:
    answers("attach", ZeroDivisionError())
    assert complete("testbed cut n") == []


def duration_of_cut(text: str) -> Any:
    """Return ``--for`` as the verb ``cut`` reads it."""
    cut = typer.main.get_command(verb.app).commands["cut"]  # type: ignore[attr-defined]
    return cut.make_context("cut", ["north", f"--for={text}"]).params["for_"]


@pytest.mark.parametrize(("text", "seconds"), [("10s", 10.0), ("500ms", 0.5), ("2 min", 120.0), ("3", 3.0)])
def test_a_duration_is_read_in_seconds_and_sent_on_as_typed(text: str, seconds: float) -> None:
    read = duration_of_cut(text)
    assert (read.value, str(read)) == (seconds, text)


@pytest.mark.parametrize("text", ["", "0", "-1s", "10 parsecs", "nan", "inf", "1e99s"])
def test_a_bad_duration_is_refused_with_the_name_of_its_option(text: str) -> None:
    with pytest.raises(errors.UserError, match="--for"):
        duration_of_cut(text)
