"""Words of a command line for another host: which files travel, and what their words are there."""

from __future__ import annotations

import inspect
import os
import socket
import sys
from pathlib import Path

import pytest
import typer

from testbed.cli import app as _app
from testbed.cli import on_host, verb
from testbed.errors import StorageError, UserError
from testbed.host.linux import invocation
from testbed.host.linux.invocation import Invocation
from testbed.host.remote import departures
from testbed.host.remote.departures import Departures

assert _app  # imports all verbs


def typed(name: str, *words: str) -> tuple[list[str], Departures]:
    """Return the words that are sent for a command line, and its files."""
    command = typer.main.get_command(verb.app).commands[name]  # type: ignore[attr-defined]
    context = command.make_context(name, list(words))
    module = inspect.unwrap(command.callback)
    found = on_host.marks(inspect.signature(module, eval_str=True))
    files = Departures()
    return [*on_host.typed_words(context, found, name in ("launch", "exec"), files)], files


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def sent(files: Departures) -> dict[str, str]:
    return {str(it.here): it.there for it in files.sent}


def test_what_validate_names_travels(here: Path, tmp_path: Path) -> None:
    for name in ("ranks.py", "lab.yaml", "../old.json"):
        (here / name).write_text("x")
    words, files = typed(
        "validate", "torch-gloo", "ranks.py", "--topology", "lab.yaml", "--baseline", "../old.json", "--junit", "o.xml"
    )
    old = f"there{tmp_path}/old.json"
    assert sent(files) == {"ranks.py": "here/ranks.py", "lab.yaml": "here/lab.yaml", "../old.json": old}
    assert words[words.index("--baseline") + 1] == f"{{folder}}/{old}"
    assert words[words.index("--topology") + 1] == "lab.yaml"
    assert words[-3:] == ["--", "torch-gloo", "ranks.py"]
    assert [(str(it.here), it.there) for it in files.written] == [("o.xml", "here/o.xml")]
    assert files.folders == ["here"]


def test_a_topology_of_predict_travels(here: Path) -> None:
    (here / "lab.yaml").write_text("x")
    (here / "metro-40km").write_text("x")
    assert sent(typed("predict", "lab.yaml")[1]) == {"lab.yaml": "here/lab.yaml"}
    assert sent(typed("predict", "metro-40km")[1]) == {}, "a shipped one, not the file of that name"


def test_an_interpreter_is_that_of_the_host(here: Path, tmp_path: Path) -> None:
    for path in (here / "train.py", here / "text.txt", tmp_path / "outside.txt", tmp_path / "tool"):
        path.write_text("x")
    (tmp_path / "tool").chmod(0o755)
    (here / "python").symlink_to(sys.executable)
    (here / "linked.txt").symlink_to(tmp_path / "outside.txt")
    own = [str(tmp_path / "tool"), "python", "train.py", str(here / "text.txt"), "linked.txt", "../outside.txt"]
    words, files = typed("launch", "--", *own)
    inside = f"there{here}/text.txt"
    assert sent(files) == {
        "train.py": "here/train.py",
        str(here / "text.txt"): inside,
        "linked.txt": "here/linked.txt",
        "../outside.txt": f"there{tmp_path}/outside.txt",
    }
    assert words[-6:] == [
        str(tmp_path / "tool"), "python", "train.py", f"{{folder}}/{inside}", "linked.txt",
        f"{{folder}}/there{tmp_path}/outside.txt",
    ]  # fmt: skip


def test_a_file_to_write_is_a_plain_one(here: Path) -> None:
    (here / "folder").mkdir()
    assert typed("capture", "north", "-w", "-")[1].written == []
    for bad in ("folder", "/dev/null"):
        with pytest.raises(UserError, match="file to write"):
            typed("capture", "north", "-w", bad)
    files = typed("capture", "north", "-w", "none/x.pcap")[1]
    assert ([it.there for it in files.written], files.folders) == (["here/none/x.pcap"], [])


def test_an_experiment_brings_what_it_names(here: Path, tmp_path: Path) -> None:
    (here / "jobs" / "sub").mkdir(parents=True)
    for name in ("lab.yaml", "text.txt", "jobs/train.py", "jobs/sub/ü.bin", "jobs/.env", "other.py"):
        (here / name).write_text("x")
    (here / "jobs" / "again.py").symlink_to("train.py")
    (here / "jobs" / "x.yaml").write_text("topology: lab.yaml\nworkload: {command: [python, train.py], steps: 5}\n")
    words, files = typed("run", "jobs/x.yaml")
    assert words[-1] == "jobs/x.yaml"
    below = ["jobs/again.py", "jobs/sub/ü.bin", "jobs/train.py", "jobs/x.yaml"]
    assert sorted(sent(files).values()) == sorted(f"here/{it}" for it in ("lab.yaml", *below))
    assert files.named == ["lab.yaml", "jobs/x.yaml", "jobs/ (4 files)"]
    assert sorted(sent(typed("lint", "jobs/x.yaml")[1])) == ["jobs/x.yaml", "lab.yaml"]
    (here / "y.yaml").write_text("topology: metro-40km\nworkload: {data: text.txt}\n")
    assert sorted(sent(typed("run", "y.yaml")[1])) == ["text.txt", "y.yaml"]
    (here / "y.yaml").write_text("topology: metro-40km\nworkload: {data: jobs}\n")
    assert "here/jobs/.env" in sent(typed("run", "y.yaml")[1]).values(), "data is all of a folder"
    (here / "y.yaml").write_text("topology: ../lab.yaml\nworkload: {steps: 5}\n")
    with pytest.raises(UserError, match=r"y.yaml: expected files below the current folder, got '?\.\./lab.yaml"):
        typed("run", "y.yaml")


def test_a_folder_beside_the_current_one_travels_with_its_experiment(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "jobs").mkdir()
    (here / "train.py").write_text("x")
    (here / "jobs" / "x.yaml").write_text("workload: {command: [python, train.py], folder: .., steps: 5}\n")
    assert set(sent(typed("run", "jobs/x.yaml")[1]).values()) == {"here/train.py", "here/jobs/x.yaml"}
    monkeypatch.chdir(here / "jobs")
    words, files = typed("run", "x.yaml")
    assert words[-1] == f"{{folder}}/there{here}/jobs/x.yaml"
    assert set(sent(files).values()) == {f"there{here}/train.py", f"there{here}/jobs/x.yaml"}


@pytest.mark.parametrize("what", ["link out", "link to a folder", "pipe", "socket", "large", "many"])
def test_a_folder_that_cannot_be_sent_is_refused_by_name(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    folder = here / "data"
    (folder / "sub").mkdir(parents=True)
    said = "data/odd"
    if what == "link out":
        (tmp_path / "outside").write_text("x")
        (folder / "odd").symlink_to(tmp_path / "outside")
    elif what == "link to a folder":
        (folder / "odd").symlink_to("sub")
    elif what == "pipe":
        os.mkfifo(folder / "odd")
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("data/odd")
    elif what == "large":
        (folder / "a").write_text("x")
        with (folder / "odd").open("wb") as file:
            file.truncate((1 << 30) + 1)
        said = "the largest file is data/odd"
    else:
        monkeypatch.setattr(departures, "_MOST_FILES", 20)
        for number in range(21):
            (folder / str(number)).touch()
        said = "at most 1 GiB and 20 files"
    with pytest.raises(UserError, match=said):
        typed("run", "metro-40km", "--data", "data")


def test_a_long_word_of_a_command_is_no_file() -> None:
    words, _ = typed("exec", "east-0", "--", "sh", "-c", "x" * 10_000)
    assert words[-1] == "x" * 10_000


def test_a_pipe_that_an_experiment_names_is_refused(here: Path) -> None:
    os.mkfifo(here / "lab.yaml")
    (here / "x.yaml").write_text("topology: lab.yaml\nworkload: {steps: 5}\n")
    with pytest.raises(UserError, match=r"got 'lab.yaml', which is a pipe"):
        typed("lint", "x.yaml")


def test_what_is_sent_is_bounded_and_shown_in_one_line(here: Path) -> None:
    with (here / "large.yaml").open("wb") as file:
        file.truncate((8 << 30) + 1)
    with pytest.raises(UserError, match=r"files of at most 8.58993 GB to send, got more with 'large.yaml'"):
        typed("lint", "large.yaml")[1].size()
    (here / "odd\n\x1b[31m.yaml").write_text("x")
    files = typed("lint", "odd\n\x1b[31m.yaml")[1]
    assert (files.named, files.size()) == ([r"odd\n\x1b[31m.yaml"], 1)
    (here / "odd\n\x1b[31m.yaml").unlink()
    with pytest.raises(StorageError, match="No such file"):
        files.size()


def test_a_run_that_is_measured_and_a_folder_of_wheels_travel(here: Path, tmp_path: Path) -> None:
    for name in ("runs/one/run.json", "runs/one/ranks/0.jsonl", "../wheels/x.whl"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("x")
    words, files = typed("predict", "--measured", "runs/one", "--measured", "there-only")
    assert set(sent(files).values()) == {"here/runs/one/run.json", "here/runs/one/ranks/0.jsonl"}
    assert [words[at + 1] for at, it in enumerate(words) if it == "--measured"] == ["runs/one", "there-only"]
    words, files = typed("image", "build", "--wheels", "../wheels")
    assert set(sent(files).values()) == {f"there{tmp_path}/wheels/x.whl"}
    assert words[words.index("--wheels") + 1] == f"{{folder}}/there{tmp_path}/wheels"


@pytest.mark.parametrize(
    ("words", "host", "on", "rest"),
    [
        (["--on", "a b", "down", "x"], "a b", ("--on", "a b"), ("down", "x")),
        (["down", "x", "--on=h1"], "h1", ("--on", "h1"), ("down", "x")),
        (["--on", "h1", "down", "x", "--on", "h2"], "h2", ("--on", "h2"), ()),
        (
            ["exec", "--on", "h1", "east-0", "--", "p", "--on", "q"],
            "h1",
            ("--on", "h1"),
            ("exec", "east-0", "--", "p", "--on", "q"),
        ),
        (["down", "x"], "of-env", (), ("down", "x")),
        (["exec", "east-0", "--", "p", "--on", "q"], "of-env", (), ("exec", "east-0", "--", "p", "--on", "q")),
    ],
)
def test_hints_name_a_host_that_was_typed(
    monkeypatch: pytest.MonkeyPatch, words: list[str], host: str, on: tuple[str, ...], rest: tuple[str, ...]
) -> None:
    """A typed --on, before the verb or after it, wins over $TESTBED_ON, which hints need not name."""
    seen = []
    monkeypatch.setenv("TESTBED_ON", "of-env")
    monkeypatch.setattr(invocation, "current", lambda: Invocation(typed=tuple(words)))
    monkeypatch.setattr(on_host, "run", lambda where, *_: seen.append(on_host.client_words(where)) or 0)
    with pytest.raises(SystemExit):
        verb.app(words)
    (told,) = seen
    assert (told.host, told.on, told.ssh) == (host, on, ("ssh", host))
    assert not rest or told.typed == rest
