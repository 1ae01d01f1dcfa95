"""What arrives from another host: whole or not at all, plain files and folders only."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from builders.tables import table
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.remote.leash_frames import Frames, Kind, frame
from testbed.errors import HostError, StorageError
from testbed.host.remote.arrivals import replace, unpack


def archive(*members: tuple[str, bytes | None]) -> bytes:
    """A tar file; None for a folder."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = (tarfile.DIRTYPE, 0) if content is None else (tarfile.REGTYPE, len(content))
            tar.addfile(info, io.BytesIO(content or b""))
    return out.getvalue()


def pieces(content: bytes, size: int = 1000) -> Iterator[bytes]:
    return (content[begin : begin + size] for begin in range(0, len(content), size))


def lost(begin: bytes) -> Iterator[bytes]:
    yield begin
    raise HostError("the connection was lost")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_arrives_byte_for_byte(tmp_path: Path) -> None:
    content = {"run.json": b"{}", "ranks/ré sumé.log": bytes(range(256)) * 100, "ranks/empty": b""}
    sent = archive(("ranks", None), *content.items())
    assert unpack(pieces(sent), tmp_path / "new" / "run") > 25_600
    run = tmp_path / "new" / "run"
    assert {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()} == content
    assert names(tmp_path / "new") == ["run"]
    with pytest.raises(StorageError, match="exists"):
        unpack(pieces(sent), tmp_path / "new" / "run")


def odd(kind: int = tarfile.GNU_FORMAT, **fields: object) -> bytes:
    """A tar file with a member of these fields."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=kind) as tar:
        info = tarfile.TarInfo("x")
        for field in fields.items():
            setattr(info, *field)
        tar.addfile(info)
    return out.getvalue()


@table(
    "sent, why",
    {
        "a name above the folder": (archive(("run.json", b"{}"), ("../out", b"x")), "refused: a file named '../out'"),
        "a whole path": (archive(("/etc/x", b"x")), "refused"),
        "a name of two lines": (archive(("a\nb", b"x")), "refused"),
        "a path that leads above the folder": (archive(("a/../../b", b"x")), "refused"),
        "a symbolic link": (odd(type=tarfile.SYMTYPE, linkname="/etc"), "neither a file"),
        "a hard link": (odd(type=tarfile.LNKTYPE, linkname="run.json"), "neither a file"),
        "a pipe": (odd(type=tarfile.FIFOTYPE), "neither a file"),
        "a device": (odd(type=tarfile.CHRTYPE), "neither a file"),
        "a sparse file": (odd(type=tarfile.GNUTYPE_SPARSE), "sparse"),
        "an endless time": (odd(tarfile.PAX_FORMAT, pax_headers={"mtime": "inf"}), "did not arrive whole"),
        "a file in part": (archive(("big", bytes(5000)))[:3000], "did not arrive whole"),
        "nonsense": (b"not a tar file" * 100, "did not arrive whole"),
    },
)
def test_what_is_refused_leaves_nothing(tmp_path: Path, sent: bytes, why: str) -> None:
    with pytest.raises(HostError, match=why):
        unpack(pieces(sent), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_connection_that_is_lost_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="lost"):
        unpack(lost(archive(("a", bytes(5000)))[:2000]), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.tuples(st.sampled_from(["data", "beat", "bytes", "file"]), st.binary(max_size=300))), st.data())
def test_frames_survive_any_cut_of_the_stream(sent: list[tuple[Kind, bytes]], data: st.DataObject) -> None:
    stream = b"".join(frame(kind, content) for kind, content in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    decoder = Frames()
    parts = [stream[begin:end] for begin, end in pairwise([0, *cuts, len(stream)])]
    assert [received for part in parts for received in decoder.feed(part)] == sent


def test_nonsense_is_no_frame() -> None:
    with pytest.raises(ValueError, match="expected a frame"):
        list(Frames().feed(b"GET / HTTP/1.1\r\n"))


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "new é" / "out.xml"
    content = bytes(range(256)) * 100
    assert replace(pieces(content), target) == len(content)
    assert target.read_bytes() == content
    with pytest.raises(HostError):
        replace(lost(b"half"), target)
    assert names(target.parent) == ["out.xml"]
    assert target.read_bytes() == content
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="folder"):
        replace(pieces(b"x"), tmp_path / "folder")
    assert names(tmp_path) == ["folder", "new é"]


def test_what_a_killed_fetch_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    left, other, alive = f".run.arrives-{ended.pid}", f".other.arrives-{ended.pid}", ".run.arrives-1"
    for name in (left, other, alive):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_bytes(b"x")
    unpack(pieces(archive(("run.json", b"{}"))), tmp_path / "run")
    assert names(tmp_path) == sorted([alive, other, "run"])


def test_a_folder_that_another_process_removed_is_no_run(tmp_path: Path) -> None:
    def sent() -> Iterator[bytes]:
        content = archive(("first", b"1" * 5000), ("second", b"2" * 5000), ("third", bytes(200_000)))
        yield content[:100_000]
        shutil.rmtree(next(tmp_path.glob(".run.*")))
        yield content[100_000:]

    with pytest.raises(StorageError, match="cannot write"):
        unpack(sent(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
