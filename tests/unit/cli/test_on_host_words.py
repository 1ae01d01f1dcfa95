"""Words of a command line for another host: which files travel, and what their words are there."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from builders.tables import table

from testbed.cli import app as _app
from testbed.cli import on_host, verb
from testbed.errors import StorageError, UserError
from testbed.host.linux import invocation
from testbed.host.linux.invocation import Invocation
from testbed.host.remote import departures
from testbed.host.remote.departures import Departures

assert _app  # imports all verbs


def typed(line: str, *arguments: str) -> tuple[list[str], Departures]:
    """Return the words that are sent for a command line, and its files."""
    name, *words = [*shlex.split(line), *arguments]
    command = typer.main.get_command(verb.app).commands[name]  # type: ignore[attr-defined]
    context = command.make_context(name, words)
    files = Departures()
    return [*on_host.typed_words(context, command.marks, name in ("launch", "exec"), files)], files


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def sent(line: str) -> list[str]:
    """Return where the files of a command line travel to."""
    return sorted(file.there for file in typed(line)[1].sent)


def travels(files: Departures) -> dict[str, str]:
    return {str(file.here): file.there for file in files.sent}


def write(folder: Path, *names: str, text: str = "x") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def experiment(folder: Path, *lines: str, name: str = "x.yaml") -> None:
    write(folder, name, text="\n".join([*lines, ""]))


def test_files_of_validate_travel(here: Path, tmp_path: Path) -> None:
    write(here, "ranks.py", "lab.yaml", "../old.json")
    words, files = typed(
        "validate torch-gloo ranks.py --topology lab.yaml --baseline ../old.json --junit o.xml",
    )
    old = f"there{tmp_path}/old.json"
    assert travels(files) == {"ranks.py": "here/ranks.py", "lab.yaml": "here/lab.yaml", "../old.json": old}
    assert words[words.index("--baseline") + 1] == f"{{folder}}/{old}"
    assert words[words.index("--topology") + 1] == "lab.yaml"
    assert words[-3:] == ["--", "torch-gloo", "ranks.py"]
    assert [(str(file.here), file.there) for file in files.written] == [("o.xml", "here/o.xml")]
    assert files.folders == ["here"]


def test_topology_of_predict_travels(here: Path) -> None:
    write(here, "lab.yaml", "metro-40km")
    assert travels(typed("predict lab.yaml")[1]) == {"lab.yaml": "here/lab.yaml"}
    assert sent("predict metro-40km") == [], "a shipped one, not the file of that name"


def test_interpreter_is_that_of_the_host(here: Path, tmp_path: Path) -> None:
    write(here, "train.py", "text.txt", "../outside.txt", "../tool")
    (tmp_path / "tool").chmod(0o755)
    (here / "python").symlink_to(sys.executable)
    (here / "linked.txt").symlink_to(tmp_path / "outside.txt")
    words, files = typed(f"launch -- {tmp_path}/tool python train.py {here}/text.txt linked.txt ../outside.txt")
    inside, outside = f"there{here}/text.txt", f"there{tmp_path}/outside.txt"
    assert travels(files) == {
        "train.py": "here/train.py",
        f"{here}/text.txt": inside,
        "linked.txt": "here/linked.txt",
        "../outside.txt": outside,
    }
    expected = f"{tmp_path}/tool python train.py {{folder}}/{inside} linked.txt {{folder}}/{outside}"
    assert words[-6:] == expected.split()


def test_file_to_write_is_a_plain_one(here: Path) -> None:
    (here / "folder").mkdir()
    assert typed("capture north -w -")[1].written == []
    for bad in ("folder", "/dev/null"):
        with pytest.raises(UserError, match="file to write"):
            typed(f"capture north -w {bad}")
    files = typed("capture north -w none/x.pcap")[1]
    assert ([file.there for file in files.written], files.folders) == (["here/none/x.pcap"], [])


def test_experiment_brings_what_it_names(here: Path) -> None:
    write(here, "lab.yaml", "text.txt", "jobs/train.py", "jobs/sub/ü.bin", "jobs/.env", "other.py")
    (here / "jobs" / "again.py").symlink_to("train.py")
    experiment(here / "jobs", "topology: lab.yaml", "workload: {command: [python, train.py], steps: 5}")
    words, files = typed("run jobs/x.yaml")
    assert words[-1] == "jobs/x.yaml"
    below = ["here/jobs/again.py", "here/jobs/sub/ü.bin", "here/jobs/train.py", "here/jobs/x.yaml"]
    assert sent("run jobs/x.yaml") == sorted(["here/lab.yaml", *below])
    assert files.named == ["lab.yaml", "jobs/x.yaml", "jobs/ (4 files)"]
    assert sorted(travels(typed("lint jobs/x.yaml")[1])) == ["jobs/x.yaml", "lab.yaml"]
    experiment(here, "topology: metro-40km", "workload: {data: text.txt}")
    assert sorted(travels(typed("run x.yaml")[1])) == ["text.txt", "x.yaml"]
    experiment(here, "topology: metro-40km", "workload: {data: jobs}")
    assert "here/jobs/.env" in sent("run x.yaml"), "data is all of a folder"
    experiment(here, "topology: ../lab.yaml", "workload: {steps: 5}")
    with pytest.raises(UserError, match=r"x.yaml: expected files below the current folder, got '?\.\./lab.yaml"):
        typed("run x.yaml")


def test_folder_beside_the_current_one_travels_with_its_experiment(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(here, "train.py")
    experiment(here / "jobs", "workload: {command: [python, train.py], folder: .., steps: 5}")
    assert sent("run jobs/x.yaml") == ["here/jobs/x.yaml", "here/train.py"]
    monkeypatch.chdir(here / "jobs")
    assert typed("run x.yaml")[0][-1] == f"{{folder}}/there{here}/jobs/x.yaml"
    assert sent("run x.yaml") == [f"there{here}/jobs/x.yaml", f"there{here}/train.py"]


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path.relative_to(Path.cwd())))


def fill(path: Path) -> None:
    write(path.parent, "a")
    path.touch()
    os.truncate(path, (1 << 30) + 1)


@table(
    "make, message",
    {
        "link out": (lambda odd: odd.symlink_to(__file__), "data/odd"),
        "link to a folder": (lambda odd: odd.symlink_to("sub"), "data/odd"),
        "pipe": (os.mkfifo, "data/odd"),
        "socket": (bind, "data/odd"),
        "large": (fill, "the largest file is data/odd"),
        "many": (lambda odd: write(odd.parent, *map(str, range(21))), "at most 1 GiB and 20 files"),
    },
)
def test_folder_that_cannot_be_sent_is_refused_by_name(
    here: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], message: str
) -> None:
    (here / "data" / "sub").mkdir(parents=True)
    monkeypatch.setattr(departures, "MOST_FILES", 20)
    make(here / "data" / "odd")
    with pytest.raises(UserError, match=message):
        typed("run metro-40km --data data")


def test_long_word_of_a_command_is_no_file() -> None:
    words, _ = typed("exec east-0 -- sh -c", "x" * 10_000)
    assert words[-1] == "x" * 10_000


def test_pipe_that_an_experiment_names_is_refused(here: Path) -> None:
    os.mkfifo(here / "lab.yaml")
    experiment(here, "topology: lab.yaml", "workload: {steps: 5}")
    with pytest.raises(UserError, match=r"got 'lab.yaml', which is a pipe"):
        typed("lint x.yaml")


def test_size_is_bounded_and_names_are_shown_in_one_line(here: Path) -> None:
    write(here, "large.yaml")
    os.truncate(here / "large.yaml", (8 << 30) + 1)
    with pytest.raises(UserError, match=r"files of at most 8.58993 GB to send, got more with 'large.yaml'"):
        typed("lint large.yaml")[1].size()
    odd = "odd\n\x1b[31m.yaml"
    write(here, odd)
    files = typed("lint", odd)[1]
    assert (files.named, files.size()) == ([r"odd\n\x1b[31m.yaml"], 1)
    (here / odd).unlink()
    with pytest.raises(StorageError, match="No such file"):
        files.size()


def test_measured_run_and_a_folder_of_wheels_travel(here: Path, tmp_path: Path) -> None:
    write(here, "runs/one/run.json", "runs/one/ranks/0.jsonl", "../wheels/x.whl")
    line = "predict --measured runs/one --library there-only"
    assert sent(line) == ["here/runs/one/ranks/0.jsonl", "here/runs/one/run.json"]
    words = typed(line)[0]
    named = {word: after for word, after in pairwise(words) if word in ("--measured", "--library")}
    assert named == {"--measured": "runs/one", "--library": "there-only"}
    assert sent("image build --wheels ../wheels") == [f"there{tmp_path}/wheels/x.whl"]
    words = typed("image build --wheels ../wheels")[0]
    assert words[words.index("--wheels") + 1] == f"{{folder}}/there{tmp_path}/wheels"


@pytest.mark.parametrize(
    ("line", "host", "on", "typed"),
    [
        ("--on 'a b' down x", "a b", ("--on", "a b"), "down x"),
        ("down x --on=h1", "h1", ("--on", "h1"), "down x"),
        ("--on h1 down x --on h2", "h2", ("--on", "h2"), None),
        ("exec --on h1 east-0 -- p --on q", "h1", ("--on", "h1"), "exec east-0 -- p --on q"),
        ("down x", "of-env", (), "down x"),
        ("exec east-0 -- p --on q", "of-env", (), "exec east-0 -- p --on q"),
    ],
)
def test_client_words_name_a_host_that_was_typed(
    monkeypatch: pytest.MonkeyPatch, line: str, host: str, on: tuple[str, ...], typed: str | None
) -> None:
    """A typed --on, before the verb or after it, wins over $TESTBED_ON, which hints need not name."""
    clients: Any = []
    words = shlex.split(line)
    monkeypatch.setenv("TESTBED_ON", "of-env")
    monkeypatch.setattr(invocation, "current", lambda: Invocation(typed=tuple(words)))
    monkeypatch.setattr(on_host, "run", lambda where, *_: clients.append(on_host.client_words(where)) or 0)
    with pytest.raises(SystemExit):
        verb.app(words)
    (client,) = clients
    assert (client.host, client.on, client.ssh) == (host, on, ("ssh", host))
    assert typed is None or client.typed == tuple(typed.split())
