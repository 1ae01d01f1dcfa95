"""Words of a command line for another host: which files travel, and what their words are there."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest
import typer

from testbed.cli import app as _app
from testbed.cli import on_host, verb
from testbed.errors import UserError

assert _app  # imports all verbs


def typed(name: str, *words: str) -> tuple[list[str], on_host.Files]:
    """Return the words that are sent for a command line, and its files."""
    command = typer.main.get_command(verb.app).commands[name]  # type: ignore[attr-defined]
    context = command.make_context(name, list(words))
    module = inspect.unwrap(command.callback)
    found = on_host.marks(inspect.signature(module, eval_str=True))
    files = on_host.Files()
    return [*on_host.typed_words(context, found, name in ("launch", "exec"), files)], files


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def sent(files: on_host.Files) -> dict[str, str]:
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
    assert [(str(it.here), it.there, it.folder) for it in files.written] == [("o.xml", "here/o.xml", "here")]


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
    (file,) = typed("capture", "north", "-w", "none/x.pcap")[1].written
    assert (file.there, file.folder) == ("here/none/x.pcap", "")
