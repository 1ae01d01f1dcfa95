"""Finding files: shipped ones by name, users' by path; nothing that is not a plain file is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from builders.tables import table

from testbed.core import yamltext
from testbed.errors import FileMistakes, UnknownName, UserError
from testbed.host.files import catalog


def test_shipped_by_name() -> None:
    assert "metro-40km" in catalog.list_topologies()
    assert "first-cut" in catalog.list_experiments()
    for name in catalog.list_topologies():
        assert catalog.load_topology(name).name == name
    for name in catalog.list_experiments():
        assert catalog.load_experiment(name).topology in catalog.list_topologies()


def test_overrides_reach_the_file() -> None:
    assert catalog.load_topology("metro-40km", {"links.north.km": 80}).link("north").length_m == 80_000


def test_by_path_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text("sites: {a: }\n")
    monkeypatch.chdir(tmp_path)
    assert catalog.load_topology("mine.yaml").source == "mine.yaml"
    assert catalog.load_topology(str(tmp_path / "mine.yaml")).name == "mine"
    assert catalog.load_topology("metro-40km").name == "metro-40km"


def test_the_label_is_short_and_where_the_user_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[4])
    assert catalog.find("metro-40km")[1] == "topologies/metro-40km.yaml"


def test_the_nearest_are_offered(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean metro-40km"):
        catalog.find("metro-40")
    (tmp_path / "ring.yaml").touch()
    with pytest.raises(UnknownName, match=r"did you mean .*/ring\.yaml"):
        catalog.find(f"{tmp_path}/rong.yaml")
    with pytest.raises(UnknownName, match="unknown topology or experiment 'nothing-like-it'"):
        catalog.kind_of("nothing-like-it")


@table(
    "path, text",
    {
        "a pipe, without waiting for a writer": ("pipe.yaml", "not a regular file"),
        "a folder": ("./", "directory"),
        "this folder": (".", "directory"),
        "a dangling link": ("dangling.yaml", "a link to a missing file"),
        "a device": ("/dev/zero", "not a regular file"),
        "a link to itself": ("./loop.yaml", "cannot read"),
        "a file as a folder": ("./file/x.yaml", "cannot read"),
        "a large file": ("large.yaml", "larger than 1 MiB"),
        "a name that no file can have": ("a\0b.yaml", "cannot read"),
        "a long name": ("x" * 5000 + ".yaml", "cannot read"),
    },
)
def test_what_is_no_plain_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.yaml")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "dangling.yaml").symlink_to("nowhere.yaml")
    (tmp_path / "file").touch()
    (tmp_path / "large.yaml").write_bytes(b"#" * (yamltext.MOST_BYTES + 1))
    with pytest.raises(UserError) as caught:
        catalog.find(path)
    assert text in str(caught.value)


def test_a_file_that_has_nothing_to_give_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc/kmsg calls itself regular, and a read of it that may not wait finds nothing."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    monkeypatch.setattr(catalog.os, "open", lambda *_: os.dup(reader))
    monkeypatch.setattr(catalog, "_check_regular", lambda *_: None)
    with pytest.raises(UserError, match="not a regular file"):
        catalog.find(f"{tmp_path}/")
    os.close(writer)
    os.close(reader)


def test_a_file_named_as_if_it_were_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("sites: {a: }\n")
    for find in (catalog.find, catalog.kind_of):
        with pytest.raises(UserError, match=r"for the file of that name write \./mine"):
            find("mine")
    assert catalog.load_topology("./mine").name == "mine"


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("sites: {east: {nodez: 1}}\nsites: {}\nscale: x\n", ["nodez", "duplicate key", "scale of"]),
        ("workload: {steps: 0, steps: 1}\nexpect: [nothing]\n", ["steps of", "duplicate key", "METRIC OPERATOR VALUE"]),
    ],
)
def test_a_duplicate_key_hides_no_other_mistake(tmp_path: Path, text: str, mistakes: list[str]) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(text)
    load = catalog.load_topology if catalog.kind_of(str(path)) == "topology" else catalog.load_experiment
    with pytest.raises(FileMistakes) as caught:
        load(str(path))
    for mistake in mistakes:
        assert mistake in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").touch(mode=0)
    with pytest.raises(UserError, match="no permission to read"):
        catalog.find(f"{tmp_path}/mine.yaml")


def test_kinds(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text("expect: [goodput > 0]\n")
    (tmp_path / "t.yaml").write_text("sites: {a: }\n")
    (tmp_path / "broken.yaml").write_text("sites: [\n")
    assert catalog.kind_of("metro-40km") == catalog.kind_of(f"{tmp_path}/t.yaml") == "topology"
    assert catalog.kind_of("first-cut") == catalog.kind_of(f"{tmp_path}/e.yaml") == "experiment"
    assert catalog.kind_of(f"{tmp_path}/broken.yaml") == "topology"
    with pytest.raises(FileMistakes):
        catalog.load_topology(f"{tmp_path}/broken.yaml")
